package server

import (
	"context"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
)

// What certificates say.
const (
	nodePrefix = "system:node:"      // of a common name
	relays     = "switchyard:relays" // an organisation
)

// open are the services that nodes may use.
var open = []string{"localnet.v1.Endpoints", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}

// caller is who calls.
type caller struct {
	trusted bool   // because it can connect
	relay   bool   // by its certificate
	node    string // by its certificate, empty if it is no node's
	subject string // of the certificate, for people
}

// callerOf returns who calls. Without TLS it is whoever can connect.
func callerOf(ctx context.Context, withTLS bool) caller {
	if !withTLS {
		return caller{trusted: true}
	}
	p, _ := peer.FromContext(ctx)
	if p == nil {
		return caller{}
	}
	info, _ := p.AuthInfo.(credentials.TLSInfo)
	if len(info.State.VerifiedChains) == 0 {
		return caller{}
	}
	subject := info.State.VerifiedChains[0][0].Subject
	node, isNode := strings.CutPrefix(subject.CommonName, nodePrefix)
	if !isNode {
		node = ""
	}
	return caller{relay: slices.Contains(subject.Organization, relays), node: node, subject: subject.String()}
}

// mayCall says whether a method, "/package.Service/Method", may be called at all.
func (c caller) mayCall(method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch {
	case c.trusted, c.relay:
		return nil
	case !slices.Contains(open, service):
		return status.Errorf(codes.PermissionDenied, "certificate %q may not use %s; it would need the organisation %q", c.subject, service, relays)
	case c.node == "":
		return status.Errorf(codes.PermissionDenied, "certificate %q is neither a node's nor a relay's; it would need the common name %q, "+
			"or the organisation %q", c.subject, nodePrefix+"NAME", relays)
	}
	return nil
}

// nodeFor returns the node whose state c gets who asks for one, which may be empty. byDefault is that of the server, if any.
func (c caller) nodeFor(asked, byDefault string) (string, error) {
	switch {
	case asked == "" && c.node != "":
		return c.node, nil
	case !c.trusted && !c.relay && (c.node == "" || asked != c.node):
		return "", status.Errorf(codes.PermissionDenied, "certificate %q may not have the state of node %q; it would need the common name %q, "+
			"or the organisation %q", c.subject, asked, nodePrefix+asked, relays)
	case asked == "" && byDefault == "":
		return "", status.Error(codes.InvalidArgument, "node is empty; name one, for this server has the states of many")
	case asked == "":
		return byDefault, nil
	}
	return asked, nil
}
