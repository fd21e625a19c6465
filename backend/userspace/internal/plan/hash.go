package plan

import (
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// hashTable is the table of a route. It is made when it is first needed.
type hashTable struct {
	route *state.Route
	slots []int16
}

// Hash returns the table of slots of a route by its number, as [consistent.Table] has it. It is nil if the endpoints of the route are drawn. The first
// call after a change of the route makes the table, which takes up to some milliseconds. One goroutine at a time may call Hash for all versions of a port.
// The table must not be changed.
func (p *Port) Hash(route int) []int16 {
	t := p.tables[route]
	if t == nil {
		return nil
	}
	if t.slots == nil {
		t.slots = consistent.Table(t.route)
	}
	return t.slots
}

// sameTable reports whether two routes have the same table, because they have the same memory.
func sameTable(a, b *state.Route) bool {
	return a.Refused == b.Refused && len(a.Endpoints) == len(b.Endpoints) && len(a.Endpoints) > 0 && &a.Endpoints[0] == &b.Endpoints[0]
}

// slotsOf returns how many slots the tables of a record have, and whether a port has too many endpoints for a table.
func slotsOf(s *state.Service) (n int, crowded bool) {
	for i := range s.Ports {
		p := &s.Ports[i]
		routes := p.Routes()
		for j, r := range routes {
			crowded = crowded || consistent.Crowded(p, r)
			if consistent.Serves(p, r) && !slices.ContainsFunc(routes[:j], func(o *state.Route) bool { return sameTable(o, r) }) {
				n += consistent.SizeFor(len(r.Endpoints))
			}
		}
	}
	return n, crowded
}

// setTables gives a port its tables. Routes that are as they were in the previous version of the port, which may be nil, keep theirs.
func (p *Port) setTables(previous *Port) {
	routes := p.Routes()
	for i, r := range routes {
		if !consistent.Serves(p.Port, r) {
			continue
		}
		p.tables[i] = &hashTable{route: r}
		if previous != nil {
			for j, was := range previous.Routes() {
				if previous.tables[j] != nil && sameTable(was, r) {
					p.tables[i] = previous.tables[j]
				}
			}
		}
		for j, other := range routes[:i] {
			if p.tables[j] != nil && sameTable(other, r) {
				p.tables[i] = p.tables[j]
			}
		}
	}
}

// hash gives a service its tables, if there is room for their slots. old is its previous version, nil if there is none.
func (t *Table) hash(e, old *service) {
	name := e.record.Name
	e.slots, e.crowded = slotsOf(e.record)
	e.lacks = e.slots > 0 && !apportion.HasRoom(name.Namespace, e.slots, t.room)
	switch {
	case e.lacks:
		t.lacking = append(t.lacking, name)
		e.slots = 0
	case e.slots > 0:
		t.room.Add(name.Namespace, e.slots)
		for i := range e.ports {
			p := &e.ports[i]
			var previous *Port
			if old != nil {
				if at := slices.IndexFunc(old.ports, func(o Port) bool { return o.ID == p.ID }); at >= 0 {
					previous = &old.ports[at]
				}
			}
			p.setTables(previous)
		}
	}
	if e.crowded {
		t.crowded = append(t.crowded, name)
	}
}

// unhash gives back what hash has given to a service, which may be nil.
func (t *Table) unhash(e *service) {
	if e == nil {
		return
	}
	is := func(name state.ServiceName) bool { return name == e.record.Name }
	if e.slots > 0 {
		t.room.Add(e.record.Name.Namespace, -e.slots)
	}
	if e.lacks {
		t.lacking = slices.DeleteFunc(t.lacking, is)
	}
	if e.crowded {
		t.crowded = slices.DeleteFunc(t.crowded, is)
	}
}

// retries is how many services that lack room are looked at in one change.
const retries = 64

// retry gives one service its tables that lacks room, if there is room by now. It looks at some of these services only, and begins where the last
// call ended. The service may be one that the same update changes later: another service may have some of its frontends by now.
func (t *Table) retry() {
	for range min(retries, len(t.lacking)) {
		t.retried = (t.retried + 1) % len(t.lacking)
		s := t.services[t.lacking[t.retried]].record
		if n, _ := slotsOf(s); apportion.HasRoom(s.Name.Namespace, n, t.room) {
			t.set(s, false)
			return
		}
	}
}

// Problems returns which services draw endpoints at random that should be hashed.
func (t *Table) Problems() (errs []error) {
	if n := len(t.lacking); n > 0 {
		errs = append(errs, fmt.Errorf("%d services, the first is %v, share new connections evenly at random: there is no room for the slots of their "+
			"hashes (a service may have %d, a namespace %d, a node %d): set a hash for fewer ports", n, t.lacking[0],
			apportion.MaxServiceSlots, apportion.MaxNamespaceSlots, apportion.MaxSlots))
	}
	if n := len(t.crowded); n > 0 {
		errs = append(errs, fmt.Errorf("%d services, the first is %v, draw endpoints at random instead of by a hash: one of their ports has more than %d "+
			"endpoints: use fewer, or set the balance of these services to random", n, t.crowded[0], consistent.Most-1))
	}
	return errs
}
