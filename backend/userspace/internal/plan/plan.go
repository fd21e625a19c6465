// Package plan works out the records for the base of the userspace dataplane, and finds the record of a connection that arrives at the
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

// Listeners are the addresses of the relay, by kind and class. Connections of other kinds are left to the base.
type Listeners map[Kind][2]netip.AddrPort

// of returns the listeners of a port.
func (l Listeners) of(p *state.Port) (at [2]netip.AddrPort, relayed bool) {
	at, relayed = l[Kind{p.Family, p.Protocol}]
	return at, relayed
}

// Base returns the base's record of s. It is s with the relay among the lingering endpoints, so that relayed connections go on. The record
// does not say which new connections the base leads to the relay. The base counts no connections of relayed ports: it has none. Flows of UDP go on as long as the relay has endpoints for clients of
// their class.
func (l Listeners) Base(s *state.Service) *state.Service {
	return l.change(s, func(p *state.Port, at [2]netip.AddrPort) {
		lingering := slices.Clone(p.Lingering)
		for c, addr := range at {
			if p.Protocol != state.UDP || len(p.Lingering) > 0 || forwards(p, Class(c)) {
				lingering = append(lingering, state.Endpoint{Addr: addr, Local: true})
			}
		}
		slices.SortFunc(lingering, state.Endpoint.Compare)
		p.Lingering = slices.Compact(lingering)
		if p.Balance == state.LeastConnections {
			p.Balance = state.Random
		}
	})
}

// forwards reports whether clients of a class have endpoints at any frontend of p.
func forwards(p *state.Port, c Class) bool {
	for _, t := range []*state.Traffic{&p.Internal, &p.External} {
		if c == Outside && t.Outside.Verdict == state.Forward || c == Inside && t.Inside.Verdict == state.Forward {
			return true
		}
	}
	return false
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
