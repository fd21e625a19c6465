package client

import (
	"fmt"
	"net"
	"net/netip"
	"path"
	"strings"

	"google.golang.org/grpc/resolver"

	"github.com/switchyard-net/switchyard/client/namedpipe"
)

// target is where a server listens.
type target struct {
	text string
	// grpc is the same for gRPC.
	grpc string
	// local: it is certainly on this host.
	local bool
	// socket: it is a unix socket.
	socket bool
	// pipe is the path of a named pipe, empty if it is none.
	pipe string
}

// parseTarget reads the way Docker writes addresses, and the targets of gRPC.
func parseTarget(text string) (target, error) {
	t := target{text: text, grpc: text}
	scheme, rest, found := strings.Cut(text, ":")
	switch {
	case namedpipe.Is(text):
		var err error
		if t.pipe, err = namedpipe.Path(text); err != nil {
			return t, fmt.Errorf("target %q: %w", text, err)
		}
		t.grpc, t.local = "passthrough:///localhost", true // its addresses are not checked
		return t, nil
	case found && scheme == "unix":
		// gRPC knows unix:path and unix:///path. Of unix://path it would take the first part of the path for a host.
		if name, ok := strings.CutPrefix(rest, "//"); ok && !path.IsAbs(name) || strings.Trim(rest, "/") == "" {
			return t, fmt.Errorf("target %q: want the absolute path of a socket, such as %s", text, DefaultTarget)
		}
		t.local, t.socket = true, true
		return t, nil
	case found && scheme == "unix-abstract":
		t.local, t.socket = true, true
		return t, nil
	case found && scheme != "tcp" && strings.HasPrefix(rest, "//"):
		if resolver.Get(scheme) == nil {
			return t, fmt.Errorf("target %q: gRPC does not know the scheme %q: want unix:///path, tcp://host:port, host:port or dns:///host:port",
				text, scheme)
		}
		_, endpoint, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
		if host, _, err := net.SplitHostPort(endpoint); err == nil {
			endpoint = host
		}
		t.local = (scheme == "dns" || scheme == "passthrough") && isLoopback(endpoint)
		return t, nil
	}
	address := strings.TrimPrefix(text, "tcp://")
	host, port, err := net.SplitHostPort(address)
	if err != nil || host == "" || port == "" {
		return t, fmt.Errorf("target %q: want unix:///path, tcp://host:port, host:port or a target of gRPC such as dns:///host:port", text)
	}
	t.grpc = "dns:///" + address
	t.local = isLoopback(host)
	return t, nil
}

// mayBePlain describes why TLS is needed, if it is.
func (t target) mayBePlain() error {
	if t.local {
		return nil
	}
	return fmt.Errorf("target %q may be on another host, and without TLS anyone on the way could redirect the connections of all pods; "+
		"set the certificate authority (--tls-ca, or TLS in the options), or use a unix socket, a named pipe or a loopback address", t.text)
}

func isLoopback(host string) bool {
	if host == "localhost" {
		return true
	}
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.Unmap().IsLoopback()
}
