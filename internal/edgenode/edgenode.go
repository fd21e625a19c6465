// Package edgenode tells the cluster whether this node takes packets that other nodes hand over, and goes on trying until the cluster knows.
//
// Others may send packets as soon as a node is announced, and go on for a moment after it has been withdrawn. So a node is announced
// after it takes packets. It is withdrawn, and others have time to hear of it, before it takes no more.
package edgenode

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

const (
	// firstPause is the time between two attempts. It doubles with each one, up to lastPause, and up to half of it is added.
	firstPause, lastPause = time.Second, time.Minute
	// calm is how long no attempt was needed until the pauses begin again with the first one.
	calm = 2 * lastPause
)

// Options has what an [Announcer] needs.
type Options struct {
	// Source returns the source that tells the cluster, nil if none can now. Required. It is asked before each attempt.
	Source func() model.WithEdge
	// Logger gets failures and successes. Nil discards them.
	Logger *slog.Logger
}

// Announcer tells the cluster. Its methods may be called concurrently, and only Run and Wait wait for anything.
type Announcer struct {
	source func() model.WithEdge
	log    *slog.Logger

	mu      sync.Mutex
	latest  *uint16 // the port that was asked for last, 0 for none. nil: nothing was asked for
	held    int     // how many calls of Hold wait for Release
	asked   bool    // whether anything is wanted
	want    uint16  // the port, 0 for none: latest, unless that is held
	told    bool    // the cluster has what is wanted
	err     error   // of the last attempt
	pause   time.Duration
	tried   time.Time     // when the last attempt ended
	changed chan struct{} // closed and replaced with each change
}

// New returns an announcer that has nothing to tell yet.
func New(o Options) *Announcer {
	return &Announcer{source: o.Source, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler)), changed: make(chan struct{})}
}

// Announce has Run tell others that this node takes packets at a UDP port.
func (a *Announcer) Announce(port uint16) { a.set(port) }

// Withdraw has Run tell others that this node takes no packets. See [Announcer.Wait].
func (a *Announcer) Withdraw() { a.set(0) }

func (a *Announcer) set(port uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.latest = &port; a.held == 0 {
		a.turn(port)
	}
}

// Hold has Run tell others that this node takes no packets, and tell them nothing else until Release. See [Announcer.Wait].
func (a *Announcer) Hold() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held++; a.asked {
		a.turn(0)
	}
}

// Release ends a Hold. After the last one, Run tells others again what was asked for last.
func (a *Announcer) Release() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.held--; a.held == 0 && a.latest != nil {
		a.turn(*a.latest)
	}
}

// turn makes port what is wanted. The caller holds mu.
func (a *Announcer) turn(port uint16) {
	if a.asked && a.want == port {
		return
	}
	a.asked, a.want, a.told, a.err, a.pause = true, port, false, nil, firstPause
	a.notify()
}

// Saw notes the port that the cluster has for this node, 0 for none. If somebody else has changed it, Run sets it right. An older value than the last
// one costs a look at the Node.
func (a *Announcer) Saw(port uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.told && a.want != port {
		a.told = false
		a.notify()
	}
}

// Announced reports whether Run tells others, or is to tell them, that this node takes packets.
func (a *Announcer) Announced() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.want != 0
}

// Problem returns why the cluster does not know what was asked for last, nil if it does or nothing has failed.
func (a *Announcer) Problem() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.err
}

// Wait returns as soon as the cluster knows what Run is to tell it. Otherwise, it returns the error of ctx and of the last attempt when ctx ends.
func (a *Announcer) Wait(ctx context.Context) error {
	for {
		a.mu.Lock()
		done, err, changed := a.told || !a.asked, a.err, a.changed
		a.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Run tells the cluster what is asked for, until ctx ends. It withdraws nothing by itself: a process that is replaced
// leaves its node announced.
func (a *Announcer) Run(ctx context.Context) error {
	for {
		a.mu.Lock()
		due, port, changed := a.asked && !a.told, a.want, a.changed
		a.mu.Unlock()
		if !due {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		if !a.rest(ctx, port, a.attempt(ctx, port)) {
			return nil
		}
	}
}

// attempt tries once, notes the result and returns how long to wait for the next attempt.
func (a *Announcer) attempt(ctx context.Context, port uint16) time.Duration {
	began := time.Now()
	err := errors.New("the source of this process cannot annotate Nodes: let it watch an API server")
	if s := a.source(); s != nil && port != 0 {
		err = s.AnnounceEdge(ctx, port)
	} else if s != nil {
		err = s.WithdrawEdge(ctx)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.want != port || ctx.Err() != nil {
		return 0
	}
	switch {
	case err == nil:
		a.log.Info("other nodes are told whether this node takes part in the edge", "port", port)
	case a.err == nil:
		a.log.Warn("cannot tell other nodes whether this node takes part in the edge", "port", port, "error", err)
	}
	pause := a.pause
	if began.Sub(a.tried) > calm {
		pause = firstPause
	}
	a.told, a.err, a.pause, a.tried = err == nil, err, min(2*pause, lastPause), time.Now()
	a.notify()
	return pause + rand.N(pause/2)
}

// rest waits until something else than port is asked for, at most for a time. It reports whether ctx still holds.
func (a *Announcer) rest(ctx context.Context, port uint16, pause time.Duration) bool {
	over := time.NewTimer(pause)
	defer over.Stop()
	for {
		a.mu.Lock()
		same, changed := a.want == port, a.changed
		a.mu.Unlock()
		if !same {
			return true
		}
		select {
		case <-changed:
		case <-over.C:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// notify wakes those who wait for a change. The caller holds mu.
func (a *Announcer) notify() {
	close(a.changed)
	a.changed = make(chan struct{})
}
