// Package failover lets a node have its state from a relay, and from a brain of its own as long as no relay answers.
package failover

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/apifollower"
	"github.com/switchyard-net/switchyard/internal/statecopy"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the two feeds to switch between.
type Options struct {
	// Relay is preferred. It is run by the Switch. Required.
	Relay *apifollower.Follower
	// After is how long no relay may be reachable before the local fallback starts. Default: 10 s.
	After time.Duration
	// Backup starts the local fallback, and returns its states, and what waits for its end. It ends with ctx.
	// Required.
	Backup func(ctx context.Context) (feed state.Feed, wait func() error)
	// Node is the name of the node. Required.
	Node string
	// Logger gets each switch. Default: nothing is logged.
	Logger *slog.Logger
}

// Switch serves the states of the relay or of the backup. A switch between them is one update with the differences.
// Until the other one has a whole state, consumers keep their state.
type Switch struct {
	Options
	replica *statecopy.Replica
	ledger  statecopy.Ledger[state.Revision] // of the relay's replica

	mu      sync.Mutex
	applied state.Revision // as reported last, with failed
	failed  map[state.ServiceName]error
}

// New returns a Switch. Run makes it work.
func New(o Options) *Switch {
	o.After = cmp.Or(o.After, 10*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Switch{Options: o, replica: statecopy.New(o.Node)}
}

// Replica holds the state.
func (s *Switch) Replica() *statecopy.Replica { return s.replica }

// Run works until ctx ends, and then returns nil.
func (s *Switch) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Relay.Run(ctx) }()
	defer func() {
		cancel()
		<-done
		s.replica.Close()
	}()
	for ctx.Err() == nil {
		s.followRelay(ctx)
		if ctx.Err() != nil {
			break
		}
		_, why := s.Relay.Lost()
		s.Logger.Warn("no relay is reachable; starting local fallback", "error", why)
		s.Relay.Forget()
		for ctx.Err() == nil && s.isLost() {
			if err := s.followBackup(ctx); err != nil && ctx.Err() == nil {
				s.Logger.Error("local fallback failed; keeping last known good state, will retry", "error", err)
				s.pause(ctx)
			}
		}
		if ctx.Err() == nil {
			s.Logger.Info("relay is reachable again; ending local fallback")
		}
	}
	return nil
}

func (s *Switch) isLost() bool {
	since, _ := s.Relay.Lost()
	return !since.IsZero()
}

// pause waits for a while, or until the relay is back.
func (s *Switch) pause(ctx context.Context) {
	over := time.After(s.After)
	for s.isLost() {
		select {
		case <-ctx.Done():
			return
		case <-over:
			return
		case <-s.Relay.Changed():
		}
	}
}

// followRelay follows the relay until it has been lost for too long.
func (s *Switch) followRelay(ctx context.Context) {
	tooLong := func(lost time.Time) time.Time {
		if lost.IsZero() {
			return never
		}
		return lost.Add(s.After)
	}
	s.follow(ctx, s.Relay.Replica(), tooLong, func(shown, of state.Revision) {
		s.ledger.Note(shown, of)
		s.sendReport() // an update that makes no difference is shown already
	})
}

// followBackup follows the backup until the relay is back.
func (s *Switch) followBackup(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	feed, wait := s.Backup(ctx)
	back := func(lost time.Time) time.Time {
		if lost.IsZero() {
			return time.Now()
		}
		return never
	}
	s.follow(ctx, feed, back, func(shown, _ state.Revision) { s.ledger.Note(shown, 0) }) // not a state of the relay
	cancel()
	return wait()
}

var never time.Time

// follow applies the states of a feed, the first one whole, until ctx ends or the time that until returns. It calls
// until again whenever the relay is lost or found.
func (s *Switch) follow(ctx context.Context, feed state.Feed, until func(lost time.Time) time.Time, note func(shown, of state.Revision)) {
	ctx, cancel := context.WithCancel(ctx)
	var watching sync.WaitGroup
	defer watching.Wait()
	defer cancel()
	watching.Go(func() {
		defer cancel()
		for {
			var over <-chan time.Time
			lost, _ := s.Relay.Lost()
			if at := until(lost); at != never {
				over = time.After(time.Until(at))
			}
			select {
			case <-ctx.Done():
				return
			case <-over:
				return
			case <-s.Relay.Changed():
			}
		}
	})
	var after state.Revision
	for {
		u, err := feed.Next(ctx, after)
		if err != nil {
			return
		}
		s.replica.Apply(u)
		after = u.Revision
		note(s.replica.Snapshot().Revision(), after)
	}
}

// Report sends the relay which revision of the replica the dataplane shows, and which services cannot be programmed.
// The caller must not modify failed afterwards.
func (s *Switch) Report(applied state.Revision, failed map[state.ServiceName]error) {
	s.mu.Lock()
	s.applied, s.failed = applied, failed
	s.mu.Unlock()
	s.sendReport()
}

func (s *Switch) sendReport() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.Relay.Report(s.ledger.At(s.applied), s.failed)
}
