// Package revlog holds states under revisions, and hands out what changed between any two of them.
//
// [Log] does so for a state of any kind, and [States] for the states of a node. [Intake] takes objects of several
// sources for those who make states of them.
package revlog

import (
	"context"
	"iter"
	"sync"

	"github.com/switchyard-net/switchyard/state"
)

// Log holds the latest state, and the changes of the revisions before it. A state is immutable. Nothing is queued for
// consumers: each asks for news since its own revision. All methods may be called concurrently.
type Log[S, C any] struct {
	closedErr error
	closed    chan struct{}

	mu       sync.Mutex // guards all below
	revision state.Revision
	latest   S
	changes  Ring[C]
	wake     chan struct{} // closed and replaced with each revision
}

// NewLog returns a log without a revision, whose latest state is empty. Once it is closed, its Next fails with closed.
func NewLog[S, C any](empty S, closed error) *Log[S, C] {
	return &Log[S, C]{
		closedErr: closed, latest: empty, changes: Ring[C]{Max: Limit}, closed: make(chan struct{}), wake: make(chan struct{}),
	}
}

// SetLimit bounds how many changes are remembered, for tests. It is called before the first one.
func (l *Log[S, C]) SetLimit(changes int) { l.changes.Max = changes }

// Publish makes a new revision: a state and the changes that lead to it from the latest one. It does nothing once the log
// is closed.
func (l *Log[S, C]) Publish(latest S, changes []C) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.IsClosed() {
		return
	}
	l.latest = latest
	if l.revision++; l.revision == 1 {
		l.changes.Forget(1) // a consumer that has nothing gets everything: no need to log it
	} else {
		for _, c := range changes {
			l.changes.Add(l.revision, c)
		}
	}
	close(l.wake)
	l.wake = make(chan struct{})
}

// Replace replaces the latest state by an equal one.
func (l *Log[S, C]) Replace(latest S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.latest = latest
}

// Latest returns the latest state and its revision, 0 if none has been published.
func (l *Log[S, C]) Latest() (state.Revision, S) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.revision, l.latest
}

// Close ends all calls of Next.
func (l *Log[S, C]) Close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.IsClosed() {
		close(l.closed)
	}
}

// Closed returns a channel that is closed together with the log.
func (l *Log[S, C]) Closed() <-chan struct{} { return l.closed }

// IsClosed reports whether the log is closed.
func (l *Log[S, C]) IsClosed() bool {
	select {
	case <-l.closed:
		return true
	default:
		return false
	}
}

// News is a state that a consumer does not have yet.
type News[S, C any] struct {
	Revision state.Revision
	State    S
	// Changes lead to State from the consumer's state, the newest first. They are nil if the consumer needs all of State.
	Changes iter.Seq[C]
}

// Next waits for a state other than the state of revision after, and returns it. Changes is nil for after = 0, and for an
// after that the log does not remember. Next fails once the log is closed, even if there is a newer state, and with the
// error of ctx if that ends first.
func (l *Log[S, C]) Next(ctx context.Context, after state.Revision) (News[S, C], error) {
	for {
		if l.IsClosed() {
			return News[S, C]{}, l.closedErr
		}
		news, wake := l.newer(after)
		if wake == nil {
			return news, nil
		}
		select {
		case <-ctx.Done():
			return News[S, C]{}, ctx.Err()
		case <-l.closed:
		case <-wake:
		}
	}
}

// newer returns the news since a revision, or what to wait for if there are none.
func (l *Log[S, C]) newer(after state.Revision) (news News[S, C], wake <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.revision == 0 || l.revision == after {
		return news, l.wake
	}
	news = News[S, C]{Revision: l.revision, State: l.latest}
	if after != 0 && after < l.revision {
		news.Changes, _ = l.changes.Since(after)
	}
	return news, nil
}
