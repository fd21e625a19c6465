package revlog

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// item is a change: its revision, and its number.
type item struct {
	revision state.Revision
	number   int
}

// TestRingIsASuffix compares rings of all sizes with a list of all that was added.
func TestRingIsASuffix(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := Ring[item]{Max: 1 + rng.IntN(300)}
		var all []item
		revision := state.Revision(1)
		for range rng.IntN(1000) {
			revision += state.Revision(rng.IntN(2))
			all = append(all, item{revision, len(all)})
			r.Add(revision, all[len(all)-1])
		}
		for after := range revision + 2 {
			var want []item
			for _, e := range slices.Backward(all) {
				if e.revision > after {
					want = append(want, e)
				}
			}
			items, ok := r.Since(after)
			if ok != r.Knows(after) || len(want) > r.Max && ok {
				t.Fatalf("seed %d: %d items after %d are known to a ring of %d", seed, len(want), after, r.Max)
			}
			// With the oldest chunk, a few more items than necessary may be forgotten, and the rest of its last
			// revision.
			if spare := r.Max - r.Max/chunks; !ok && len(want) <= spare && len(all) <= spare {
				t.Fatalf("seed %d: %d items after %d are not known to a ring of %d", seed, len(want), after, r.Max)
			}
			if ok && !slices.Equal(slices.Collect(items), want) {
				t.Fatalf("seed %d: after %d there are %v, want %v", seed, after, slices.Collect(items), want)
			}
		}
	}
}

// TestRingIsReadWhileItGrows: readers of existing items need no lock, and see no other items.
func TestRingIsReadWhileItGrows(t *testing.T) {
	r := Ring[item]{Max: 1000}
	for i := range 900 {
		r.Add(state.Revision(i+1), item{state.Revision(i + 1), i})
	}
	items, _ := r.Since(100)
	done := make(chan int)
	go func() {
		n := 0
		for range 20 {
			for e := range items {
				n++
				if e.revision <= 100 || e.revision > 900 {
					t.Errorf("it saw %v", e)
				}
			}
		}
		done <- n
	}()
	for i := 900; i < 5000; i++ {
		r.Add(state.Revision(i+1), item{state.Revision(i + 1), i})
	}
	if n := <-done; n != 20*800 {
		t.Errorf("it saw %d items, want 16000", n)
	}
}

// TestSlowReadersShareMemory: readers that are far behind share the memory of the updates that they have missed.
func TestSlowReadersShareMemory(t *testing.T) {
	r := Ring[item]{Max: Limit}
	for i := range Limit {
		r.Add(state.Revision(i+1), item{state.Revision(i + 1), i})
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const consumers = 100
	for range consumers {
		if _, ok := r.Since(1); !ok {
			t.Fatal("they are not known")
		}
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / consumers; each > 8<<10 {
		t.Errorf("each takes %d bytes", each)
	}
}
