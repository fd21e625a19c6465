package backend

import (
	"math/rand/v2"
	"time"
)

// retry paces attempts at one thing that fails.
type retry struct {
	failures int       // in a row
	err      error     // of the last one
	at       time.Time // when to try again, zero after a success
}

// failed notes a failure and returns the pause until the next attempt. It doubles with each failure in a row, up to the
// maximum. A random half of it is taken off at most, so that nodes that fail together do not try again together.
func (r *retry) failed(err error, o *RunOptions) time.Duration {
	pause := o.MinBackoff
	for i := 0; i < r.failures && pause < o.MaxBackoff; i++ {
		pause *= 2
	}
	pause = min(pause, o.MaxBackoff)
	pause -= rand.N(pause/2 + 1)
	r.failures++
	r.err = err
	r.at = time.Now().Add(pause)
	return pause
}

func (r *retry) reset() { *r = retry{} }

// isDue reports whether the time at, if it is set, has come.
func isDue(at, now time.Time) bool { return !at.IsZero() && !at.After(now) }

// earliest returns the earlier of two times; one that is zero does not count.
func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
