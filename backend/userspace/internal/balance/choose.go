package balance

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// Request is a connection that has to get an endpoint.
type Request struct {
	// Port is where it was addressed to. Route is where it goes, and Number is the number of that route.
	Port   *plan.Port
	Route  *state.Route
	Number int
	// Client is where it comes from. The port matters only if connections are hashed by it.
	Client netip.AddrPort
	// Tried are endpoints that did not answer it.
	Tried []netip.AddrPort
}

// Visits are the records of clients. An [Affinity] implements it.
type Visits interface {
	Recall(port plan.PortID, client netip.Addr, timeout time.Duration, now time.Time) (endpoint netip.AddrPort, ok bool)
	Learn(port plan.PortID, client netip.Addr, endpoint netip.AddrPort, timeout time.Duration, now time.Time)
}

// Choose returns an endpoint for a connection. With affinity, it is the one that the client had. With a hash, it follows from the connection. Otherwise it
// follows from the policy, which is LeastConnections for a port that asks for that. The connection counts as one of the endpoint until [Loads.End]. ok is
// false if there is none, or if the connection is one of the share that the route refuses. The share is drawn once, before the first endpoint is tried. A
// client that is remembered is not refused.
func Choose(l *Loads, a Visits, policy Policy, r *Request, now time.Time, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	p, endpoints, client := r.Port, r.Route.Endpoints, r.Client.Addr()
	if p.Affinity > 0 && len(r.Tried) == 0 {
		if endpoint, ok = a.Recall(p.ID, client, p.Affinity, now); ok {
			_, ok = slices.BinarySearchFunc(endpoints, endpoint, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
		}
	}
	if p.Affinity == 0 && p.Balance == state.LeastConnections {
		policy = LeastConnections
	}
	if table := p.Hash(r.Number); table != nil {
		if endpoint, ok = l.hashed(table, r, now); !ok {
			return endpoint, false
		}
	}
	if !ok {
		if r.Route.Refused > 0 && len(r.Tried) == 0 && l.refuses(r.Number, r.Route, draw) {
			return endpoint, false
		}
		if endpoint, ok = l.Pick(policy, r.Number, endpoints, r.Tried, now, draw); !ok {
			return endpoint, false
		}
	}
	if p.Affinity > 0 {
		a.Learn(p.ID, client, endpoint, p.Affinity, now)
	}
	l.Begin(endpoint)
	return endpoint, true
}

// hashed returns the endpoint in the slot of a connection. If that one was tried, or is ejected, it is the next one in the table that is not. ok is false
// if there is none, or if the slot is refused.
func (l *Loads) hashed(table []int16, r *Request, now time.Time) (endpoint netip.AddrPort, ok bool) {
	l.readmit(now)
	slot := consistent.Slot(r.Port.Balance, r.Client, len(table))
	if table[slot] == consistent.Refused && len(r.Tried) == 0 {
		return endpoint, false
	}
	for i := range table {
		n := table[(slot+i)%len(table)]
		if n == consistent.Refused {
			continue
		}
		next := r.Route.Endpoints[n].Addr
		if slices.Contains(r.Tried, next) {
			continue
		}
		if e := l.byEndpoint[next]; e == nil || !e.out {
			return next, true
		}
		if !ok { // unless there is one that is not ejected
			endpoint, ok = next, true
		}
	}
	return endpoint, ok
}

// refuses draws whether a route refuses a connection.
func (l *Loads) refuses(number int, r *state.Route, draw func(n int) int) bool {
	refused := int(r.Refused)
	return draw(l.view(number, r.Endpoints).sum()+refused) < refused
}
