package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// Weights and hashes take more slots than endpoints without them do. Package apportion has the bounds of these slots. A service that finds no room shares
// its connections evenly, at random, until there is room. So the services that come last do without.

// roomFeatures are the parts of records that take such slots.
const roomFeatures = state.Weights | state.Balances

// lay lays out a service with its numbers, without its ejected endpoints, and with the shares of now. It goes by weights and hashes if there is room for
// their slots, and else evenly. place is placeService, or follow, with the previous record.
func (p *Plan) lay(s *state.Service, previous *applied, held map[owner]uint32, place func(*state.Service) []placement) applied {
	namespace := s.Name.Namespace
	p.slots.Add(namespace, -previous.slots)
	left := p.settings.Ejected.Without(s)
	next := applied{record: p.shared(left), above: p.settings.above(s)}
	next.places, next.crowded, next.counts = place(next.record), isCrowded(s), next.record != left
	if next.slots = slotsOf(next.record, next.places); next.slots > 0 && !apportion.HasRoom(namespace, next.slots, p.m.slots, p.slots) {
		next.record, _ = left.For(state.AllFeatures &^ roomFeatures)
		next.lacks, next.crowded, next.counts = next.slots, false, false
		next.places, next.slots = place(next.record), 0
	}
	if next.record != s {
		next.asked = s
	}
	p.slots.Add(namespace, next.slots)
	next.numbers = p.number(s.Name, held, next.record)
	return next
}

// layAs lays out a service as it was expected to be. The numbers are the same: they are given in the same order.
func (p *Plan) layAs(e, previous *applied, held map[owner]uint32) applied {
	next, name := *e, e.record.Name
	p.slots.Add(name.Namespace, next.slots-previous.slots)
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
			if r != nil && r.Weighted() && classKind(p, r) == shares && !consistent.Serves(p, r) {
				each[route(j).traffic()] += len(places[i][j])
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
		if a := p.m.services[name]; a.lacks > 0 && !isNew && apportion.HasRoom(name.Namespace, a.lacks, p.m.slots, p.slots) {
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
	var changed listing
	for name, a := range p.services {
		before := p.m.services[name]
		changed |= before.listing() ^ a.listing()
	}
	for i, list := range [...]*[]state.ServiceName{&p.m.lacking, &p.m.crowded, &p.m.counting} {
		if in := listing(1 << i); changed&in != 0 {
			*list = p.relist(*list, in)
		}
	}
}

// listing is the lists of the mirror that a service is in.
type listing uint8

const (
	inLacking listing = 1 << iota
	inCrowded
	inCounting
)

func (a *applied) listing() (in listing) {
	if a.lacks > 0 {
		in |= inLacking
	}
	if a.crowded {
		in |= inCrowded
	}
	if a.counts {
		in |= inCounting
	}
	return in
}

// relist returns the list of the services in it, once the plan is carried out. The services that were there keep their order.
func (p *Plan) relist(list []state.ServiceName, in listing) []state.ServiceName {
	var come []state.ServiceName
	for name, a := range p.services {
		before := p.m.services[name]
		if a.listing()&^before.listing()&in != 0 {
			come = append(come, name)
		}
	}
	stay := slices.DeleteFunc(slices.Clone(list), func(name state.ServiceName) bool {
		a, isNew := p.services[name]
		return isNew && a.listing()&in == 0
	})
	slices.SortFunc(come, state.ServiceName.Compare)
	return append(stay, come...)
}

// shared returns a record with the shares of now.
func (p *Plan) shared(s *state.Service) *state.Service {
	if p.settings.Shares == nil {
		return s
	}
	return p.settings.Shares(s)
}

// isCrowded reports whether a port of a record has too many endpoints for its balance.
func isCrowded(s *state.Service) bool {
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, r := range p.Routes() {
			if consistent.Crowded(p, r) || least.Crowded(p, r) {
				return true
			}
		}
	}
	return false
}

// Share plans that services get their shares of now, until the plan has so many elements. It returns how many of the services it has come to.
func (m *Mirror) Share(s *Settings, names []state.ServiceName, most int) (p *Plan, done int) {
	p = newPlan(s, m, m)
	for _, name := range names {
		if p.elements() >= most {
			break
		}
		if a := m.services[name]; a.counts && !p.shared(s.Ejected.Without(a.asked)).Equal(a.record) {
			p.replace(name, a.asked)
		}
		done++
	}
	p.finalize(m.nodePorts)
	p.grow()
	return p, done
}

// elements returns how many elements the plan adds and deletes.
func (p *Plan) elements() (n int) {
	for _, s := range p.order {
		n += s.del.n + s.add.n
	}
	return n
}

// Lacking returns the services whose weights and hashes have no room, in the order in which they came. It is not to be changed, and is another list after
// a change.
func (m *Mirror) Lacking() []state.ServiceName { return m.lacking }

// Crowded returns the services with more endpoints than their balance can be for, likewise.
func (m *Mirror) Crowded() []state.ServiceName { return m.crowded }

// Counting returns the services whose shares follow from their connections, likewise.
func (m *Mirror) Counting() []state.ServiceName { return m.counting }
