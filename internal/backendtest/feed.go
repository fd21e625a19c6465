package backendtest

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Feed.Next] returns after Close.
var ErrClosed = errors.New("feed is closed")

// Feed is a [state.Feed] that a test sets states on. Its zero value has published nothing yet.
type Feed struct {
	mu        sync.Mutex
	revision  state.Revision
	forgotten state.Revision
	services  map[state.ServiceName]entry
	wake      chan struct{}
	closed    bool
}

// entry is a service's record, nil if it was removed, and the revision in which it last changed.
type entry struct {
	record   *state.Service
	revision state.Revision
}

// Publish makes one revision in which services are set and others removed.
func (f *Feed) Publish(set []*state.Service, removed ...state.ServiceName) {
	f.change(func() {
		f.revision++
		if f.services == nil {
			f.services = make(map[state.ServiceName]entry)
		}
		for _, s := range set {
			f.services[s.Name] = entry{s, f.revision}
		}
		for _, name := range removed {
			f.services[name] = entry{nil, f.revision}
		}
	})
}

// Forget makes the next update of every consumer a full one.
func (f *Feed) Forget() {
	f.change(func() { f.forgotten = f.revision + 1 })
}

// Close makes all calls of Next fail.
func (f *Feed) Close() {
	f.change(func() { f.closed = true })
}

// Services is the latest state.
func (f *Feed) Services() map[state.ServiceName]*state.Service {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := make(map[state.ServiceName]*state.Service)
	for name, e := range f.services {
		if e.record != nil {
			all[name] = e.record
		}
	}
	return all
}

// Revision is the latest revision.
func (f *Feed) Revision() state.Revision {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.revision
}

// Next implements [state.Feed].
func (f *Feed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	for {
		u, wake, err := f.since(after)
		if u != nil || err != nil {
			return u, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-wake:
		}
	}
}

func (f *Feed) change(do func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	do()
	if f.wake != nil {
		close(f.wake)
		f.wake = nil
	}
}

// since returns the update that leads on from after, or what to wait for if there is none.
func (f *Feed) since(after state.Revision) (*state.Update, <-chan struct{}, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, ErrClosed
	}
	if f.revision == 0 || f.revision == after {
		f.wake = cmp.Or(f.wake, make(chan struct{}))
		return nil, f.wake, nil
	}
	u := &state.Update{Revision: f.revision, Full: after < max(1, f.forgotten), Node: &state.Node{Name: "n1"}}
	for _, name := range slices.SortedFunc(maps.Keys(f.services), state.ServiceName.Compare) {
		switch e := f.services[name]; {
		case e.revision <= after && !u.Full:
		case e.record != nil:
			u.Changed = append(u.Changed, e.record)
		case !u.Full:
			u.Removed = append(u.Removed, name)
		}
	}
	return u, nil, nil
}
