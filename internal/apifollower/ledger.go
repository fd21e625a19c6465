package apifollower

import (
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/state"
)

// ledger remembers the server's position for each of the follower's revisions, so that a dataplane's reports about these
// revisions can be forwarded to the server. The zero ledger is empty.
type ledger struct{ entries []entry } // by revision, growing

type entry struct {
	revision state.Revision
	position client.Position
}

// maxEntries bounds a ledger that is never read. The oldest are forgotten.
const maxEntries = 1 << 10

// note records the position of a revision.
func (l *ledger) note(revision state.Revision, position client.Position) {
	if n := len(l.entries); n > 0 && l.entries[n-1].revision == revision {
		l.entries[n-1].position = position // an update that made no difference
		return
	}
	if len(l.entries) == maxEntries {
		l.entries = append(l.entries[:0], l.entries[maxEntries/2:]...)
	}
	l.entries = append(l.entries, entry{revision, position})
}

// at returns the latest position that a dataplane shows which has applied revision, and forgets those before it. It returns
// the zero position if there is none.
func (l *ledger) at(revision state.Revision) (position client.Position) {
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
