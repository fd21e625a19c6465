package revlog

import (
	"context"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Change is a service's new record, nil if the service no longer exists.
type Change struct {
	Name   state.ServiceName
	Record *state.Service
	// Trigger is when what led to it happened in the cluster, zero if not known.
	Trigger time.Time
}

// Feed holds the latest state, and which services changed in the revisions before it.
type Feed struct {
	closedErr error

	mu       sync.Mutex
	snapshot *Snapshot
	log      Ring[logged]
	wake     chan struct{} // closed and replaced with each published state, closed for good by Close
	closed   bool
}

// logged is a change of a service. The name is empty if only triggers are announced.
type logged struct {
	revision state.Revision
	name     state.ServiceName
	trigger  time.Time
}

func (l logged) At() state.Revision { return l.revision }

// NewFeed returns a feed that has published nothing yet. Once it is closed, its Next fails with closed.
func NewFeed(node *state.Node, closed error) *Feed {
	return &Feed{
		closedErr: closed,
		snapshot:  &Snapshot{node: node},
		log:       Ring[logged]{Max: Limit},
		wake:      make(chan struct{}),
	}
}

// SetLimit bounds how many changes are remembered, for tests. It is called before the first one.
func (f *Feed) SetLimit(changes int) { f.log.Max = changes }

// Publish makes a new revision of changes and node, if they are any news. The first state is always news. triggers are those
// that belong to no change in particular. It is called by one goroutine at a time.
func (f *Feed) Publish(node *state.Node, changes []Change, triggers ...time.Time) {
	last := f.Latest()
	if last.revision > 0 && len(changes) == 0 && node == last.node {
		return
	}
	records := last.records.Clone()
	for _, c := range changes {
		if c.Record == nil {
			records.Delete(c.Name)
		} else {
			records.Set(c.Name, c.Record)
		}
	}
	next := &Snapshot{revision: last.revision + 1, node: node, records: records}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.snapshot = next
	if last.revision == 0 {
		f.log.Forget(next.revision) // a consumer that has nothing gets everything: no need to log it
	} else {
		for _, c := range changes {
			f.log.Add(logged{next.revision, c.Name, c.Trigger})
		}
		for _, at := range triggers {
			f.log.Add(logged{revision: next.revision, trigger: at})
		}
	}
	close(f.wake)
	f.wake = make(chan struct{})
}

// Latest returns the latest state. Before the first one it is an empty snapshot with revision 0.
func (f *Feed) Latest() *Snapshot {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.snapshot
}

// Closed reports whether the feed is closed.
func (f *Feed) Closed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

// Close ends all calls of Next. Later updates are ignored.
func (f *Feed) Close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed {
		f.closed = true
		close(f.wake)
	}
}

// Next implements [state.Feed].
func (f *Feed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	for {
		f.mu.Lock()
		closed, snapshot, wake := f.closed, f.snapshot, f.wake
		var changed iter.Seq[logged]
		var known bool
		if snapshot.revision != after {
			changed, known = f.log.Since(after)
		}
		f.mu.Unlock()

		switch {
		case closed:
			return nil, f.closedErr
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
func delta(s *Snapshot, changed iter.Seq[logged]) *state.Update {
	u := &state.Update{Revision: s.revision, Node: s.node}
	var names []state.ServiceName
	for c := range changed {
		if c.name != (state.ServiceName{}) {
			names = append(names, c.name)
		}
		if !c.trigger.IsZero() {
			u.Triggers = append(u.Triggers, c.trigger)
		}
	}
	Finalize(u, names, s.Get)
	return u
}

// Finalize fills in the outcome of services: those that get finds have changed, the others are removed. names may be in any
// order and repeat themselves; it is sorted in place.
func Finalize(u *state.Update, names []state.ServiceName, get func(state.ServiceName) *state.Service) {
	slices.SortFunc(names, state.ServiceName.Compare)
	for _, name := range slices.Compact(names) {
		if record := get(name); record != nil {
			u.Changed = append(u.Changed, record)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
}
