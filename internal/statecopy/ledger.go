package statecopy

import (
	"sync"

	"github.com/switchyard-net/switchyard/state"
)

// Ledger remembers the origin's position for each revision of a replica, so that a dataplane's reports about the
// replica's revisions can be forwarded to the origin. P is the origin's position type. The zero Ledger is empty. All
// methods may be called concurrently.
type Ledger[P any] struct {
	mu      sync.Mutex
	entries []entry[P] // by revision, growing
}

type entry[P any] struct {
	revision state.Revision
	position P
}

// maxEntries bounds a ledger that is never read. The oldest are forgotten.
const maxEntries = 1 << 10

// Note reports whether the replica stands for position as of revision.
func (l *Ledger[P]) Note(revision state.Revision, position P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n := len(l.entries); n > 0 && l.entries[n-1].revision == revision {
		l.entries[n-1].position = position // an update that made no difference
		return
	}
	if len(l.entries) == maxEntries {
		l.entries = append(l.entries[:0], l.entries[maxEntries/2:]...)
	}
	l.entries = append(l.entries, entry[P]{revision, position})
}

// At returns the latest position that a dataplane shows which has applied revision, and forgets those before it. It returns
// the zero P if there is none.
func (l *Ledger[P]) At(revision state.Revision) (position P) {
	l.mu.Lock()
	defer l.mu.Unlock()
	last := -1
	for i, e := range l.entries {
		if e.revision > revision {
			break
		}
		last, position = i, e.position
	}
	if last > 0 {
		l.entries = append(l.entries[:0], l.entries[last:]...)
	}
	return position
}
