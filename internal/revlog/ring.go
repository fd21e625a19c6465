package revlog

import (
	"iter"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Limit is how many changes a log remembers by default. At some 80 bytes each they are 5 MiB at most. A consumer that is
// further behind gets the full state, which it could hardly apply slower than that many changes.
const Limit = 1 << 16

// chunks is into how many pieces a full log is cut: it forgets one of them at a time.
const chunks = 64

// Ring remembers the changes of each revision, up to a limit. It must not be copied.
//
// Changes are never overwritten, so that any number of readers need no copy and no lock.
type Ring[C any] struct {
	// Max is how many changes are remembered at most. It is set before the first one is added.
	Max    int
	chunks [][]logged[C] // the oldest first
	// forgotten is the newest revision whose changes may be missing.
	forgotten state.Revision
}

type logged[C any] struct {
	revision state.Revision
	change   C
}

// Add remembers a change of a revision, which is not before the revision of any other change.
func (r *Ring[C]) Add(revision state.Revision, change C) {
	size := max(1, r.Max/chunks)
	last := len(r.chunks) - 1
	if last < 0 || len(r.chunks[last]) == size {
		if (len(r.chunks)+1)*size > r.Max && last >= 0 {
			r.forgotten = r.chunks[0][size-1].revision
			r.chunks = slices.Delete(r.chunks, 0, 1)
		}
		r.chunks = append(r.chunks, nil)
		last = len(r.chunks) - 1
	}
	r.chunks[last] = append(r.chunks[last], logged[C]{revision, change})
}

// Forget makes the ring know nothing of the changes up to a revision.
func (r *Ring[C]) Forget(until state.Revision) { r.forgotten = until }

// Knows reports whether all changes after a revision are remembered.
func (r *Ring[C]) Knows(after state.Revision) bool { return after >= r.forgotten }

// Since returns the changes after a revision, newest first. They can be looked at, more than once, while others are added. ok is
// false if some may have been forgotten.
func (r *Ring[C]) Since(after state.Revision) (changes iter.Seq[C], ok bool) {
	if !r.Knows(after) {
		return nil, false
	}
	first := len(r.chunks)
	for first > 0 && r.chunks[first-1][len(r.chunks[first-1])-1].revision > after {
		first--
	}
	seen := slices.Clone(r.chunks[first:])
	return func(yield func(C) bool) {
		for _, chunk := range slices.Backward(seen) {
			for _, item := range slices.Backward(chunk) {
				if item.revision <= after || !yield(item.change) {
					return
				}
			}
		}
	}, true
}
