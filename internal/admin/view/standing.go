package view

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Standing is what the dataplane knows of the endpoints of a port, and the record does not say.
type Standing struct {
	// Silent are endpoints that do not answer. They get no new connections by a route that has others.
	Silent []netip.AddrPort
	// Until is until when open connections stay with endpoints that are in no route. A deadline that has passed is not after the time of the call.
	Until map[netip.AddrPort]time.Time
}

// portStanding is the Standing of a port. The zero value says nothing.
type portStanding struct {
	port *state.Port
	Standing
}

// standing asks the dataplane about the endpoints of a port, if its record has it eject endpoints or set deadlines.
func (v *View) standing(p *brain.PortReasons, why *store.Explanation) (s portStanding) {
	if v.Standing == nil || why.Published == nil {
		return s
	}
	ports := why.Published.Ports
	i := slices.IndexFunc(ports, func(o state.Port) bool { return o.Name == p.Name && o.Protocol == p.Protocol && o.Family == p.Family })
	if i < 0 {
		return s
	}
	s.port = &ports[i]
	var left []netip.AddrPort
	for j := range p.Endpoints {
		if addr := p.Endpoints[j].Addr; s.port.DrainSeconds > 0 && !s.isRouted(addr) {
			left = append(left, addr)
		}
	}
	if s.port.Ejection || len(left) > 0 {
		s.Standing = v.Standing(s.port, left)
	}
	return s
}

// isRouted reports whether a route of the port has an endpoint.
func (s *portStanding) isRouted(addr netip.AddrPort) bool {
	routes := s.port.Routes()
	return slices.ContainsFunc(routes[:], func(r *state.Route) bool { return has(r, addr) })
}

func has(r *state.Route, addr netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(r.Endpoints, addr, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return found
}

// complete adds the standing of an endpoint to its row.
func (s *portStanding) complete(row *Endpoint, now time.Time) {
	switch until, limited := s.Until[row.Addr]; {
	case limited && until.After(now):
		row.State, row.DrainsUntil = Draining, until
	case limited:
		row.State = Idle
	case row.State == Active && s.ejects(row.Addr):
		row.State = Ejected
	}
}

// ejects reports whether an endpoint is silent, and another one has its connections.
func (s *portStanding) ejects(addr netip.AddrPort) bool {
	if !slices.Contains(s.Silent, addr) {
		return false
	}
	answers := func(e state.Endpoint) bool { return !slices.Contains(s.Silent, e.Addr) }
	routes := s.port.Routes()
	return slices.ContainsFunc(routes[:], func(r *state.Route) bool {
		return has(r, addr) && slices.ContainsFunc(r.Endpoints, answers)
	})
}
