package plan

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/apportion"
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
	// tables are the tables of routes whose connections are hashed. Other routes have nil.
	tables [Routes]*hashTable
}

// Routes is how many routes a port has: of two kinds of frontends, for two classes of clients.
const Routes = 4

// Route returns where new connections of a class go that were addressed to a frontend of p, and the number of that route among [state.Port.Routes].
func (p *Port) Route(frontend *state.Frontend, c Class) (r *state.Route, number int) {
	traffic := p.Traffic(frontend.Kind)
	r = &traffic.Inside
	if c == Outside {
		r = &traffic.Outside
	}
	routes := p.Routes()
	return r, slices.Index(routes[:], r)
}

// Admits reports whether a client is in the source ranges of a frontend.
func Admits(frontend *state.Frontend, client netip.Addr) bool {
	return !frontend.Restricted || slices.ContainsFunc(frontend.Sources, func(source netip.Prefix) bool { return source.Contains(client) })
}

// Serves reports whether connections to an endpoint may go on.
func (p *Port) Serves(endpoint netip.AddrPort) bool {
	for _, list := range p.Port.Serving() {
		if _, found := slices.BinarySearchFunc(list, endpoint, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) }); found {
			return true
		}
	}
	return false
}

// Table holds records, and finds the port of a frontend in them. The zero value is empty.
type Table struct {
	// Step is called after every [stepFrontends] frontends that are changed: others may look into the table until it returns. Each frontend
	// leads to its old port or to its new one by then. It may be nil.
	Step func()

	services  map[state.ServiceName]*service
	frontends map[state.FrontendKey]place
	// changed counts the frontends that were changed since the last step.
	changed int

	// room is how many slots the tables of hashes have, and lacking the services whose tables have no room. retried is the index of the one that was tried
	// again last. crowded are services with too many endpoints for a table.
	room             apportion.Room
	lacking, crowded []state.ServiceName
	retried          int
}

// place is the port that has a frontend, and where it has it.
type place struct {
	*Port
	number int
}

// stepFrontends bounds how long a change keeps others waiting: some 50 us.
const stepFrontends = 256

type service struct {
	record *state.Service
	ports  []Port
	// slots are how many slots its tables have. lacks and crowded are set if it is in the list of this name.
	slots          int
	lacks, crowded bool
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

// Names yields the names of all services.
func (t *Table) Names() iter.Seq[state.ServiceName] { return maps.Keys(t.services) }

// Set adds or replaces a service. It takes over frontends that other services had. The same update also sets or removes
// those services.
func (t *Table) Set(s *state.Service) {
	t.set(s, true)
	t.retry()
}

// set adds or replaces a service. Without takeOver, frontends that other services have stay with them.
func (t *Table) set(s *state.Service, takeOver bool) {
	if t.services == nil {
		t.services, t.frontends, t.room = map[state.ServiceName]*service{}, map[state.FrontendKey]place{}, apportion.Room{}
	}
	old := t.services[s.Name]
	e := &service{record: s, ports: make([]Port, len(s.Ports))}
	t.services[s.Name] = e
	for i := range s.Ports {
		p := &s.Ports[i]
		e.ports[i] = Port{ID: PortID{Service: s.Name, Port: p.Name, Protocol: p.Protocol, Family: p.Family}, Port: p}
	}
	t.unhash(old)
	t.hash(e, old)
	for i := range s.Ports {
		p := &s.Ports[i]
		for n := range p.Frontends {
			k := p.Key(&p.Frontends[n])
			if holder := t.frontends[k].Port; takeOver || holder == nil || holder.ID.Service == s.Name {
				t.frontends[k] = place{&e.ports[i], n}
			}
			t.step()
		}
	}
	t.withdraw(old)
}

// Restore puts services back as they were before an update; nil stands for one that was not there.
func (t *Table) Restore(before map[state.ServiceName]*state.Service) {
	for _, s := range before {
		if s != nil {
			t.Set(s)
		}
	}
	for name, s := range before {
		if s == nil {
			t.Remove(name)
		}
	}
}

// Remove removes a service, if it is there.
func (t *Table) Remove(name state.ServiceName) {
	old := t.services[name]
	delete(t.services, name)
	t.unhash(old)
	t.withdraw(old)
	t.retry()
}

// withdraw removes the frontends that still lead to a record. It may be nil.
func (t *Table) withdraw(e *service) {
	if e == nil {
		return
	}
	for i := range e.ports {
		p := &e.ports[i]
		for n := range p.Frontends {
			if k := p.Key(&p.Frontends[n]); t.frontends[k].Port == p {
				delete(t.frontends, k)
			}
			t.step()
		}
	}
}

// LeadsBack reports whether an endpoint of a service is a frontend of the same service, or any cluster IP. The relay would receive a
// connection to such an endpoint again. Frontends of other services that are no cluster IPs do not count. Anybody may claim such an address
// in a Service of their own, and it may be another owner's endpoint. isLocal reports whether an address belongs to this machine, because
// any such address may serve NodePorts.
func (t *Table) LeadsBack(name state.ServiceName, k Kind, endpoint netip.AddrPort, isLocal func(netip.Addr) bool) bool {
	p, frontend, key := t.Lookup(k, endpoint)
	switch {
	case p == nil || !key.Addr.IsValid() && !isLocal(endpoint.Addr()):
		return false
	case p.ID.Service == name:
		return true
	}
	return frontend.Kind == state.ClusterIP
}

func (t *Table) step() {
	if t.changed++; t.changed%stepFrontends == 0 && t.Step != nil {
		t.Step()
	}
}

// Lookup returns the port that a connection was addressed to and the frontend, with its key, or nil. dst is the destination as the client knows it.
func (t *Table) Lookup(k Kind, dst netip.AddrPort) (*Port, *state.Frontend, state.FrontendKey) {
	key := state.FrontendKey{Family: k.Family, Protocol: k.Protocol, Addr: dst.Addr(), Port: dst.Port()}
	at, found := t.frontends[key]
	if !found {
		key.Addr = netip.Addr{} // the base sends nothing here that was not for a node port address
		if at, found = t.frontends[key]; !found {
			return nil, nil, key
		}
	}
	return at.Port, &at.Port.Frontends[at.number], key
}
