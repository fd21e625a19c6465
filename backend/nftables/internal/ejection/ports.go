package ejection

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

// portOf is a port that ejects an endpoint if it is silent.
type portOf struct {
	service *state.Service
	port    *state.Port
}

// ejects reports whether a port ejects silent endpoints.
func ejects(p *state.Port) bool { return p.Ejection && p.Protocol == state.TCP }

// Ejects reports whether a service has a port that ejects silent endpoints, in a family.
func Ejects(s *state.Service, f state.Family) bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return ejects(&p) && p.Family == f })
}

// hasEndpoint reports whether a port of a service, which may be nil, ejects, and has an endpoint.
func hasEndpoint(s *state.Service, of ruleset.PortEndpoint) bool {
	return s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool {
		return ejects(&p) && p.Name == of.Port && p.Family == state.FamilyOf(of.Endpoint.Addr()) &&
			slices.ContainsFunc(distinct(&p), func(r *state.Route) bool { return r.Has(of.Endpoint) })
	})
}

// distinct returns the routes of a port that have lists of their own. Most ports have one.
func distinct(p *state.Port) (routes []*state.Route) {
	for _, r := range p.Routes() {
		if len(r.Endpoints) > 0 && !slices.ContainsFunc(routes, func(o *state.Route) bool { return ruleset.SameMemory(o.Endpoints, r.Endpoints) }) {
			routes = append(routes, r)
		}
	}
	return routes
}

// some returns other endpoints of the routes that have an endpoint, at most maxOthers. from is which of them come first.
func (p portOf) some(addr netip.AddrPort, from int) (list []netip.AddrPort) {
	for _, r := range distinct(p.port) {
		if !r.Has(addr) {
			continue
		}
		n := len(r.Endpoints)
		for i := range min(n, maxOthers) {
			if other := r.Endpoints[(from+i)%n].Addr; other != addr && len(list) < maxOthers && !slices.Contains(list, other) {
				list = append(list, other)
			}
		}
	}
	return list
}

// hasOthers reports whether a route has an endpoint and another one.
func (p portOf) hasOthers(addr netip.AddrPort) bool {
	return slices.ContainsFunc(distinct(p.port), func(r *state.Route) bool { return len(r.Endpoints) > 1 && r.Has(addr) })
}

// share reports whether a route has both of two endpoints.
func (p portOf) share(a, b netip.AddrPort) bool {
	return slices.ContainsFunc(distinct(p.port), func(r *state.Route) bool { return r.Has(a) && r.Has(b) })
}

// locate returns the ports that eject each of these endpoints, sorted. It goes through all endpoints of such ports once.
func locate(in *Input, silent []*endpoint, due []ruleset.Suspect) map[netip.AddrPort][]portOf {
	if len(silent)+len(due) == 0 {
		return nil
	}
	at := make(map[netip.AddrPort][]portOf, len(silent)+len(due))
	for _, e := range silent {
		at[e.addr] = nil
	}
	for _, s := range due {
		at[s.Endpoint] = nil
	}
	for _, s := range in.Services {
		for i := range s.Ports {
			p := portOf{s, &s.Ports[i]}
			if !ejects(p.port) {
				continue
			}
			for _, r := range distinct(p.port) {
				for _, e := range r.Endpoints {
					list, is := at[e.Addr]
					if again := len(list) > 0 && list[len(list)-1] == p; is && !again {
						at[e.Addr] = append(list, p)
					}
				}
			}
		}
	}
	for _, list := range at {
		slices.SortFunc(list, portOf.compare)
	}
	return at
}

func (p portOf) compare(o portOf) int {
	return cmp.Or(p.service.Name.Compare(o.service.Name), p.port.Compare(o.port))
}
