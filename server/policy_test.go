package server

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	methodWatch  = "/switchyard.localnet.v1.Endpoints/Watch"
	methodHealth = "/grpc.health.v1.Health/Check"
	methodOther  = "/switchyard.cluster.v1.Objects/Follow"
)

func TestWhoMayCallWhat(t *testing.T) {
	anybody, relay, node := caller{trusted: true}, caller{relay: true}, caller{node: "a"}
	stranger, nobody := caller{subject: "CN=stranger"}, caller{}
	for _, c := range []struct {
		name   string
		who    caller
		method string
		denied string
	}{
		{"a trusted one", anybody, methodWatch, ""}, {"a trusted one", anybody, methodOther, ""},
		{"a relay", relay, methodWatch, ""}, {"a relay", relay, methodHealth, ""}, {"a relay", relay, methodOther, ""},
		{"a node", node, methodWatch, ""}, {"a node", node, methodHealth, ""},
		{"a node", node, methodOther, `the organisation "switchyard:relays"`}, {"a node", node, "", "switchyard:relays"},
		{"a stranger", stranger, methodWatch, `the common name "system:node:NAME"`}, {"a stranger", stranger, methodHealth, "CN=stranger"},
		{"a stranger", stranger, methodOther, "switchyard:relays"}, {"nobody", nobody, methodWatch, "system:node:NAME"},
	} {
		err := c.who.mayCall(c.method)
		if (err == nil) != (c.denied == "") || err != nil && (status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), c.denied)) {
			t.Errorf("%s calls %s: got %v, want %q", c.name, c.method, err, c.denied)
		}
	}
}

func TestWhoGetsWhichNode(t *testing.T) {
	anybody, relay, node, both := caller{trusted: true}, caller{relay: true}, caller{node: "a"}, caller{relay: true, node: "a"}
	for _, c := range []struct {
		name             string
		who              caller
		asked, byDefault string
		want             string
		code             codes.Code
	}{
		{"a trusted one", anybody, "b", "", "b", 0},
		{"a trusted one", anybody, "", "here", "here", 0},
		{"a trusted one", anybody, "", "", "", codes.InvalidArgument},
		{"a relay", relay, "b", "here", "b", 0},
		{"a relay", relay, "", "here", "here", 0},
		{"a relay", relay, "", "", "", codes.InvalidArgument},
		{"a node", node, "a", "", "a", 0},
		{"a node", node, "", "here", "a", 0},
		{"a node", node, "b", "b", "", codes.PermissionDenied},
		{"a node that is a relay", both, "", "here", "a", 0},
		{"a node that is a relay", both, "b", "", "b", 0},
		{"a stranger", caller{}, "", "here", "", codes.PermissionDenied},
		{"a stranger", caller{}, "b", "here", "", codes.PermissionDenied},
	} {
		got, err := c.who.nodeFor(c.asked, c.byDefault)
		if got != c.want || status.Code(err) != c.code {
			t.Errorf("%s asks for %q where %q is the default: got %q, %v; want %q, %v", c.name, c.asked, c.byDefault, got, err, c.want, c.code)
		}
	}
	if _, err := (caller{node: "a", subject: "CN=x"}).nodeFor("b", ""); !strings.Contains(err.Error(), `"system:node:b"`) {
		t.Errorf("the error does not say what is needed: %v", err)
	}
}
