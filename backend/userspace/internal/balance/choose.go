package balance

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Request is a connection that has to get an endpoint.
type Request struct {
	// Port is where it was addressed to. Route is where it goes, and Number is the number of that route.
	Port   *plan.Port
	Route  *state.Route
	Number int
	Client netip.Addr
	// Tried are endpoints that did not answer it.
	Tried []netip.AddrPort
}

// Visits are the records of clients. An [Affinity] implements it.
type Visits interface {
	Recall(port plan.PortID, client netip.Addr, timeout time.Duration, now time.Time) (endpoint netip.AddrPort, ok bool)
	Learn(port plan.PortID, client netip.Addr, endpoint netip.AddrPort, timeout time.Duration, now time.Time)
}

// Choose returns an endpoint for a connection: the one that the client had, if the port has affinity, or else one by the policy. It counts as a connection
// of the endpoint until [Loads.End]. ok is false if there is none, or if the connection is one of the share that the route refuses. The share is
// drawn once, before the first endpoint is tried. A client that is remembered is not refused.
func Choose(l *Loads, a Visits, policy Policy, r *Request, now time.Time, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	p, endpoints := r.Port, r.Route.Endpoints
	if p.Affinity > 0 && len(r.Tried) == 0 {
		if endpoint, ok = a.Recall(p.ID, r.Client, p.Affinity, now); ok {
			_, ok = slices.BinarySearchFunc(endpoints, endpoint, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
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
		a.Learn(p.ID, r.Client, endpoint, p.Affinity, now)
	}
	l.Begin(endpoint)
	return endpoint, true
}

// refuses draws whether a route refuses a connection.
func (l *Loads) refuses(number int, r *state.Route, draw func(n int) int) bool {
	refused := int(r.Refused)
	return draw(l.view(number, r.Endpoints).sum()+refused) < refused
}
