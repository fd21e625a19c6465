package revlog

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// entry is an item: the revision, and its number within it.
type entry struct {
	revision state.Revision
	number   int
}

func (e entry) At() state.Revision { return e.revision }

// TestRingIsASuffix compares rings of all sizes with a list of all that was added.
func TestRingIsASuffix(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		r := Ring[entry]{Max: 1 + rng.IntN(300)}
		var all []entry
		revision := state.Revision(1)
		for range rng.IntN(1000) {
			revision += state.Revision(rng.IntN(2))
			all = append(all, entry{revision, len(all)})
			r.Add(all[len(all)-1])
		}
		for after := range revision + 2 {
			var want []entry
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
	r := Ring[entry]{Max: 1000}
	for i := range 900 {
		r.Add(entry{state.Revision(i + 1), i})
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
		r.Add(entry{state.Revision(i + 1), i})
	}
	if n := <-done; n != 20*800 {
		t.Errorf("it saw %d items, want 16000", n)
	}
}

// TestManyWhoAreFarBehind: readers that are far behind share the memory of the updates that they have missed.
func TestManyWhoAreFarBehind(t *testing.T) {
	r := Ring[entry]{Max: Limit}
	for i := range Limit {
		r.Add(entry{state.Revision(i + 1), i})
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
