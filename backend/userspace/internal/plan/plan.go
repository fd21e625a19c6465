// Package plan decides what of a record the base of the userspace dataplane gets, and finds the record of a connection that arrives at the
// relay. It is pure.
package plan

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Kind is a family and a protocol that the relay serves.
type Kind struct {
	Family   state.Family
	Protocol state.Protocol
}

// Class is which of the routes of [state.Traffic] a connection takes.
type Class uint8

// The classes.
const (
	Inside Class = iota
	Outside
)

// Listeners are the addresses of the relay, by kind and class. What is of no kind in it is left to the base.
type Listeners map[Kind][2]netip.AddrPort

// of returns the listeners of a port.
func (l Listeners) of(p *state.Port) (at [2]netip.AddrPort, relayed bool) {
	at, relayed = l[Kind{p.Family, p.Protocol}]
	return at, relayed
}

// Class returns whose connections are led to the relay, if what they are led to is one of its listeners.
func (l Listeners) Class(k Kind, endpoints []netip.AddrPort) (c Class, relayed bool) {
	at, relayed := l[k]
	if !relayed || len(endpoints) != 1 {
		return c, false
	}
	if endpoints[0] == at[Outside] {
		return Outside, true
	}
	return Inside, endpoints[0] == at[Inside]
}

// Base returns what the base is to hold while the relay takes the connections of s: each route to endpoints leads to the relay. Who may
// connect, and what is refused or dropped, remains the base's business. The endpoints themselves are lingering ones of the base's record:
// it keeps what it has carried to them before.
func (l Listeners) Base(s *state.Service) *state.Service {
	return l.change(s, func(p *state.Port, at [2]netip.AddrPort) {
		endpoints := Serving(p)
		if p.Protocol == state.UDP && len(p.Lingering) > 0 {
			endpoints = with(endpoints, at) // flows through the relay to lingering endpoints go on
		}
		p.Lingering = endpoints
		p.Internal, p.External = relayed(p, p.Internal, at), relayed(p, p.External, at)
		p.Affinity = 0 // the relay remembers clients
	})
}

// Released returns what the base is to hold once it takes the connections of s itself. Those that the relay carries go on.
func (l Listeners) Released(s *state.Service) *state.Service {
	return l.change(s, func(p *state.Port, at [2]netip.AddrPort) { p.Lingering = with(p.Lingering, at) })
}

// change returns a copy of s in which do has changed the ports that are relayed, or s itself if there are none.
func (l Listeners) change(s *state.Service, do func(*state.Port, [2]netip.AddrPort)) *state.Service {
	if !slices.ContainsFunc(s.Ports, func(p state.Port) bool { _, ok := l.of(&p); return ok }) {
		return s
	}
	c := *s
	c.Ports = slices.Clone(s.Ports)
	for i := range c.Ports {
		if at, ok := l.of(&c.Ports[i]); ok {
			do(&c.Ports[i], at)
		}
	}
	return &c
}

// relayed returns t with the relay in the place of endpoints. The relay sees the source address of the client, so that nothing is masqueraded.
func relayed(p *state.Port, t state.Traffic, at [2]netip.AddrPort) state.Traffic {
	// The two classes of UDP have different listeners at all times: when a class has lost its last endpoint, the base has to cut its flows, and no others.
	if p.Protocol == state.TCP && t.Inside.Equal(&t.Outside) {
		at[Outside] = at[Inside]
	}
	return state.Traffic{
		Inside: to(t.Inside, at[Inside]), Outside: to(t.Outside, at[Outside]), Masquerade: state.MasqueradeNever,
	}
}

func to(r state.Route, at netip.AddrPort) state.Route {
	if r.Verdict == state.Forward {
		r.Endpoints = []state.Endpoint{{Addr: at, Local: true}}
	}
	return r
}

// with returns endpoints and the two of the relay, in order.
func with(endpoints []state.Endpoint, at [2]netip.AddrPort) []state.Endpoint {
	all := slices.Concat(endpoints, []state.Endpoint{{Addr: at[Inside], Local: true}, {Addr: at[Outside], Local: true}})
	slices.SortFunc(all, state.Endpoint.Compare)
	return slices.Compact(all)
}

// Serving returns all endpoints that may carry connections to p, in order: a connection stays right as long as its endpoint serves the port,
// whatever route it came by.
func Serving(p *state.Port) []state.Endpoint {
	all := slices.Concat(
		p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints, p.External.Inside.Endpoints, p.External.Outside.Endpoints, p.Lingering)
	slices.SortFunc(all, state.Endpoint.Compare)
	return slices.CompactFunc(all, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
}
