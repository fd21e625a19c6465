package backend

import (
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// TestPartsKeepWeights: a route on the way between two versions is weighted as a whole or not at all, and no weight is lost.
func TestPartsKeepWeights(t *testing.T) {
	route := func(from, n int, weight uint16, refused uint32) *state.Route {
		r := &state.Route{Verdict: state.Forward, Refused: refused}
		for i := range n {
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(from + i)}), 80), Weight: weight})
		}
		return r
	}
	even, weighted, refusing := route(1, 20, 0, 0), route(11, 20, 5, 0), route(11, 20, 5, 100)
	for _, c := range []struct{ from, to *state.Route }{{even, weighted}, {weighted, even}, {weighted, refusing}, {refusing, even}, {even, refusing}} {
		for n := range 40 {
			mixed, moved := mixRoutes(c.from, c.to, n)
			with := 0
			for _, e := range mixed.Endpoints {
				if e.Weight != 0 {
					with++
				}
			}
			if moved > n || with != 0 && with != len(mixed.Endpoints) || mixed.Refused != 0 && with == 0 {
				t.Fatalf("%d of %d moved: %d of %d endpoints have weights, %d is refused", moved, n, with, len(mixed.Endpoints), mixed.Refused)
			}
		}
		if mixed, _ := mixRoutes(c.from, c.to, 100); !mixed.Equal(c.to) {
			t.Errorf("the last part is %+v, want %+v", mixed, c.to)
		}
	}
}

// TestPartsOfWeightsEnd changes weights of all endpoints, a few in each step. The way from one route to another has an end, also if one of them is even.
func TestPartsOfWeightsEnd(t *testing.T) {
	const endpoints, most = 10, 3
	port := func(refused uint32, weights ...uint16) *state.Port {
		r := state.Route{Verdict: state.Forward, Refused: refused}
		for i := range endpoints {
			w := weights[i%len(weights)]
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80), Weight: w})
		}
		return &state.Port{Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}}}
	}
	ports := []*state.Port{port(0, 0), port(0, 3), port(0, 1, 5), port(0, 5, 1), port(7, 1), port(7, 2, 3)}
	for i, from := range ports {
		for j, to := range ports {
			p := portPair{from, to}
			for steps := 0; !p.from.Equal(to); steps++ {
				if steps > endpoints {
					t.Fatalf("from route %d to %d: after %d steps, the route is still %+v", i, j, steps, p.from.Internal.Inside)
				}
				p.from, _ = p.step(&moving{}, most)
			}
		}
	}
}

// TestPartsOfEdges: a change of an edge alone is a change. On the way to a port with an edge, the port has one only while the edge takes a frontend.
func TestPartsOfEdges(t *testing.T) {
	const most = 3
	port := func(edge *state.Edge, kinds ...state.FrontendKind) *state.Port {
		p := &state.Port{Protocol: state.TCP, Family: state.IPv4, Edge: edge}
		r := state.Route{Verdict: state.Forward}
		for i := range 10 {
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(len(kinds)), byte(i)}), 80)})
		}
		for i, k := range kinds {
			*p.Traffic(k) = state.Traffic{Inside: r, Outside: r}
			p.Frontends = append(p.Frontends, state.Frontend{Kind: k, Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), Port: 80})
		}
		return p
	}
	drop := &state.Edge{Local: state.Route{Verdict: state.Drop}}
	shared := &state.Edge{Local: drop.Local, Shares: []state.EdgeShare{{Node: 1, Weight: 1}}, Except: state.KindsOf(state.ExternalIP)}
	ports := []*state.Port{
		port(nil, state.ClusterIP), port(nil, state.ClusterIP, state.LoadBalancer), port(drop, state.ClusterIP, state.LoadBalancer), port(shared, state.ClusterIP, state.LoadBalancer),
		port(drop, state.ClusterIP, state.ExternalIP), port(shared, state.ClusterIP, state.ExternalIP, state.LoadBalancer), port(drop, state.LoadBalancer),
	}
	for i, from := range ports {
		for j, to := range ports {
			p := portPair{from, to}
			for steps := 0; !p.from.Equal(to); steps++ {
				if steps > 100 {
					t.Fatalf("from port %d to %d: after %d steps, it is still %+v", i, j, steps, p.from)
				}
				p.from, _ = p.step(&moving{}, most)
				if p.from.Edge != nil && !p.from.Edge.TakesOneOf(p.from.Frontends) {
					t.Fatalf("from port %d to %d: after %d steps, an edge takes no frontend: %+v", i, j, steps, p.from)
				}
			}
		}
	}
	with := *ports[1]
	with.Edge = drop
	before, after := &state.Service{Ports: []state.Port{*ports[1]}}, &state.Service{Ports: []state.Port{with}}
	for _, c := range [][2]*state.Service{{before, after}, {after, before}} {
		if next, _, _, done := part(c[0], c[1], &moving{service: &want{}}, most, 0); !done || !next.Equal(c[1]) || (&portPair{&c[0].Ports[0], &c[1].Ports[0]}).cost() == 0 {
			t.Errorf("after a change of the edge alone, the record is %+v", next)
		}
	}
}

// TestWeightedEntries: a route with weights takes about as many entries as a dataplane gives it slots, and many endpoints take one each.
func TestWeightedEntries(t *testing.T) {
	port := func(n int, weight uint16, affinity time.Duration) *state.Port {
		r := state.Route{Verdict: state.Forward}
		for i := range n {
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80), Weight: weight})
		}
		return &state.Port{Internal: state.Traffic{Inside: r, Outside: r}, Affinity: affinity}
	}
	for _, c := range []struct {
		endpoints int
		weight    uint16
		affinity  time.Duration
		want      int
	}{{2, 0, 0, 3}, {2, 1, 0, 257}, {20, 7, 0, 241}, {20, 7, time.Hour, 261}, {1000, 7, 0, 1001}} {
		if got := entriesEach(port(c.endpoints, c.weight, c.affinity)); got != c.want {
			t.Errorf("%+v: a frontend takes %d entries", c, got)
		}
	}
}

// TestPartsOfTheEdge changes a port with many endpoints in the edge, a few in each step. Each step has endpoints of one version or the other, and the way has an
// end. Only a new frontend comes with all its endpoints.
func TestPartsOfTheEdge(t *testing.T) {
	const most = 20
	route := func(from, n int) state.Route {
		r := state.Route{Verdict: state.Drop}
		for i := range n {
			r.Verdict = state.Forward
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(from + i)}), 80), Local: true})
		}
		return r
	}
	port := func(edge *state.Edge, frontends ...state.Frontend) *state.Port {
		r := route(0, 3)
		p := &state.Port{Protocol: state.TCP, Family: state.IPv4, Edge: edge, Frontends: frontends}
		p.Internal = state.Traffic{Inside: r, Outside: r}
		if len(frontends) > 1 {
			p.External = state.Traffic{Inside: r, Outside: r}
		}
		return p
	}
	inner := state.Frontend{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	outer := state.Frontend{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("203.0.113.1"), Port: 80}
	shares := []state.EdgeShare{{Node: 1, Weight: 2}}
	ports := []*state.Port{
		port(nil, inner), port(nil, inner, outer), port(&state.Edge{Local: route(0, 0)}, inner, outer), port(&state.Edge{Local: route(0, 100)}, inner, outer),
		port(&state.Edge{Local: route(50, 100), Shares: shares}, inner, outer), port(&state.Edge{Local: route(50, 100)}, inner, outer),
	}
	locals := func(p *state.Port) map[state.Endpoint]bool {
		has := map[state.Endpoint]bool{}
		for _, e := range edgeRoute(p).Endpoints {
			has[e] = true
		}
		return has
	}
	for i, from := range ports {
		for j, to := range ports {
			p := portPair{from, to}
			was, is := locals(from), locals(to)
			for steps := 0; !p.from.Equal(to); steps++ {
				before, frontends := locals(p.from), len(p.from.Frontends)
				p.from, _ = p.step(&moving{}, most)
				come := 0
				for e := range locals(p.from) {
					if !was[e] && !is[e] {
						t.Fatalf("port %d to %d: endpoint %v is of neither", i, j, e)
					}
					if !before[e] {
						come++
					}
				}
				if come > most && len(p.from.Frontends) == frontends || steps > 30 {
					t.Fatalf("port %d to %d: step %d has %d more endpoints in the edge: %+v", i, j, steps, come, p.from)
				}
			}
		}
	}
	if got := entriesEach(ports[3]); got != 104 {
		t.Errorf("a frontend takes %d entries", got)
	}
}
