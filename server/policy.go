package server

import (
	"crypto/tls"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// The names in certificates.
const (
	nodePrefix = "system:node:"      // of a common name
	nodes      = "system:nodes"      // an organisation
	relays     = "switchyard:relays" // an organisation
)

// A node has both, as the node authorizer of Kubernetes demands. An authority that signs any common name for users who
// ask does not make them nodes. See NewDefaultNodeIdentifier in k8s.io/kubernetes/pkg/auth/nodeidentifier.

// open are the services that nodes may use.
var open = []string{"switchyard.localnet.v1.Endpoints", "grpc.health.v1.Health", "grpc.reflection.v1.ServerReflection"}

// caller is who calls.
type caller struct {
	trusted bool   // because it can connect
	relay   bool   // by its certificate
	node    string // by its certificate, empty if it is no node's
	subject string // of the certificate, for people
	denied  error  // why it may call nothing at all, as a status; nil if the rest decides
}

// maxNode is how long the name of a Node can be in Kubernetes, maxSubject how many bytes of a certificate's subject are logged.
const maxNode, maxSubject = 253, 256

// certified returns the caller that the certificate of a connection over TLS names.
func certified(state tls.ConnectionState) caller {
	if len(state.VerifiedChains) == 0 {
		return caller{}
	}
	subject := state.VerifiedChains[0][0].Subject
	node, isNode := strings.CutPrefix(subject.CommonName, nodePrefix)
	if !isNode || len(node) > maxNode || !slices.Contains(subject.Organization, nodes) {
		node = ""
	}
	return caller{relay: slices.Contains(subject.Organization, relays), node: node, subject: shorten(subject.String(), maxSubject)}
}

// isSomebody reports whether there is anything that c may call.
func (c caller) isSomebody() bool { return c.denied == nil && (c.trusted || c.relay || c.node != "") }

// mayCall returns an error if a method, "/package.Service/Method", may not be called at all. The error names the
// missing permission.
func (c caller) mayCall(method string) error {
	service, _, _ := strings.Cut(strings.TrimPrefix(method, "/"), "/")
	switch {
	case c.denied != nil:
		return c.denied
	case c.trusted, c.relay:
		return nil
	case !slices.Contains(open, service):
		return status.Errorf(codes.PermissionDenied, "certificate %q may not use %s; it would need the organisation %q", c.subject, service, relays)
	case c.node == "":
		return status.Errorf(codes.PermissionDenied, "certificate %q is neither a node's nor a relay's; it would need the common name %q "+
			"and the organisation %q, or the organisation %q", c.subject, nodePrefix+"NAME", nodes, relays)
	}
	return nil
}

// nodeFor returns the node whose state c gets when it asks for one, which may be empty. byDefault is the node of the
// server, if any.
func (c caller) nodeFor(asked, byDefault string) (string, error) {
	switch {
	case asked == "" && c.node != "":
		return c.node, nil
	case !c.trusted && !c.relay && (c.node == "" || asked != c.node):
		return "", status.Errorf(codes.PermissionDenied, "certificate %q may not have the state of node %q; it would need the common name %q "+
			"and the organisation %q, or the organisation %q", c.subject, asked, nodePrefix+asked, nodes, relays)
	case asked == "" && byDefault == "":
		return "", status.Error(codes.InvalidArgument, "node is empty; name one, for this server has the states of many")
	case asked == "":
		return byDefault, nil
	}
	return asked, nil
}
