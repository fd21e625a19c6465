package store

import (
	"context"
	"slices"
	"sync"

	iradix "github.com/hashicorp/go-immutable-radix/v2"

	"github.com/switchyard-net/switchyard/state"
)

// change is a service's new record, nil if the service no longer exists.
type change struct {
	name   state.ServiceName
	record *state.Service
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
			f.log.add(next.revision, c.name)
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
		var names []state.ServiceName
		var known bool
		if snapshot.revision != after {
			names, known = f.log.since(after)
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
			return delta(snapshot, names), nil
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

// delta leads to s from a state that differs from it in no other services than names.
func delta(s *Snapshot, names []state.ServiceName) *state.Update {
	slices.SortFunc(names, state.ServiceName.Compare)
	u := &state.Update{Revision: s.revision, Node: s.node}
	for _, name := range slices.Compact(names) {
		if record := s.Get(name); record != nil {
			u.Changed = append(u.Changed, record)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
	return u
}

// logLimit is how many changed names a store remembers. At 40 bytes each they are 2.5 MiB at most. A consumer that is
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
}

func (l *changeLog) add(revision state.Revision, name state.ServiceName) {
	if len(l.ring) < l.limit {
		l.ring = append(l.ring, logged{revision, name})
		return
	}
	l.forgotten = l.ring[l.next].revision
	l.ring[l.next] = logged{revision, name}
	l.next = (l.next + 1) % l.limit
}

// since returns the names that changed after a revision, newest first and with repetitions. ok is false if some may have
// been forgotten.
func (l *changeLog) since(after state.Revision) (names []state.ServiceName, ok bool) {
	if after < l.forgotten {
		return nil, false
	}
	for i := range l.ring {
		item := l.ring[(l.next+len(l.ring)-1-i)%len(l.ring)]
		if item.revision <= after {
			break
		}
		names = append(names, item.name)
	}
	return names, true
}
