package client

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// link follows a server over one connection after another.
type link struct {
	options *Options
	pace    *pacer
	logged  string // the last failure that was logged, empty while the server is being followed
}

// run calls attempt until ctx ends, with a pause after each failure. what names the followed data in messages.
func (l *link) run(ctx context.Context, what string, attempt func(context.Context) error) {
	for ctx.Err() == nil {
		began := time.Now()
		err := attempt(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) >= l.options.MaxBackoff {
			// A stream over which nothing had to be said for long was no failure.
			l.pace.succeeded()
			if err == errEnded {
				continue // The connection had lasted long enough; the server lets no two clients go at the same time.
			}
		}
		sleep(ctx, l.failed(fmt.Errorf("follow %s: %w", what, err)))
	}
}

// failed reports a failure and returns the pause until the next attempt.
func (l *link) failed(err error) time.Duration {
	pause, log := l.pace.failed, l.options.Logger.Warn
	if isRefusal(err) {
		pause, log = l.pace.refused, l.options.Logger.Error
	}
	if l.logged != err.Error() {
		l.logged = err.Error()
		log("cannot follow the server, trying again", "error", err)
	}
	if l.options.OnError != nil {
		l.options.OnError(err)
	}
	return pause()
}

// isRefusal reports whether the server works and does not want this client.
func isRefusal(err error) bool {
	switch status.Code(err) {
	case codes.PermissionDenied, codes.Unauthenticated, codes.InvalidArgument, codes.Unimplemented:
		return true
	}
	return false
}

// connected notes that the server can be followed.
func (l *link) connected() {
	if l.logged != "" {
		l.logged = ""
		l.options.Logger.Info("following the server again", "target", l.options.Target)
	}
}

// pacer paces attempts at one thing that fails.
type pacer struct {
	min, max time.Duration
	failures int // in a row
	jitter   func(pause time.Duration) time.Duration
}

func newPacer(o *Options) *pacer {
	return &pacer{min: o.MinBackoff, max: o.MaxBackoff, jitter: o.jitter}
}

// failed notes a failure and returns the pause until the next attempt.
func (p *pacer) failed() time.Duration {
	pause := p.min
	for i := 0; i < p.failures && pause < p.max; i++ {
		pause *= 2
	}
	p.failures++
	return p.jitter(min(pause, p.max))
}

// refused notes a failure of the kind that only an operator can fix, and returns the pause until the next attempt.
func (p *pacer) refused() time.Duration {
	p.failures++
	return p.jitter(p.max)
}

func (p *pacer) succeeded() { p.failures = 0 }

// sleep waits for d, or less if ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}
