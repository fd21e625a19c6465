package plan_test

import (
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

// weighted returns a record whose route has these weights.
func weighted(refused uint32, weights ...uint16) *state.Service {
	p := web()
	route := state.Route{Verdict: state.Forward, Refused: refused}
	for i, w := range weights {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80)
		route.Endpoints = append(route.Endpoints, state.Endpoint{Addr: addr, Weight: w})
	}
	p.Internal = state.Traffic{Inside: route, Outside: route}
	p.External = state.Traffic{Inside: state.Route{Verdict: state.Drop}, Outside: state.Route{Verdict: state.Drop}}
	return &state.Service{Ports: []state.Port{p}}
}

// counted returns how many slots each endpoint of a route has.
func counted(t *testing.T, r *plan.Route) map[netip.AddrPort]int {
	t.Helper()
	got, n := map[netip.AddrPort]int{}, 0
	for i, e := range r.EachSlot() {
		if i != n {
			t.Fatalf("slot %d comes as number %d", i, n)
		}
		got[e.Addr]++
		n++
	}
	if n != r.Slots() {
		t.Fatalf("there are %d slots of %d", n, r.Slots())
	}
	return got
}

// TestSlotsByWeight: connections are shared by weight, up to 1% that go elsewhere, and the slots are bounded.
func TestSlotsByWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		weights, sum := make([]uint16, 1+rng.IntN(30)), 0.0
		for i := range weights {
			weights[i] = uint16(1 + rng.IntN(100))
			sum += float64(weights[i])
		}
		r := plan.Append(nil, weighted(0, weights...), &byCIDR)[0]
		off, n := 0.0, float64(r.Slots())
		got := counted(t, &r)
		for i, e := range r.Endpoints() {
			off += math.Abs(float64(got[e.Addr])/n-float64(weights[i])/sum) / 2
		}
		if off > 0.02 || r.Slots() > 256 || r.Slots() > 32*len(weights) {
			t.Errorf("weights %v: %d slots, %.1f%% of all connections go elsewhere", weights, r.Slots(), 100*off)
		}
	}
	for _, c := range []struct {
		weights []uint16
		want    int
	}{{[]uint16{3, 1}, 4}, {[]uint16{7, 7, 7}, 3}, {[]uint16{65535, 1}, 64}, {slices.Repeat([]uint16{9}, 300), 300}} {
		r := plan.Append(nil, weighted(0, c.weights...), &byCIDR)[0]
		if counted(t, &r); r.Slots() != c.want {
			t.Errorf("weights %v: %d slots, want %d", c.weights[:2], r.Slots(), c.want)
		}
	}
}

// TestManyWeightsAreLeftToTheBase: the slots would not have room for the weights.
func TestManyWeightsAreLeftToTheBase(t *testing.T) {
	if routes := plan.Append(nil, weighted(0, append(slices.Repeat([]uint16{9}, 256), 1)...), &byCIDR); len(routes) > 0 {
		t.Errorf("hooks take %d endpoints", len(routes[0].Endpoints()))
	}
}

// TestRefusedShareIsLeftToTheBase: hooks cannot refuse a connection.
func TestRefusedShareIsLeftToTheBase(t *testing.T) {
	if routes := plan.Append(nil, weighted(1, 2, 3), &byCIDR); len(routes) > 0 {
		t.Errorf("hooks take %+v", routes)
	}
}

// TestWithinKeepsWeights: while an endpoint goes, the others share by weight.
func TestWithinKeepsWeights(t *testing.T) {
	r, next := plan.Append(nil, weighted(0, 6, 3, 1), &byCIDR)[0], plan.Append(nil, weighted(0, 1, 1), &byCIDR)[0]
	within, fewer := r.Within(&next)
	got := counted(t, &within)
	if e := within.Endpoints(); !fewer || len(e) != 2 || got[e[0].Addr] != 2*got[e[1].Addr] {
		t.Errorf("the slots are %v", got)
	}
}
