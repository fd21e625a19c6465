package statelog

import "github.com/switchyard-net/switchyard/state"

// Limit is how many changes a log remembers by default. At some 80 bytes each they are 5 MiB at most. A consumer that is
// further behind gets the full state, which it could hardly apply slower than that many changes.
const Limit = 1 << 16

// Entry is an item of a [Ring].
type Entry interface {
	// At is the revision that the item belongs to.
	At() state.Revision
}

// Ring remembers what changed in which revision, up to a limit: it is filled by appending at first. It must not be copied.
type Ring[E Entry] struct {
	// Max is how many items are remembered.
	Max   int
	items []E
	next  int // where the oldest item is, once the ring is full
	// forgotten is the newest revision of which items may be missing.
	forgotten state.Revision
}

// Add remembers an item. Its revision is not before that of any other.
func (r *Ring[E]) Add(item E) {
	if len(r.items) < r.Max {
		r.items = append(r.items, item)
		return
	}
	r.forgotten = r.items[r.next].At()
	r.items[r.next] = item
	r.next = (r.next + 1) % r.Max
}

// Forget makes the ring know nothing of the changes up to a revision.
func (r *Ring[E]) Forget(until state.Revision) { r.forgotten = until }

// Since returns the items after a revision, newest first. ok is false if some may have been forgotten.
func (r *Ring[E]) Since(after state.Revision) (items []E, ok bool) {
	if after < r.forgotten {
		return nil, false
	}
	for i := range r.items {
		item := r.items[(r.next+len(r.items)-1-i)%len(r.items)]
		if item.At() <= after {
			break
		}
		items = append(items, item)
	}
	return items, true
}
