package ruleset

import (
	"cmp"
	"maps"
	"math"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// PortEndpoint is an endpoint of one TCP port of a Service. Its family is the address's.
type PortEndpoint struct {
	Service  state.ServiceName
	Port     string
	Endpoint netip.AddrPort
}

// Compare orders by service, port and endpoint.
func (e PortEndpoint) Compare(o PortEndpoint) int {
	return cmp.Or(e.Service.Compare(o.Service), cmp.Compare(e.Port, o.Port), e.Endpoint.Compare(o.Endpoint))
}

// Ejected are endpoints that get no new connections for now. A nil Ejected has none. It is not changed once it is made.
type Ejected struct {
	services map[state.ServiceName][]PortEndpoint // sorted
}

// NewEjected returns an Ejected with these endpoints, nil for none.
func NewEjected(endpoints ...PortEndpoint) *Ejected {
	if len(endpoints) == 0 {
		return nil
	}
	e := &Ejected{services: map[state.ServiceName][]PortEndpoint{}}
	for _, of := range slices.Compact(slices.SortedFunc(slices.Values(endpoints), PortEndpoint.Compare)) {
		e.services[of.Service] = append(e.services[of.Service], of)
	}
	return e
}

// Has reports whether an endpoint is ejected.
func (e *Ejected) Has(of PortEndpoint) bool {
	_, is := slices.BinarySearchFunc(e.of(of.Service), of, PortEndpoint.Compare)
	return is
}

// of returns the ejected endpoints of a service.
func (e *Ejected) of(name state.ServiceName) []PortEndpoint {
	if e == nil {
		return nil
	}
	return e.services[name]
}

// Without returns a record without its ejected endpoints. It is s itself if no route changes. Only TCP ports with Ejection lose endpoints, and no route loses
// its last one. Endpoints that stay have the shares that they had among themselves, and so has what is refused.
func (e *Ejected) Without(s *state.Service) *state.Service {
	if len(e.of(s.Name)) == 0 {
		return s
	}
	left := s
	for i := range s.Ports {
		p := s.Ports[i]
		if p.Protocol != state.TCP || !p.Ejection {
			continue
		}
		gone := func(addr netip.AddrPort) bool { return e.Has(PortEndpoint{s.Name, p.Name, addr}) }
		changes := false
		for _, r := range p.Routes() {
			changes = eject(r, gone) || changes
		}
		if !changes {
			continue
		}
		if left == s {
			left = s.WithPorts(slices.Clone(s.Ports))
		}
		left.Ports[i] = p
	}
	return left
}

// eject takes endpoints out of a route, unless they are all that it has, and reports whether it has taken any.
func eject(r *state.Route, gone func(netip.AddrPort) bool) bool {
	var left []state.Endpoint
	total, rest := 0, 0 // of the weights
	for _, e := range r.Endpoints {
		total += int(e.Weight)
		if !gone(e.Addr) {
			left, rest = append(left, e), rest+int(e.Weight)
		}
	}
	if len(left) == 0 || len(left) == len(r.Endpoints) {
		return false
	}
	if r.Refused > 0 {
		// Larger weights lose less when the refused one is rounded.
		most := slices.MaxFunc(left, func(a, b state.Endpoint) int { return int(a.Weight) - int(b.Weight) })
		factor := min(math.MaxUint16/uint32(most.Weight), math.MaxUint32/r.Refused)
		for i := range left {
			left[i].Weight *= uint16(factor)
		}
		r.Refused = uint32(max(1, math.Round(float64(r.Refused)*float64(factor)*float64(rest)/float64(total))))
	}
	r.Endpoints = left
	return true
}

// Left returns the endpoints that leave a route because they are ejected, sorted. It must be called before Commit. An ejected endpoint that was the last
// one of its route leaves it when there is another one.
func (p *Plan) Left() (list []netip.AddrPort) {
	if p.settings.Ejected == nil {
		return nil
	}
	for name := range p.settings.Ejected.services {
		a, planned := p.services[name]
		if !planned || a.asked == nil {
			continue
		}
		was := p.previous.services[name]
		for i := range a.asked.Ports {
			before := was.find(&a.asked.Ports[i], i)
			if before < 0 {
				continue
			}
			had, has := was.record.Ports[before].Routes(), a.record.Ports[i].Routes()
			for j, r := range a.asked.Ports[i].Routes() {
				for _, e := range r.Endpoints {
					if !has[j].Has(e.Addr) && had[j].Has(e.Addr) {
						list = append(list, e.Addr)
					}
				}
			}
		}
	}
	slices.SortFunc(list, netip.AddrPort.Compare)
	return slices.Compact(list)
}

// eject plans the services that are not in the update, and whose ejected endpoints are others than before.
func (p *Plan) eject() {
	was, is := p.m.ejected, p.settings.Ejected
	if was == is {
		return
	}
	names := map[state.ServiceName]struct{}{}
	for _, e := range []*Ejected{was, is} {
		if e != nil {
			for name := range e.services {
				names[name] = struct{}{}
			}
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(names), state.ServiceName.Compare) { // the same change makes the same batch
		_, planned := p.services[name]
		a := p.m.services[name]
		if !planned && a.record != nil && !slices.Equal(was.of(name), is.of(name)) {
			p.replace(name, a.desired())
		}
	}
}
