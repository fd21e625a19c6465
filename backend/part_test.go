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
