package store

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestExternalIPsOfTheNode: no service takes what a node needs for itself: where objects come from, the API server, its own interfaces.
func TestExternalIPsOfTheNode(t *testing.T) {
	addr, at := netip.MustParseAddr, netip.MustParseAddrPort
	victim := &model.Service{
		Name: state.ServiceName{Namespace: "tenant", Name: "a"}, ClusterIPs: []netip.Addr{addr("10.96.0.9")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 6443}},
		ExternalIPs: []netip.Addr{addr("192.0.2.1"), addr("192.0.2.2"), addr("192.0.2.3"), addr("192.0.2.4")},
	}
	slice := func(addr netip.Addr) *model.EndpointSlice {
		return &model.EndpointSlice{
			Namespace: "default", Name: "kubernetes", Service: "kubernetes", Family: state.IPv4,
			Ports: []model.EndpointPort{{Name: "https", Protocol: state.TCP, Port: 6443}}, Endpoints: []model.Endpoint{{Addr: addr, Ready: true, Serving: true}},
		}
	}
	kubernetes := &model.Service{
		Name: state.ServiceName{Namespace: "default", Name: "kubernetes"}, ClusterIPs: []netip.Addr{addr("10.96.0.1")},
		Ports: []model.ServicePort{{Name: "https", Protocol: state.TCP, Port: 443}},
	}
	for _, nodes := range []bool{false, true} { // whether the operator allows addresses of nodes
		cfg := brain.Config{NodeName: "n", NodeExternalIPs: nodes}
		s, all := New(Options{Brain: cfg}), NewCluster(ClusterOptions{Brain: cfg})
		defer s.Close()
		defer all.Close()
		for name, c := range map[string]struct {
			sink model.Sink
			own  func(Own)
			feed state.Feed
			// problems are its own.
			problems func() []error
		}{
			"store":   {s.Source("test"), s.SetOwn, s, s.Problems},
			"cluster": {all.Source("test"), all.SetOwn, all.Node("n"), all.Problems},
		} {
			routed := func() (external []string) {
				u, err := c.feed.Next(t.Context(), 0)
				if err != nil {
					t.Fatal(err)
				}
				for _, svc := range u.Changed {
					for _, p := range svc.Ports {
						for _, f := range p.Frontends {
							if f.Kind == state.ExternalIP {
								external = append(external, strings.TrimPrefix(f.Addr.String(), "192.0.2."))
							}
						}
					}
				}
				slices.Sort(external)
				return external
			}
			want := func(what, withoutNodes, withNodes string) {
				t.Helper()
				if got, want := strings.Join(routed(), " "), map[bool]string{false: withoutNodes, true: withNodes}[nodes]; got != want {
					t.Errorf("%s, addresses of nodes allowed: %v; %s: externalIPs %s are routed, want %s", name, nodes, what, got, want)
				}
			}
			c.own(Own{Upstream: []netip.AddrPort{at("192.0.2.1:6443")}, Interfaces: []netip.Addr{addr("192.0.2.2")}})
			c.sink.Update([]model.Object{victim, kubernetes, slice(addr("192.0.2.3"))}, nil)
			c.sink.Complete()
			want("at first", "4", "2 4")
			if text := c.problems()[0].Error(); !strings.Contains(text, "192.0.2.1 is the address to which this process connects for the cluster's objects, which listens on TCP port 6443") {
				t.Errorf("%s: %s", name, text)
			}
			c.own(Own{Upstream: []netip.AddrPort{at("192.0.2.4:6443"), at("192.0.2.1:443")}})
			want("it connects elsewhere", "2", "1 2")
			c.sink.Update([]model.Object{slice(addr("192.0.2.2"))}, nil)
			want("another API server", "3", "1 3")
			c.sink.Update(nil, []model.Ref{{Kind: model.KindEndpointSlice, Namespace: "default", Name: "kubernetes"}})
			want("the API servers are not known any longer, and stay", "3", "1 3")
			c.own(Own{})
			want("it is nobody's", "1 3 4", "1 3 4")
		}
	}
}
