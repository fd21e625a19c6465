package revlog

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// Versions of a map, each a clone of the one before with some changes, agree with plain maps, the old ones after later changes too.
func TestMapVersions(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	type version struct {
		got  Map[state.ServiceName, int]
		want map[state.ServiceName]int
	}
	versions := []version{{want: map[state.ServiceName]int{}}}
	for n := range 300 {
		last := versions[len(versions)-1]
		next := version{last.got.Clone(), maps.Clone(last.want)}
		for range rng.IntN(40) {
			name := state.ServiceName{Namespace: fmt.Sprint(rng.IntN(3)), Name: fmt.Sprint(rng.IntN(200))}
			if rng.IntN(3) == 0 {
				next.got.Delete(name)
				delete(next.want, name)
			} else {
				next.got.Set(name, n)
				next.want[name] = n
			}
		}
		versions = append(versions, next)
	}
	for i, v := range versions {
		names := slices.SortedFunc(maps.Keys(v.want), state.ServiceName.Compare)
		var want []int
		for _, name := range names {
			want = append(want, v.want[name])
			if got := v.got.Get(name); got != v.want[name] {
				t.Fatalf("version %d: %v is %d, want %d", i, name, got, v.want[name])
			}
		}
		if got := slices.Collect(v.got.Values()); !slices.Equal(got, want) || v.got.Len() != len(want) {
			t.Fatalf("version %d: values %v, want %v", i, got, want)
		}
		if got := v.got.Get(state.ServiceName{Name: "none"}); got != 0 {
			t.Fatalf("version %d: an absent service has the value %d", i, got)
		}
	}
}

// Readers of a version are not disturbed by clones of it and changes to them; the race detector watches.
func TestMapIsReadWhileItIsCloned(t *testing.T) {
	m := Map[state.ServiceName, int]{}.Clone()
	for i := range 1000 {
		m.Set(state.ServiceName{Name: fmt.Sprint(i)}, i)
	}
	done := make(chan int)
	go func() {
		sum := 0
		for range 50 {
			for v := range m.Values() {
				sum += v
			}
		}
		done <- sum
	}()
	for i := range 200 {
		next := m.Clone()
		next.Set(state.ServiceName{Name: fmt.Sprint(i)}, -1)
		next.Delete(state.ServiceName{Name: fmt.Sprint(i + 1)})
	}
	if sum := <-done; sum != 50*999*1000/2 {
		t.Errorf("the readers' sum is %d", sum)
	}
}
