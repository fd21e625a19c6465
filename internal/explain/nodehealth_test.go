package explain

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestNodeHealth: the answer names the nodes whose endpoints come last, with the number of these, and says if that is ignored.
func TestNodeHealth(t *testing.T) {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
	}
	slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range byte(5) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, i}), Ready: true, Serving: true, NodeName: "node-" + string('a'+rune(i%3))})
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "node-a", NodeHealth: brain.NodeHealth{Enabled: true, NotReadyAfter: time.Minute, IgnoreAbove: 70}}})
	defer s.Close()
	sink := s.Source("test")
	sink.Update([]model.Object{
		svc, slice, &model.Node{Name: "node-a"}, &model.Node{Name: "node-b", Health: model.NodeShuttingDown},
		&model.Node{Name: "node-c", Health: model.NodeSilent, HealthSince: time.Unix(1e9, 0)},
	}, nil)
	sink.Complete()
	explain := func() *Answer {
		return New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
	}
	a := explain()
	want := Policy{"nodeHealth", "node-b, node-c", "node-b is shutting down: its 2 endpoints come last; node-c has not been ready since 2001-09-09T01:46:40Z: its endpoint comes last"}
	if !slices.Contains(a.Policies, want) || a.Because != "the connection goes to one of 2 endpoints" {
		t.Errorf("%s, by the policies %v", a.Because, a.Policies)
	}
	if e := a.Endpoints[1]; e.Gets || e.Text != "its node is unready, while others are not" {
		t.Errorf("the endpoint on node-b is %+v", e)
	}
	sink.Update([]model.Object{&model.Node{Name: "node-a", Health: model.NodeNotReady}}, nil)
	a = explain()
	ignored := "no endpoint comes last because of its node: 3 of 3 nodes are not ready, which is more than nodeHealth.ignoreAbovePercent"
	if !slices.Contains(a.Notes, ignored) || slices.ContainsFunc(a.Policies, func(p Policy) bool { return p.Name == "nodeHealth" }) {
		t.Errorf("notes %v, policies %v", a.Notes, a.Policies)
	}
	var set []model.Object
	for i := range 40 {
		set = append(set, &model.Node{Name: fmt.Sprintf("other-%02d", i)})
		if i < 10 {
			set = append(set, &model.Node{Name: fmt.Sprintf("down-%02d", i), Health: model.NodeShuttingDown})
			slice = new(*slice)
			slice.Endpoints = append(slices.Clone(slice.Endpoints), model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 2, byte(i)}), Ready: true, NodeName: fmt.Sprintf("down-%02d", i)})
		}
	}
	sink.Update(append(set, slice), nil)
	a = explain()
	i := slices.IndexFunc(a.Policies, func(p Policy) bool { return p.Name == "nodeHealth" })
	if i < 0 || a.Policies[i].Value != "down-00, down-01, down-02, down-03, down-04, down-05, down-06, down-07" {
		t.Errorf("policies %v", a.Policies)
	}
}
