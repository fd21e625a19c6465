// Package statecopy keeps a copy of the state of a node that is published elsewhere.
package statecopy

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Replica.Next] returns once the replica is closed.
var ErrClosed = errors.New("replica is closed")

// Replica holds the latest state of an origin, and hands it out under revisions of its own, which grow whatever
// the origin's do. So the origin may be restarted, or replaced by another one, and consumers only see what that made
// different. It implements [state.Feed]. All methods may be called concurrently.
type Replica struct {
	feed *revlog.Feed

	mu sync.Mutex // held while an update is applied
}

var _ state.Feed = (*Replica)(nil)

// New returns a replica that holds nothing yet. Its Next blocks until a first update has been applied. nodeName is what
// [Replica.Snapshot] calls the node until then.
func New(nodeName string) *Replica {
	return &Replica{feed: revlog.NewFeed(&state.Node{Name: nodeName}, ErrClosed)}
}

// Apply applies an update of the origin, which must follow the last one, or be Full. Records that equal the replica's
// are left out; if nothing remains, there is no new revision. While the replica is empty, an update that is not Full is
// ignored. The update's triggers are passed on. The replica takes ownership of the records; the update is not modified.
func (r *Replica) Apply(u *state.Update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	held := r.feed.Latest()
	if held.Revision() == 0 && !u.Full {
		return
	}
	var changes []revlog.Change
	for _, record := range u.Changed {
		if former := held.Get(record.Name); former == nil || !former.Equal(record) {
			changes = append(changes, revlog.Change{Name: record.Name, Record: record})
		}
	}
	for _, name := range u.Gone(names(held)) {
		if held.Get(name) != nil {
			changes = append(changes, revlog.Change{Name: name})
		}
	}
	node := u.Node
	if node.Equal(held.Node()) {
		node = held.Node()
	}
	r.feed.Publish(node, changes, u.Triggers...)
}

// names yields the services that are held.
func names(held *revlog.Snapshot) iter.Seq[state.ServiceName] {
	return func(yield func(state.ServiceName) bool) {
		for record := range held.Services() {
			if !yield(record.Name) {
				return
			}
		}
	}
}

// Next implements [state.Feed]. It fails with ErrClosed once the replica is closed, also if there is a newer state.
func (r *Replica) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	return r.feed.Next(ctx, after)
}

// Snapshot returns the state that is held. Before the first update it is an empty snapshot with revision 0.
func (r *Replica) Snapshot() *revlog.Snapshot { return r.feed.Latest() }

// Close ends all calls of Next. Updates that are applied afterwards are ignored.
func (r *Replica) Close() { r.feed.Close() }
