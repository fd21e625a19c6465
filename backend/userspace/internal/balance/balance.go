// Package balance chooses endpoints: by policy, by how they are doing, and by which one a client had before. It is pure: it gets the time and
// random numbers from its caller.
package balance

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Policy is how an endpoint is chosen for a new connection.
type Policy string

// The policies.
const (
	// Random gives each endpoint the same share, or the share of its weight.
	Random Policy = "Random"
	// LeastConnections takes one of those endpoints that have the fewest connections of the Service port through this relay. With weights, it is
	// PowerOfTwoChoices.
	LeastConnections Policy = "LeastConnections"
	// PowerOfTwoChoices draws two endpoints and takes the one with fewer connections. With weights, each is drawn by weight, and connections count
	// in relation to the weight.
	PowerOfTwoChoices Policy = "PowerOfTwoChoices"
)

// Ejection is when an endpoint gets no new connections for a while. The zero value never ejects.
type Ejection struct {
	// Failures is how many connects to it must have failed one after the other.
	Failures int
	// Time is for how long. After it, the next failure ejects again.
	Time time.Duration
}

// Loads has the load of the endpoints of one Service port. It only has endpoints with connections or failures. The zero value is empty.
//
// Every method costs the logarithm of the number of endpoints at most. A route is known by its slice of endpoints, which must not change.
// Each route has a view with its endpoints in order of their load. Only endpoints with a load take memory in a view. With weights, each
// endpoint of the route takes 8 bytes, and the first choice after a change of the route reads all weights.
type Loads struct {
	byEndpoint map[netip.AddrPort]*load
	// all are the loads of byEndpoint, in no order.
	all   []*load
	views [plan.Routes]view
	// generation is the generation of the view that was made last.
	generation uint32
	// ejected are those that get no new connections, in the order in which they were ejected. Some may have succeeded since.
	ejected []ejection
}

type ejection struct {
	*load
	until time.Time
}

// load is how one endpoint is doing.
type load struct {
	endpoint netip.AddrPort
	open     int
	failures int
	// out is set while it is ejected, and until is for how long.
	out   bool
	until time.Time
	// number is its place in Loads.all.
	number int
	seats  [plan.Routes]seat
}

// seat is the place of an endpoint in a view.
type seat struct {
	generation uint32 // of the view, or the seat is not taken
	// index is that in the route, -1 if the endpoint is not in it.
	index int
	// slot is the place in the level of its number of connections.
	slot int
}

// Begin notes that a connection to an endpoint begins.
func (l *Loads) Begin(endpoint netip.AddrPort) {
	l.change(endpoint, func(e *load) { e.open++ })
}

// End notes that a connection has ended.
func (l *Loads) End(endpoint netip.AddrPort) {
	l.change(endpoint, func(e *load) { e.open = max(e.open-1, 0) })
}

// Succeeded notes that an endpoint has taken a connection. It also forgets that the endpoint has failed. It reports whether it had.
func (l *Loads) Succeeded(endpoint netip.AddrPort) (had bool) {
	e := l.byEndpoint[endpoint]
	if e == nil || e.failures == 0 {
		return false
	}
	l.change(endpoint, func(e *load) { e.failures, e.out = 0, false })
	return true
}

// Failed notes that an endpoint has not taken a connection. It reports whether that ejects it.
func (l *Loads) Failed(endpoint netip.AddrPort, rule Ejection, now time.Time) (ejected bool) {
	if rule.Failures <= 0 {
		return false
	}
	l.change(endpoint, func(e *load) {
		e.failures++
		if e.failures < rule.Failures || e.out && now.Before(e.until) {
			return
		}
		ejected = true
		e.out, e.until = true, now.Add(rule.Time)
		l.ejected = append(l.ejected, ejection{e, e.until})
	})
	return ejected
}

// Len is how many endpoints are remembered.
func (l *Loads) Len() int { return len(l.all) }

// change changes the load of an endpoint, also in the views. An endpoint without load is forgotten.
func (l *Loads) change(endpoint netip.AddrPort, do func(*load)) {
	e := l.byEndpoint[endpoint]
	if e == nil {
		e = &load{endpoint: endpoint, number: len(l.all)}
		if l.byEndpoint == nil {
			l.byEndpoint = map[netip.AddrPort]*load{}
		}
		l.byEndpoint[endpoint] = e
		l.all = append(l.all, e)
		for i := range l.views {
			l.views[i].enter(e, i)
		}
	}
	for i := range l.views {
		l.views[i].lift(e, i)
	}
	do(e)
	for i := range l.views {
		l.views[i].place(e, i)
	}
	if e.open == 0 && e.failures == 0 {
		delete(l.byEndpoint, endpoint)
		last := len(l.all) - 1
		l.all[e.number] = l.all[last]
		l.all[e.number].number = e.number
		l.all[last] = nil
		l.all = l.all[:last]
		if last == 0 {
			l.rest()
		}
	}
}

// keptLoads is how many loads there may have been whose memory is kept for the next connection.
const keptLoads = 64

// rest gives back memory when there are no loads. The routes are not kept.
func (l *Loads) rest() {
	if cap(l.all) > keptLoads {
		l.all, l.byEndpoint, l.views = nil, nil, [plan.Routes]view{}
		return
	}
	for i := range l.views {
		l.views[i].reset()
	}
}

// atOnce bounds how much of the work of earlier changes a choice does. The work is to readmit endpoints, and to add endpoints of a changed
// route to its view.
const atOnce = 512

// readmit has endpoints get connections again whose time is over.
func (l *Loads) readmit(now time.Time) {
	n := 0
	for n < min(len(l.ejected), atOnce) && !now.Before(l.ejected[n].until) {
		if e := l.ejected[n]; e.out && e.load.until.Equal(e.until) {
			l.change(e.endpoint, func(e *load) { e.out = false })
		}
		n++
	}
	if l.ejected = l.ejected[n:]; len(l.ejected) == 0 {
		l.ejected = nil
	}
}

// view returns the view of a route. A new one knows of as many loads as can be looked at now, and of the others with the next choices.
func (l *Loads) view(route int, endpoints []state.Endpoint) *view {
	v := &l.views[route]
	if v.generation == 0 || !sameSlice(v.endpoints, endpoints) {
		l.generation++
		v.reset()
		v.weigh(endpoints)
		v.endpoints, v.generation, v.in, v.idle, v.unknown = endpoints, l.generation, len(endpoints), len(endpoints), len(l.all)
	}
	v.unknown = min(v.unknown, len(l.all))
	for n := 0; v.unknown > 0 && n < atOnce; n++ {
		v.unknown--
		e := l.all[v.unknown]
		if v.enter(e, route) {
			v.place(e, route)
		}
	}
	return v
}

func sameSlice(a, b []state.Endpoint) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// Pick returns an endpoint of a route, which has this number, that is not among those that were tried, and not ejected unless all are. ok is false if there is none. draw returns
// a random number below n.
func (l *Loads) Pick(
	policy Policy, route int, endpoints []state.Endpoint, tried []netip.AddrPort, now time.Time, draw func(n int) int,
) (endpoint netip.AddrPort, ok bool) {
	l.readmit(now)
	v := l.view(route, endpoints)
	if policy == LeastConnections && !v.isWeighted() {
		return v.least(l, route, tried, draw)
	}
	first, ok := v.any(tried, draw)
	if !ok || policy == Random {
		return first, ok
	}
	if second, ok := v.any(append(slices.Clone(tried), first), draw); ok && l.less(v, second, first) {
		return second, true
	}
	return first, true
}

// less reports whether a rather than b should get a connection. Both are in the view.
func (l *Loads) less(v *view, a, b netip.AddrPort) bool {
	var x, y load
	if e := l.byEndpoint[a]; e != nil {
		x = *e
	}
	if e := l.byEndpoint[b]; e != nil {
		y = *e
	}
	if x.out != y.out {
		return !x.out
	}
	if v.isWeighted() {
		return x.open*v.weight(b) < y.open*v.weight(a)
	}
	return x.open < y.open
}
