package store

import (
	"context"
	"slices"
	"sync"
	"time"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/switchyard-net/switchyard/state"
)

// change is a service's new record, nil if the service no longer exists.
type change struct {
	name    state.ServiceName
	record  *state.Service
	trigger time.Time // what led to it, zero if not known
}

// feed holds the latest state, and which services changed in the revisions before it.
type feed struct {
	mu       sync.Mutex
	snapshot *Snapshot
	log      changeLog
	wake     chan struct{} // closed and replaced with each published state, closed for good by close
	closed   bool
}

func (f *feed) init(node *state.Node) {
	f.snapshot = &Snapshot{node: node, records: iradix.New[*state.Service]()}
	f.log.limit = logLimit
	f.wake = make(chan struct{})
}

// publish makes a new revision of changes and node, if they are any news. The first state is always news. It is called by
// one goroutine at a time.
func (f *feed) publish(node *state.Node, changes []change) {
	last := f.latest()
	if last.revision > 0 && len(changes) == 0 && node == last.node {
		return
	}
	records := last.records.Txn()
	for _, c := range changes {
		if c.record == nil {
			records.Delete(key(c.name))
		} else {
			records.Insert(key(c.name), c.record)
		}
	}
	next := &Snapshot{revision: last.revision + 1, node: node, records: records.Commit()}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.snapshot = next
	if last.revision == 0 {
		f.log.forgotten = next.revision // who has nothing gets everything: no need to log it
	} else {
		for _, c := range changes {
			f.log.add(logged{next.revision, c.name, c.trigger})
		}
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

func (f *feed) latest() *Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

func (f *feed) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.wake)
	}
}

// next implements [Store.Next].
func (f *feed) next(ctx context.Context, after state.Revision) (*state.Update, error) {
	for {
		f.mu.Lock()
		closed, snapshot, wake := f.closed, f.snapshot, f.wake
		var changed []logged
		var known bool
		if snapshot.revision != after {
			changed, known = f.log.since(after)
		}
		f.mu.Unlock()

		switch {
		case closed:
			return nil, ErrClosed
		case snapshot.revision == 0 || snapshot.revision == after:
			select {
			case <-ctx.Done():
				return nil, ctx.Err()
			case <-wake:
			}
		case after == 0 || after > snapshot.revision || !known:
			return full(snapshot), nil
		default:
			return delta(snapshot, changed), nil
		}
	}
}

func full(s *Snapshot) *state.Update {
	return &state.Update{
		Revision: s.revision,
		Full:     true,
		Node:     s.node,
		Changed:  slices.AppendSeq(make([]*state.Service, 0, s.Len()), s.Services()),
	}
}

// delta leads to s from a state that differs from it in no other services than those that changed.
func delta(s *Snapshot, changed []logged) *state.Update {
	u := &state.Update{Revision: s.revision, Node: s.node}
	names := make([]state.ServiceName, 0, len(changed))
	for _, c := range changed {
		names = append(names, c.name)
		if !c.trigger.IsZero() {
			u.Triggers = append(u.Triggers, c.trigger)
		}
	}
	slices.SortFunc(names, state.ServiceName.Compare)
	for _, name := range slices.Compact(names) {
		if record := s.Get(name); record != nil {
			u.Changed = append(u.Changed, record)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
	return u
}

// logLimit is how many changed names a store remembers. At 64 bytes each they are 4 MiB at most. A consumer that is
// further behind gets the full state, which it could hardly apply slower than that many changes.
const logLimit = 1 << 16

// changeLog remembers which services changed in which revision, up to limit names: a ring, filled by appending at first.
type changeLog struct {
	limit int
	ring  []logged
	next  int // where the oldest item is, once the ring is full
	// forgotten is the newest revision of which names may be missing.
	forgotten state.Revision
}

type logged struct {
	revision state.Revision
	name     state.ServiceName
	trigger  time.Time
}

func (l *changeLog) add(item logged) {
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, item)
		return
	}
	l.forgotten = l.ring[l.next].revision
	l.ring[l.next] = item
	l.next = (l.next + 1) % l.limit
}

// since returns the changes after a revision, newest first and with repetitions of names. ok is false if some may have
// been forgotten.
func (l *changeLog) since(after state.Revision) (changed []logged, ok bool) {
	if after < l.forgotten {
		return nil, false
	}
	for i := range l.ring {
		item := l.ring[(l.next+len(l.ring)-1-i)%len(l.ring)]
		if item.revision <= after {
			break
		}
		changed = append(changed, item)
	}
	return changed, true
}
