package explain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestEdge: the answer for a client outside names the nodes that its connection is handed over to, or why there is none.
func TestEdge(t *testing.T) {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Type: model.TypeLoadBalancer, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.100")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80, NodePort: 30080}},
	}
	slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range byte(3) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, i}), Ready: true, Serving: true, NodeName: "node-" + string('a'+rune(i%2))})
	}
	node := func(name, annotation string) *model.Node {
		return &model.Node{Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, name[len(name)-1] - 'a' + 1})}, Edge: annotation}
	}
	begin := func(t *testing.T, rule brain.Edge, svc *model.Service, nodes ...model.Object) func(class Class, dst string) string {
		s := store.New(store.Options{Brain: brain.Config{NodeName: "node-a", Edge: rule}})
		t.Cleanup(s.Close)
		sink := s.Source("test")
		sink.Update(append(nodes, svc, slice), nil)
		sink.Complete()
		return func(class Class, dst string) string {
			a := New(Options{Store: s}).Explain(Connection{Class: class, Dst: netip.MustParseAddrPort(dst), Protocol: state.TCP})
			i := slices.IndexFunc(a.Policies, func(p Policy) bool { return p.Name == "edge" })
			if i < 0 {
				return ""
			}
			return a.Policies[i].Value + ": " + a.Policies[i].Text
		}
	}
	const lb, nodePort = "192.0.2.100:80", "192.0.2.1:30080"
	ask := begin(t, brain.Edge{Enabled: true}, svc, node("node-a", "v1,7635"), node("node-b", "v1,7635"))
	for _, c := range []struct {
		class     Class
		dst, want string
	}{
		{Outside, lb, "Used: the connection is handed over to one of 2 nodes, whose answers go to the client directly: node node-a has 2 of 3, node node-b has 1 of 3"},
		{Outside, nodePort, "EdgeNoFrontend: connections to frontends of this kind are not handed over"},
		{Outside, "10.96.0.1:80", ""}, {Pod, lb, ""}, {Node, lb, ""},
	} {
		if got := ask(c.class, c.dst); got != c.want {
			t.Errorf("class %v to %s: %q\nwant %q", c.class, c.dst, got, c.want)
		}
	}
	if got := begin(t, brain.Edge{}, svc, node("node-a", "v1,7635"))(Outside, lb); got != "" {
		t.Errorf("with the edge off: %q", got)
	}
	if got := begin(t, brain.Edge{Enabled: true}, svc, node("node-a", "v1,7635"), node("node-b", ""))(Outside, lb); got != "EdgeNodeApart: node node-b has endpoints and does not take part" {
		t.Errorf("with a node that does not take part: %q", got)
	}
	local := new(*svc)
	local.ExternalLocal = true
	if got := begin(t, brain.Edge{Enabled: true}, local, node("node-a", "v1,7635"), node("node-b", "v1,7635"))(Outside, lb); !strings.HasPrefix(got, "EdgePolicyLocal: ") {
		t.Errorf("with policy Local: %q", got)
	}
}

// TestEdgeTexts: each reason has a text.
func TestEdgeTexts(t *testing.T) {
	for _, why := range []brain.EdgeReason{
		brain.EdgeOptedOut, brain.EdgeNotAsked, brain.EdgeNoFrontend, brain.EdgePolicyLocal, brain.EdgeProtocol, brain.EdgeRange, brain.EdgeAffinity, brain.EdgeBalance,
		brain.EdgeEjection, brain.EdgeDeadline, brain.EdgeNoEndpoints, brain.EdgeNoNode, brain.EdgeNodeApart, brain.EdgeTooLarge,
	} {
		if text := edgeText(why, "n"); text == string(why) {
			t.Errorf("%s has no text", why)
		}
	}
}
