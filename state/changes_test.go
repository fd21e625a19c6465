package state_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// TestChangesOf compares records by endpoints that come and go, and by everything else that may change.
func TestChangesOf(t *testing.T) {
	route := func(port uint16, hosts ...byte) (r state.Route) {
		r.Verdict = state.Reject
		for _, h := range hosts {
			r.Verdict = state.Forward
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, h}), port)})
		}
		return r
	}
	port := func(name string, r state.Route) state.Port {
		return state.Port{
			Name: name, Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		}
	}
	service := func(ports ...state.Port) *state.Service { return &state.Service{Ports: ports} }
	with := func(p state.Port, change func(*state.Port)) state.Port {
		p.Frontends = slices.Clone(p.Frontends)
		change(&p)
		return p
	}
	a := port("a", route(80, 1, 2))
	for _, c := range []struct {
		name          string
		before, after *state.Service
		want          string // added, removed, others
	}{
		{"nothing", service(a), service(port("a", route(80, 1, 2))), "[] [] []"},
		{"no record", nil, nil, "[] [] []"},
		{"a new Service", nil, service(a, port("b", route(81, 2, 3))), "[10.1.0.1 10.1.0.2 10.1.0.3] [] []"},
		{"a Service that goes", service(a), nil, "[] [10.1.0.1 10.1.0.2] []"},
		{"one for another", service(a), service(port("a", route(80, 2, 3))), "[10.1.0.3] [10.1.0.1] []"},
		{"the last one goes", service(a), service(port("a", route(80))), "[] [10.1.0.1 10.1.0.2] []"},
		{"two ports count once", service(a, port("b", route(81, 1, 2))), service(port("a", route(80, 2)), port("b", route(81, 2))), "[] [10.1.0.1] []"},
		{"another port still has it", service(a, port("b", route(81, 1, 2))), service(a, port("b", route(81, 2))), "[] [] [routes]"},
		{"another port already had it", service(a, port("b", route(81, 2))), service(a, port("b", route(81, 1, 2))), "[] [] [routes]"},
		{"a port is renamed", service(a), service(port("b", route(80, 1, 2))), "[] [] [ports]"},
		{"a port comes between", service(a, port("c", route(82, 5))), service(a, port("b", route(81, 4)), port("c", route(82, 5))), "[10.1.0.4] [] [ports]"},
		{"endpoints have another port", service(a), service(port("a", route(8080, 1, 2))), "[] [] [routes]"},
		{"an endpoint is local", service(a), service(with(a, func(p *state.Port) {
			p.Internal.Inside = route(80, 1, 2)
			p.Internal.Inside.Endpoints[0].Local = true
		})), "[] [] [routes]"},
		{"only one kind of client reaches it", service(a), service(with(a, func(p *state.Port) { p.Internal.Outside = route(80, 2, 9) })), "[10.1.0.9] [] []"},
		{"external traffic", service(a), service(with(a, func(p *state.Port) { p.External.Outside = route(80, 7) })), "[10.1.0.7] [] []"},
		{"a verdict", service(port("a", route(80))), service(with(a, func(p *state.Port) {
			p.Internal = state.Traffic{Inside: state.Route{Verdict: state.Drop}, Outside: route(80)}
		})), "[] [] [routes]"},
		{"a lingering endpoint", service(a), service(with(a, func(p *state.Port) { p.Lingering = route(80, 3).Endpoints })), "[] [] [routes]"},
		{"a frontend", service(a), service(with(a, func(p *state.Port) { p.Frontends[0].Port = 81 })), "[] [] [frontends]"},
		{"the share of a node", service(with(a, func(p *state.Port) { p.Edge = &state.Edge{Shares: []state.EdgeShare{{Node: 1, Weight: 1}}} })), service(with(a, func(p *state.Port) {
			p.Edge = &state.Edge{Shares: []state.EdgeShare{{Node: 1, Weight: 2}}}
		})), "[] [] [edge]"},
		{"an edge", service(a), service(with(a, func(p *state.Port) { p.Edge = &state.Edge{} })), "[] [] [edge]"},
		{"affinity", service(a), service(with(a, func(p *state.Port) { p.Affinity = time.Second })), "[] [] [affinity]"},
		{"the health check", service(a), &state.Service{Ports: []state.Port{a}, HealthCheck: state.HealthCheck{Port: 1}}, "[] [] [health check]"},
		{"several things", service(a), service(with(port("a", route(80, 1, 2, 3)), func(p *state.Port) {
			p.Affinity, p.Frontends[0].Restricted = time.Second, true
		})), "[10.1.0.3] [] [frontends affinity]"},
	} {
		got := state.ChangesOf(c.before, c.after)
		if s := fmt.Sprint(got.Added, got.Removed, got.Others); s != c.want {
			t.Errorf("%s: got %s, want %s", c.name, s, c.want)
		}
		if got.IsEmpty() != (c.want == "[] [] []") {
			t.Errorf("%s: IsEmpty is %v", c.name, got.IsEmpty())
		}
	}
}

// TestChangesOfSeesEveryField: records of a Service that differ in any field have changes.
func TestChangesOfSeesEveryField(t *testing.T) {
	testEqual(t, func(a, b *state.Service) bool {
		c := state.ChangesOf(a, b)
		return a.Name == b.Name && c.IsEmpty()
	})
}

// TestChangesOfLargeRoutes compares routes of many endpoints, of which one is in two ports.
func TestChangesOfLargeRoutes(t *testing.T) {
	record := func(first, second []int) *state.Service {
		s := &state.Service{}
		for i, hosts := range [][]int{first, second} {
			r := state.Route{Verdict: state.Forward}
			for _, h := range hosts {
				r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr(h), 80)})
			}
			s.Ports = append(s.Ports, state.Port{Name: fmt.Sprint(i), Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r}})
		}
		return s
	}
	var all []int
	for i := range 100 {
		all = append(all, i)
	}
	got := state.ChangesOf(record(all, all[:99]), record(all[1:], append(slices.Clone(all[:50]), 200)))
	if fmt.Sprint(got.Added, got.Removed, got.Others) != "[10.0.0.200] [] []" {
		t.Errorf("got %v", got)
	}
	got = state.ChangesOf(record(all, all[1:2]), record(all[1:], all[1:2]))
	if fmt.Sprint(got.Added, got.Removed, got.Others) != "[] [10.0.0.0] []" {
		t.Errorf("got %v", got)
	}
}

// BenchmarkChangesOf: one endpoint of a record with this many endpoints is replaced.
func BenchmarkChangesOf(b *testing.B) {
	for _, n := range []int{100, 10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			record := func(without int) *state.Service {
				r := state.Route{Verdict: state.Forward}
				for i := range n {
					if i != without {
						r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)})
					}
				}
				return &state.Service{Ports: []state.Port{{Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r}}}}
			}
			before, after := record(1), record(n/2)
			for b.Loop() {
				if c := state.ChangesOf(before, after); len(c.Added) != 1 || len(c.Removed) != 1 {
					b.Fatal(c)
				}
			}
		})
	}
}
