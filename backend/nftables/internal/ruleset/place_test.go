package ruleset

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func TestClassOf(t *testing.T) {
	for _, c := range []struct{ n, want uint32 }{
		{0, 0}, {1, 0}, {2, 2}, {3, 3}, {15, 15}, {16, 16}, {17, 24}, {24, 24}, {25, 32}, {32, 32}, {33, 48}, {48, 48},
		{49, 64}, {96, 96}, {97, 128}, {8192, 8192}, {8193, 12288}, {12288, 12288}, {12289, 16384}, {16384, 16384},
	} {
		if got := classOf(int(c.n)); got != c.want {
			t.Errorf("classOf(%d) = %d, want %d", c.n, got, c.want)
		}
	}
	for n := 2; n <= maxEndpoints; n++ {
		size := classOf(n)
		if n <= exactClass && int(size) != n || int(size) < n || int(size)*2 > n*3 {
			t.Fatalf("%d endpoints get %d slots: more than a third of them are empty, or too few", n, size)
		}
	}
	if last := classes[len(classes)-1]; last != maxEndpoints || maxEndpoints > 1<<16 {
		t.Errorf("the largest class is %d, maxEndpoints %d", last, maxEndpoints)
	}
}

func numbered(n int) state.Endpoint {
	return state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(n >> 8), byte(n)}), 80)}
}

// checkPlaced returns what is wrong with a placement that follows old.
func checkPlaced(old []state.Endpoint, targets []target, placed []state.Endpoint) error {
	total := 0
	want := map[state.Endpoint]int{}
	for _, t := range targets {
		total += t.weight
		want[t.endpoint] = t.weight
	}
	size := 0
	switch {
	case total == 1:
		size = 1
	case total > 1:
		size = int(classOf(total))
	}
	if len(placed) != size {
		return fmt.Errorf("%d slots, want %d", len(placed), size)
	}
	got := map[state.Endpoint]int{}
	for _, e := range placed {
		if e != (state.Endpoint{}) {
			got[e]++
		}
	}
	for e, n := range want {
		if got[e] != n {
			return fmt.Errorf("%v has %d slots, want %d", e.Addr, got[e], n)
		}
	}
	if len(got) != len(want) {
		return fmt.Errorf("%d endpoints in the slots, want %d", len(got), len(want))
	}
	if size > 0 && !placed[0].Addr.IsValid() {
		return fmt.Errorf("slot 0 is empty")
	}
	return checkKept(old, want, placed)
}

// checkKept checks that as many slots as possible are as before. Of each endpoint, the lesser of its weight and of the slots that
// it had within the new size could stay; one of them all may have had to move into slot 0.
func checkKept(old []state.Endpoint, want map[state.Endpoint]int, placed []state.Endpoint) error {
	had := map[state.Endpoint]int{}
	for i, e := range old {
		if i < len(placed) && e.Addr.IsValid() {
			had[e]++
		}
	}
	could, total := 0, 0
	for e, n := range want {
		could += min(n, had[e])
		total += n
	}
	kept := 0
	for i, e := range placed {
		if i < len(old) && e.Addr.IsValid() && e == old[i] {
			kept++
		}
	}
	// Nobody new comes who could take slot 0, and who had it does not stay there.
	if could == total && total > 0 && kept < could && placed[0] != first(old) {
		could--
	}
	if kept < could {
		return fmt.Errorf("%d slots are as before, could be %d", kept, could)
	}
	return nil
}

func first(slots []state.Endpoint) state.Endpoint {
	if len(slots) == 0 {
		return state.Endpoint{}
	}
	return slots[0]
}

// TestPlaceSequences changes targets again and again: one comes, one goes, weights change, or all at once.
func TestPlaceSequences(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 0))
		limit := []int{3, 20, 40, 300}[rng.IntN(4)]
		weighted := rng.IntN(2) == 0
		weights := map[int]int{}
		var old []state.Endpoint
		for step := range 40 {
			for range 1 + rng.IntN(1+limit/4*rng.IntN(2)) {
				n := rng.IntN(limit)
				switch _, exists := weights[n]; {
				case exists && rng.IntN(3) > 0:
					delete(weights, n)
				case weighted:
					weights[n] = 1 + rng.IntN(5)
				default:
					weights[n] = 1
				}
			}
			if rng.IntN(20) == 0 {
				clear(weights)
			}
			var targets []target
			for n := range limit {
				if w := weights[n]; w > 0 {
					targets = append(targets, target{numbered(n), w})
				}
			}
			before := slices.Clone(old)
			placed := place(old, targets)
			if !slices.Equal(before, old) {
				t.Fatalf("seed %d step %d: place changed its argument", seed, step)
			}
			if err := checkPlaced(old, targets, placed); err != nil {
				t.Fatalf("seed %d step %d: %v\nold     %v\ntargets %v\nplaced  %v", seed, step, err, old, targets, placed)
			}
			if again := place(old, targets); !slices.Equal(again, placed) {
				t.Fatalf("seed %d step %d: place is not deterministic", seed, step)
			}
			if same := place(placed, targets); !slices.Equal(same, placed) {
				t.Fatalf("seed %d step %d: placing the same again moves slots", seed, step)
			}
			old = placed
		}
	}
}

// TestPlaceRoute does the same for routes, where the result may be the route's own memory.
func TestPlaceRoute(t *testing.T) {
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		limit := []int{2, 4, 18, 60}[rng.IntN(4)]
		in := make([]bool, limit)
		var old []state.Endpoint
		for step := range 40 {
			for range 1 + rng.IntN(3) {
				n := rng.IntN(limit)
				in[n] = !in[n]
			}
			var r state.Route
			var targets []target
			for n, ok := range in {
				if ok {
					r.Endpoints = append(r.Endpoints, numbered(n))
					targets = append(targets, target{numbered(n), 1})
				}
			}
			endpoints, before := slices.Clone(r.Endpoints), slices.Clone(old)
			placed := placeRoute(old, &r)
			if !slices.Equal(endpoints, r.Endpoints) || !slices.Equal(before, old) {
				t.Fatalf("seed %d step %d: placeRoute changed its arguments", seed, step)
			}
			if err := checkPlaced(old, targets, placed); err != nil {
				t.Fatalf("seed %d step %d: %v\nold    %v\nroute  %v\nplaced %v", seed, step, err, old, r.Endpoints, placed)
			}
			old = placed
		}
	}
}

// TestPlaceBoundaries grows and shrinks over every class boundary.
func TestPlaceBoundaries(t *testing.T) {
	sizes := []int{0, 1, 2, 1, 0, 2, 16, 17, 16, 17, 24, 25, 24, 48, 49, 1, 33, 0, 16384, 16383, 12289, 12288, 2, 1}
	var old []state.Endpoint
	for _, n := range sizes {
		var r state.Route
		var targets []target
		for i := range n {
			r.Endpoints = append(r.Endpoints, numbered(i))
			targets = append(targets, target{numbered(i), 1})
		}
		placed := placeRoute(old, &r)
		if err := checkPlaced(old, targets, placed); err != nil {
			t.Errorf("from %d slots to %d endpoints: %v", len(old), n, err)
		}
		old = placed
	}
}
