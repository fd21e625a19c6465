// Package balance chooses endpoints: by policy, by how they are doing, and by which one a client had before. It is pure: it gets the time and
// random numbers from its caller.
package balance

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Policy is how an endpoint is chosen for a new connection.
type Policy string

// The policies.
const (
	// Random gives each endpoint the same share.
	Random Policy = "Random"
	// LeastConnections takes one of those endpoints that have the fewest connections through this relay.
	LeastConnections Policy = "LeastConnections"
	// PowerOfTwoChoices draws two endpoints and takes the one with fewer connections.
	PowerOfTwoChoices Policy = "PowerOfTwoChoices"
)

// Ejection is when an endpoint gets no new connections for a while. The zero value never ejects.
type Ejection struct {
	// Failures is how many connects to it must have failed one after the other.
	Failures int
	// Time is for how long. After it, the next failure ejects again.
	Time time.Duration
}

// Loads is how endpoints are doing. Only those are in it that have connections, or have failed lately. The zero value is empty.
type Loads struct {
	byEndpoint map[netip.AddrPort]load
}

type load struct {
	open     int
	failures int
	ejected  time.Time // until when
	failed   time.Time // when last
}

// Begin notes that a connection to an endpoint begins.
func (l *Loads) Begin(endpoint netip.AddrPort) {
	l.change(endpoint, func(e *load) { e.open++ })
}

// End notes that a connection has ended.
func (l *Loads) End(endpoint netip.AddrPort) {
	l.change(endpoint, func(e *load) { e.open-- })
}

// forgetAbove is how many endpoints may be remembered without a look for those that need not be.
const forgetAbove = 4096

// Dialed notes whether an endpoint has taken a connection. It reports whether that ejects it.
func (l *Loads) Dialed(endpoint netip.AddrPort, taken bool, rule Ejection, now time.Time) (ejected bool) {
	if taken {
		l.Succeeded(endpoint)
		return false
	}
	ejected = l.Failed(endpoint, rule, now)
	if l.Len() > forgetAbove {
		l.Forget(now.Add(-rule.Time))
	}
	return ejected
}

// Succeeded notes that an endpoint has taken a connection.
func (l *Loads) Succeeded(endpoint netip.AddrPort) {
	if l.byEndpoint[endpoint].failures > 0 {
		l.change(endpoint, func(e *load) { *e = load{open: e.open} })
	}
}

// Failed notes that an endpoint has not taken a connection. It reports whether that ejects it.
func (l *Loads) Failed(endpoint netip.AddrPort, rule Ejection, now time.Time) (ejected bool) {
	if rule.Failures <= 0 {
		return false
	}
	l.change(endpoint, func(e *load) {
		e.failures++
		e.failed = now
		if e.failures >= rule.Failures && !now.Before(e.ejected) {
			e.ejected, ejected = now.Add(rule.Time), true
		}
	})
	return ejected
}

// Forget drops what is remembered of endpoints without connections whose last failure was before then.
func (l *Loads) Forget(before time.Time) {
	for endpoint, e := range l.byEndpoint {
		if e.open == 0 && e.failed.Before(before) {
			delete(l.byEndpoint, endpoint)
		}
	}
}

// Len is how many endpoints are remembered.
func (l *Loads) Len() int { return len(l.byEndpoint) }

func (l *Loads) change(endpoint netip.AddrPort, do func(*load)) {
	if l.byEndpoint == nil {
		l.byEndpoint = map[netip.AddrPort]load{}
	}
	e := l.byEndpoint[endpoint]
	if do(&e); e == (load{}) {
		delete(l.byEndpoint, endpoint)
		return
	}
	l.byEndpoint[endpoint] = e
}

// tries is how often an endpoint is drawn before all are looked at.
const tries = 4

// Pick returns an endpoint that is not among those that were tried, and not ejected unless all are. ok is false if there is none. draw returns
// a random number below n.
func (l *Loads) Pick(policy Policy, endpoints []state.Endpoint, tried []netip.AddrPort, now time.Time, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	if policy != LeastConnections {
		first, ok := l.draw(endpoints, tried, now, draw)
		if !ok || policy == Random {
			return first, ok
		}
		if second, ok := l.draw(endpoints, append(slices.Clone(tried), first), now, draw); ok && l.less(second, first, now) {
			return second, true
		}
		return first, true
	}
	ties := 0
	for _, e := range endpoints {
		switch {
		case slices.Contains(tried, e.Addr):
			continue
		case !ok || l.less(e.Addr, endpoint, now):
			endpoint, ok, ties = e.Addr, true, 1
		case !l.less(endpoint, e.Addr, now):
			if ties++; draw(ties) == 0 {
				endpoint = e.Addr
			}
		}
	}
	return endpoint, ok
}

// less reports whether a rather than b should get a connection.
func (l *Loads) less(a, b netip.AddrPort, now time.Time) bool {
	x, y := l.byEndpoint[a], l.byEndpoint[b]
	if out := now.Before(x.ejected); out != now.Before(y.ejected) {
		return !out
	}
	return x.open < y.open
}

// draw returns one of the endpoints that were not tried, and are not ejected unless all are.
func (l *Loads) draw(endpoints []state.Endpoint, tried []netip.AddrPort, now time.Time, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	if len(endpoints) == 0 {
		return endpoint, false
	}
	for range tries {
		e := endpoints[draw(len(endpoints))].Addr
		if !slices.Contains(tried, e) && !now.Before(l.byEndpoint[e].ejected) {
			return e, true
		}
	}
	var in, out []netip.AddrPort
	for _, e := range endpoints {
		switch {
		case slices.Contains(tried, e.Addr):
		case now.Before(l.byEndpoint[e.Addr].ejected):
			out = append(out, e.Addr)
		default:
			in = append(in, e.Addr)
		}
	}
	if len(in) == 0 {
		in = out
	}
	if len(in) == 0 {
		return endpoint, false
	}
	return in[draw(len(in))], true
}
