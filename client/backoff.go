package client

import (
	"context"
	"time"
)

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
