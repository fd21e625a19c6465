package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// Weights and hashes take more slots than endpoints without them do. These slots of a node have a bound, so that nobody can fill the kernel's
// memory with them. A namespace may have half of them, and a service an eighth. A service that finds no room shares its connections evenly, at
// random, until there is room. So the services that come last do without.
//
// These are the bounds of a node, a namespace and a service.
const (
	MaxSlots          = 1 << 20
	MaxNamespaceSlots = MaxSlots / 2
	MaxServiceSlots   = MaxSlots / 8
)

// roomFeatures are the parts of records that take such slots.
const roomFeatures = state.Weights | state.Balances

// slotUse is how many of these slots are in use. The total is under the empty name, which no namespace has.
type slotUse map[string]int

func (u slotUse) add(namespace string, n int) {
	for _, name := range [...]string{"", namespace} {
		if u[name] += n; u[name] == 0 {
			delete(u, name)
		}
	}
}

// hasRoom reports whether a service of a namespace may take n slots.
func (p *Plan) hasRoom(namespace string, n int) bool {
	used := func(name string) int { return p.m.slots[name] + p.slots[name] }
	return n <= MaxServiceSlots && used(namespace)+n <= MaxNamespaceSlots && used("")+n <= MaxSlots
}

// lay lays out a service with its numbers, without its ejected endpoints. It goes by weights and hashes if there is room for their slots, and else evenly.
// place is placeService, or follow, with the previous record.
func (p *Plan) lay(s *state.Service, previous *applied, held map[owner]uint32, place func(*state.Service) []placement) applied {
	namespace := s.Name.Namespace
	p.slots.add(namespace, -previous.slots)
	left := p.settings.Ejected.Without(s)
	next := applied{record: left, places: place(left), above: p.settings.above(s)}
	if next.slots = slotsOf(left, next.places); next.slots > 0 && !p.hasRoom(namespace, next.slots) {
		next.record, _ = left.For(state.AllFeatures &^ roomFeatures)
		next.lacks = next.slots
		next.places, next.slots = place(next.record), 0
	}
	if next.record != s {
		next.asked = s
	}
	p.slots.add(namespace, next.slots)
	next.numbers = p.number(s.Name, held, next.record)
	return next
}

// layAs lays out a service as it was expected to be. The numbers are the same: they are given in the same order.
func (p *Plan) layAs(e, previous *applied, held map[owner]uint32) applied {
	next, name := *e, e.record.Name
	p.slots.add(name.Namespace, next.slots-previous.slots)
	next.numbers = p.number(name, held, next.record)
	return next
}

// slotsOf returns how many slots the weights and hashes of a record take, over all frontends.
func slotsOf(s *state.Service, places []placement) (n int) {
	for i := range s.Ports {
		p := &s.Ports[i]
		for r := range hashTables(p) {
			n += consistent.SizeFor(len(r.Endpoints))
		}
		var each [2]int // of the slots of a frontend, by its traffic
		for j, r := range routes(p) {
			if r != nil && r.Weighted() && !r.Even() && !isHashed(p, r) {
				each[j/int(internalRoutes)] += len(places[i][j])
			}
		}
		if each == [2]int{} {
			continue
		}
		for j := range p.Frontends {
			n += each[trafficOf(&p.Frontends[j])]
		}
	}
	return n
}

// retries is how many services that lack room are looked at in one change.
const retries = 64

// retry plans the weights and hashes of one service that lacks room, if there is room by now. It looks at some of these services only, and begins where
// the last plan ended.
func (p *Plan) retry() {
	names := p.m.lacking
	for range min(retries, len(names)) {
		p.m.retried = (p.m.retried + 1) % len(names)
		name := names[p.m.retried]
		_, isNew := p.services[name]
		if a := p.m.services[name]; a.lacks > 0 && !isNew && p.hasRoom(name.Namespace, a.lacks) {
			p.replace(name, a.asked)
			return
		}
	}
}

// commitSlots notes what the plan has taken, and who lacks room.
func (p *Plan) commitSlots() {
	for name, n := range p.slots {
		if p.m.slots[name] += n; p.m.slots[name] == 0 {
			delete(p.m.slots, name)
		}
	}
	var come []state.ServiceName
	changes := false
	for name, a := range p.services {
		lacked, lacks := p.m.services[name].lacks > 0, a.lacks > 0
		changes = changes || lacked != lacks
		if lacks && !lacked {
			come = append(come, name)
		}
	}
	if !changes {
		return
	}
	lacking := slices.DeleteFunc(slices.Clone(p.m.lacking), func(name state.ServiceName) bool {
		a, isNew := p.services[name]
		return isNew && a.lacks == 0
	})
	slices.SortFunc(come, state.ServiceName.Compare)
	p.m.lacking = append(lacking, come...)
}

// Lacking returns the services whose weights and hashes have no room, in the order in which they came. It is not to be changed, and is another list after
// a change.
func (m *Mirror) Lacking() []state.ServiceName { return m.lacking }
