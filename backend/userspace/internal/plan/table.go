package plan

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// PortID identifies a port of a Service in one family, also when its record changes.
type PortID struct {
	Service  state.ServiceName
	Port     string
	Protocol state.Protocol
	Family   state.Family
}

// Port is a port in a [Table], as it is now.
type Port struct {
	ID PortID
	*state.Port
	serving map[netip.AddrPort]bool
}

// Route returns where new connections of a class go that were addressed to a frontend of p.
func (p *Port) Route(frontend state.FrontendKey, c Class) *state.Route {
	traffic := &p.External
	i := slices.IndexFunc(p.Frontends, func(f state.Frontend) bool { return p.Key(&f) == frontend })
	if i >= 0 && p.Frontends[i].Kind == state.ClusterIP {
		traffic = &p.Internal
	}
	if c == Outside {
		return &traffic.Outside
	}
	return &traffic.Inside
}

// Admits reports whether a client is in the source ranges of a frontend of p.
func (p *Port) Admits(frontend state.FrontendKey, client netip.Addr) bool {
	i := slices.IndexFunc(p.Frontends, func(f state.Frontend) bool { return p.Key(&f) == frontend })
	if i < 0 || !p.Frontends[i].Restricted {
		return i >= 0
	}
	return slices.ContainsFunc(p.Frontends[i].Sources, func(source netip.Prefix) bool { return source.Contains(client) })
}

// Serves reports whether connections to an endpoint may go on.
func (p *Port) Serves(endpoint netip.AddrPort) bool { return p.serving[endpoint] }

// Table holds records, and finds the port of a frontend in them. The zero value is empty.
type Table struct {
	services  map[state.ServiceName]*service
	frontends map[state.FrontendKey]*Port
}

type service struct {
	record *state.Service
	ports  []Port
}

// Get returns the record of a service, nil if there is none.
func (t *Table) Get(name state.ServiceName) *state.Service {
	if s := t.services[name]; s != nil {
		return s.record
	}
	return nil
}

// All yields all records.
func (t *Table) All() iter.Seq[*state.Service] {
	return func(yield func(*state.Service) bool) {
		for _, s := range t.services {
			if !yield(s.record) {
				return
			}
		}
	}
}

// Gone returns the services that an update takes away: also those that are missing in a full one.
func (t *Table) Gone(u *state.Update) []state.ServiceName {
	if !u.Full {
		return u.Removed
	}
	there := make(map[state.ServiceName]bool, len(u.Changed))
	for _, s := range u.Changed {
		there[s.Name] = true
	}
	gone := slices.Clone(u.Removed)
	for name := range t.services {
		if !there[name] {
			gone = append(gone, name)
		}
	}
	return gone
}

// Set adds or replaces a service. It takes frontends from others, and returns those that have lost some.
func (t *Table) Set(s *state.Service) (losers []state.ServiceName) {
	t.put(s, func(k state.FrontendKey, p *Port) {
		if owner := t.frontends[k]; owner != nil && !slices.Contains(losers, owner.ID.Service) {
			losers = append(losers, owner.ID.Service)
		}
		t.frontends[k] = p
	})
	return losers
}

// Restore puts a service back as it was, but for frontends that others have by now.
func (t *Table) Restore(s *state.Service) {
	t.put(s, func(k state.FrontendKey, p *Port) {
		if t.frontends[k] == nil {
			t.frontends[k] = p
		}
	})
}

func (t *Table) put(s *state.Service, claim func(state.FrontendKey, *Port)) {
	if t.services == nil {
		t.services, t.frontends = map[state.ServiceName]*service{}, map[state.FrontendKey]*Port{}
	}
	t.Remove(s.Name)
	e := &service{record: s, ports: make([]Port, len(s.Ports))}
	for i := range s.Ports {
		p := &s.Ports[i]
		e.ports[i] = Port{ID: PortID{s.Name, p.Name, p.Protocol, p.Family}, Port: p, serving: map[netip.AddrPort]bool{}}
		for _, endpoint := range Serving(p) {
			e.ports[i].serving[endpoint.Addr] = true
		}
		for _, f := range p.Frontends {
			claim(p.Key(&f), &e.ports[i])
		}
	}
	t.services[s.Name] = e
}

// Remove removes a service, if it is there.
func (t *Table) Remove(name state.ServiceName) {
	e := t.services[name]
	if e == nil {
		return
	}
	for i := range e.ports {
		p := &e.ports[i]
		for _, f := range p.Frontends {
			if k := p.Key(&f); t.frontends[k] == p {
				delete(t.frontends, k)
			}
		}
	}
	delete(t.services, name)
}

// LeadsBack reports whether an endpoint of a service is a frontend of the same service, or the cluster IP of any: a connection to it would be relayed again. Other
// frontends are addresses that anybody may name as those of his own Service, and an endpoint of somebody else may have them. isLocal reports whether an address
// is one of this machine's, all of which may serve NodePorts.
func (t *Table) LeadsBack(name state.ServiceName, k Kind, endpoint netip.AddrPort, isLocal func(netip.Addr) bool) bool {
	p, key := t.Find(k, endpoint)
	switch {
	case p == nil || !key.Addr.IsValid() && !isLocal(endpoint.Addr()):
		return false
	case p.ID.Service == name:
		return true
	}
	i := slices.IndexFunc(p.Frontends, func(f state.Frontend) bool { return p.Key(&f) == key })
	return i >= 0 && p.Frontends[i].Kind == state.ClusterIP
}

// Find returns the port that a connection was addressed to, with the frontend, or nil. dst is the destination as the client knows it.
func (t *Table) Find(k Kind, dst netip.AddrPort) (*Port, state.FrontendKey) {
	key := state.FrontendKey{Family: k.Family, Protocol: k.Protocol, Addr: dst.Addr(), Port: dst.Port()}
	if p := t.frontends[key]; p != nil {
		return p, key
	}
	key.Addr = netip.Addr{} // the base sends nothing here that was not for a node port address
	return t.frontends[key], key
}
