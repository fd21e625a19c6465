package explain

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// edgeService is a Service with endpoints on nodes a, b and a again.
func edgeService() (*model.Service, *model.EndpointSlice) {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Type: model.TypeLoadBalancer, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.100")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80, NodePort: 30080}},
	}
	slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range byte(3) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, i}), Ready: true, Serving: true, NodeName: "node-" + string('a'+rune(i%2))})
	}
	return svc, slice
}

// edgeExplainer answers for node a. Nodes a and b have the annotations.
func edgeExplainer(t *testing.T, rule brain.Edge, local bool, annotations ...string) *Explainer {
	svc, slice := edgeService()
	svc.ExternalLocal = local
	objects := []model.Object{svc, slice}
	for i, annotation := range annotations {
		objects = append(objects, &model.Node{Name: "node-" + string('a'+rune(i)), Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)})}, Edge: annotation})
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "node-a", Edge: rule}})
	t.Cleanup(s.Close)
	sink := s.Source("test")
	sink.Update(objects, nil)
	sink.Complete()
	return New(Options{Store: s})
}

// The load balancer IP and the NodePort of edgeService.
const edgeLB, edgeNodePort = "192.0.2.100:80", "192.0.2.1:30080"

// TestEdge: the answer for a client outside names the nodes that its connection is handed over to, or why there is none.
func TestEdge(t *testing.T) {
	on, both := brain.Edge{Enabled: true}, []string{"v1,7635", "v1,7635"}
	for _, c := range []struct {
		what        string
		rule        brain.Edge
		local       bool
		annotations []string
		class       Class
		dst, want   string
	}{
		{"the edge", on, false, both, Outside, edgeLB,
			"Used: the connection is handed over to one of 2 nodes, whose answers go to the client directly: node node-a has 2 of 3, node node-b has 1 of 3"},
		{"a node port", on, false, both, Outside, edgeNodePort, "EdgeNoFrontend: connections to frontends of this kind are not handed over"},
		{"a cluster IP", on, false, both, Outside, "10.96.0.1:80", ""},
		{"a pod", on, false, both, Pod, edgeLB, ""},
		{"a node", on, false, both, Node, edgeLB, ""},
		{"no edge", brain.Edge{}, false, both[:1], Outside, edgeLB, ""},
		{"a node apart", on, false, []string{"v1,7635", ""}, Outside, edgeLB, "EdgeNodeApart: node node-b has endpoints and does not take part"},
		{"policy Local", on, true, both, Outside, edgeLB, "EdgePolicyLocal: externalTrafficPolicy Local keeps the client's address without it"},
	} {
		a := edgeExplainer(t, c.rule, c.local, c.annotations...).Explain(Connection{Class: c.class, Dst: netip.MustParseAddrPort(c.dst), Protocol: state.TCP})
		got := ""
		if i := slices.IndexFunc(a.Policies, func(p Policy) bool { return p.Name == "edge" }); i >= 0 {
			got = a.Policies[i].Value + ": " + a.Policies[i].Text
		}
		if got != c.want || a.HandsOver() != strings.HasPrefix(got, "Used") {
			t.Errorf("%s: %q\nwant %q", c.what, got, c.want)
		}
	}
}

// TestEdgeSlot: a running process adds the slot of a connection, or why its edge has none. Then the answer is as without the edge.
func TestEdgeSlot(t *testing.T) {
	x := edgeExplainer(t, brain.Edge{Enabled: true}, false, "v1,7635", "v1,7635")
	const direct = "way back   the node of the server sends its answers to the client directly, as coming from 192.0.2.100:80"
	for _, c := range []struct {
		what, from  string
		change      func(*Answer)
		want, never []string
		masqueraded bool
	}{
		{"by the state", "198.51.100.7:40000", func(*Answer) {}, []string{"198.51.100.7:40000 -> ", "the server sees 198.51.100.7, the client's own address", direct}, []string{"slot"}, false},
		{"a slot", "198.51.100.7:40000", func(a *Answer) {
			a.HandOver(&Edge{Slot: 417, Slots: 1021, Node: "node-b", Earlier: []string{"node-c", "node-d"}})
		}, []string{"  edge       slot 417 of 1021, node node-b (before: node-c, node-d); answers go from node-b directly to the client\n", direct}, nil, false},
		{"a slot without a history", "198.51.100.7:40000", func(a *Answer) { a.HandOver(&Edge{Slot: 0, Slots: 251, Node: "node-a"}) },
			[]string{"slot 0 of 251, node node-a; answers go from node-a directly", direct}, []string{"before"}, false},
		{"no port", "198.51.100.7", func(a *Answer) { a.HandOver(nil) }, []string{"note       the client's address and port choose the node: ask from IP:PORT for it", direct}, []string{"slot"}, false},
		{"a silent node", "outside", func(a *Answer) { a.Keep("node node-b does not answer") }, []string{
			"edge Left: the connection is not handed over now: node node-b does not answer", "the server sees an address of node node-a, such as 192.0.2.1, instead of the client's", "the server answers this node",
		}, []string{"slot", direct}, true},
	} {
		from, err := ParseFrom(c.from)
		to, toErr := ParseTo(edgeLB)
		answers, askErr := x.Ask(t.Context(), from, to)
		if err := errors.Join(err, toErr, askErr); err != nil || len(answers) != 1 || !answers[0].HandsOver() {
			t.Fatalf("%s: %d answers, %v", c.what, len(answers), err)
		}
		c.change(answers[0])
		var text strings.Builder
		if err := (Style{}).Write(&text, answers[0]); err != nil {
			t.Error(err)
		}
		for _, w := range c.want {
			if !strings.Contains(text.String(), w) {
				t.Errorf("%s: %q is not in\n%s", c.what, w, text.String())
			}
		}
		for _, n := range c.never {
			if strings.Contains(text.String(), n) {
				t.Errorf("%s: %q is in\n%s", c.what, n, text.String())
			}
		}
		for _, e := range answers[0].Endpoints {
			if e.Masqueraded != c.masqueraded {
				t.Errorf("%s: endpoint %v sees the node: %v", c.what, e.Addr, e.Masqueraded)
			}
		}
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
