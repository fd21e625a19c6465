package apifollower

import (
	"context"
	"time"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/state"
)

// Fallback makes states on this node while no server is reachable. A change between the two is one update with the
// differences. Until the other one has a whole state, the follower keeps its state.
type Fallback struct {
	// After is how long no server may be reachable before the fallback starts. Required.
	After time.Duration
	// Start starts the fallback, and returns its states, and what waits for its end. It ends with ctx. Required.
	Start func(ctx context.Context) (feed state.Feed, wait func() error)
}

// runFallback has the fallback run whenever there has been no server for too long, until ctx ends.
func (f *Follower) runFallback(ctx context.Context) {
	for f.waitUntilLost(ctx) {
		_, why := f.Lost()
		f.log.Warn("no relay is reachable; starting local fallback", "error", why)
		f.forget()
		for ctx.Err() == nil && f.isLost() {
			if err := f.followFallback(ctx); err != nil && ctx.Err() == nil {
				f.log.Error("local fallback failed; keeping last known good state, will retry", "error", err)
				f.pause(ctx)
			}
		}
		if ctx.Err() == nil {
			f.log.Info("relay is reachable again; ending local fallback")
		}
	}
}

func (f *Follower) isLost() bool {
	since, _ := f.Lost()
	return !since.IsZero()
}

// waitUntilLost waits until there has been no server for too long. It returns false if ctx ends first.
func (f *Follower) waitUntilLost(ctx context.Context) bool {
	for {
		var over <-chan time.Time
		if since, _ := f.Lost(); !since.IsZero() {
			over = time.After(time.Until(since.Add(f.fallback.After)))
		}
		select {
		case <-ctx.Done():
			return false
		case <-over:
			return true
		case <-f.changed:
		}
	}
}

// pause waits for a while, or until the server is back.
func (f *Follower) pause(ctx context.Context) {
	over := time.After(f.fallback.After)
	for f.isLost() {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-f.changed:
		}
	}
}

// forget makes the follower start over: it counts as lost until the whole state has arrived again. Until then the states
// are the fallback's, which an older state of the server must not replace.
func (f *Follower) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	watcher, err := client.NewWatcher(f.client)
	if err != nil {
		f.log.Error("cannot restart the watch", "error", err) // the same options were right before
		return
	}
	f.watcher, f.forgotten = watcher, true
	f.setLost(time.Now(), f.lastErr)
	if f.restart != nil {
		f.restart()
	}
}

// followFallback applies the states of the fallback until the server is back. It returns why the fallback ended.
func (f *Follower) followFallback(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	feed, wait := f.fallback.Start(ctx)
	f.mu.Lock()
	if f.found = cancel; !f.forgotten {
		cancel()
	}
	f.mu.Unlock()
	var after state.Revision
	for {
		u, err := feed.Next(ctx, after)
		if err != nil {
			cancel()
			return wait()
		}
		f.mu.Lock()
		if f.forgotten { // else the server is back with a newer state
			f.states.Apply(u)
			f.ledger.note(f.states.Snapshot().Revision(), client.Position{}) // not a state of the server
		}
		f.mu.Unlock()
		after = u.Revision
	}
}
