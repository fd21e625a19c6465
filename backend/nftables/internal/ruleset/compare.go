package ruleset

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Desired is the whole state that the tables are to show.
type Desired struct {
	// Services are all that are programmed, in any order.
	Services []*state.Service
	Node     *state.Node
	// NodePorts are the addresses that serve NodePorts, sorted.
	NodePorts []netip.Addr
	// Preserved is what stays in addition. None of its services is among Services.
	Preserved Preserved
}

// After returns the desired content once u is applied to the content of the mirror, without the addresses that serve NodePorts.
func (m *Mirror) After(u *state.Update) Desired {
	d := Desired{Services: slices.Clone(u.Changed), Node: u.Node, Preserved: m.Preserved.After(u)}
	if u.Full {
		return d
	}
	for name := range d.Preserved.Lost {
		d.Services = append(d.Services, d.Preserved.Services[name])
		delete(d.Preserved.Services, name)
	}
	clear(d.Preserved.Lost)
	touched := map[state.ServiceName]bool{}
	for _, s := range u.Changed {
		touched[s.Name] = true
	}
	for _, name := range u.Removed {
		touched[name] = true
	}
	for name, a := range m.services {
		if !touched[name] {
			d.Services = append(d.Services, a.desired())
		}
	}
	return d
}

// Lose preserves what the kernel holds of services that there is no room for, each with its error.
func (d *Desired) Lose(lost map[state.ServiceName]error) {
	d.Services = slices.DeleteFunc(d.Services, func(s *state.Service) bool {
		err := lost[s.Name]
		if err != nil {
			d.Preserved.Services[s.Name], d.Preserved.Lost[s.Name] = s, err
		}
		return err != nil
	})
}

// All returns the services of the state, also those that are lost.
func (d *Desired) All() []*state.Service {
	all := slices.Clone(d.Services)
	for name := range d.Preserved.Lost {
		all = append(all, d.Preserved.Services[name])
	}
	return all
}

// Compare plans the difference between the kernel's content and the desired content. It sorts the desired services, so that the same change
// makes the same batch. The placements come from the mirror, so that endpoints stay in their slots, or from the kernel for services that
// the mirror does not know. The mirror itself stays unchanged, and the plan becomes part of a new one. If something unexpected is in a
// large set, Compare reads everything again, and dumps that set. Errors come from r, with the name of the table or set.
func (m *Mirror) Compare(s *Settings, want Desired, r Reader, l Limits) (*Plan, error) {
	slices.SortFunc(want.Services, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	for whole := map[tableSet]bool{}; ; {
		p, unexpected, err := m.compareOnce(s, want, r, l, whole)
		if err != nil || len(unexpected) == 0 {
			return p, err
		}
		for _, set := range unexpected {
			whole[set.tableSet] = true
		}
	}
}

// compareOnce is compare, and returns the sets that have to be read as a whole first, if there are any.
func (m *Mirror) compareOnce(s *Settings, want Desired, r Reader, l Limits, whole map[tableSet]bool) (*Plan, []*largeSet, error) {
	ks, err := read(r, l.Find, whole)
	if err != nil {
		return nil, nil, err
	}
	if len(ks.large) > 0 {
		ks.lookups = newLookups(r, l, ks.large, expect(s, m, ks, want), want.Preserved.none())
		defer ks.lookups.end()
	}
	p, err := m.difference(s, ks, want)
	if err != nil {
		return nil, nil, err
	}
	return p, slices.DeleteFunc(ks.unexpected(), func(s *largeSet) bool { return s.rewrite }), nil
}

// difference plans the difference between the desired content and the kernel's content. That content has been read, or is read during the
// comparison.
func (m *Mirror) difference(settings *Settings, ks *kernelState, want Desired) (*Plan, error) {
	p := newPlan(settings, m, NewMirror())
	p.node = want.Node
	p.serveOn(want.NodePorts)
	for i := range ks.tables {
		if sk := ks.tables[i].skeleton; sk != nil {
			p.shape.merge(shapeOf(ks.tables[i].family, sk.Sets()))
			p.shape.loopback = p.shape.loopback || ServesLoopback(sk)
		}
	}
	p.reserve(want.Services, m)
	if !want.Preserved.none() { // preserved elements can be in any set
		if err := ks.reach(everything(want)); err != nil {
			return nil, err
		}
	}
	kept := p.preserveNumbers(ks, want)
	p.services = make(map[state.ServiceName]applied, len(want.Services))
	var again []sharedKey
	for i, s := range want.Services {
		if err := ks.reach(i + 1); err != nil {
			return nil, err
		}
		before := m.services[s.Name]
		held := kept.without(before.numbers)
		if e := ks.asExpected(i); e != nil {
			p.services[s.Name] = p.layAs(&e.applied, &before, held)
			p.confirm(ks, e)
			continue
		}
		if before.record == nil && len(ks.elements) > 0 {
			before = ks.fromKernel(p.shared(s))
		}
		next := p.lay(s, &before, held, func(s *state.Service) []placement { return placeService(before, s) })
		p.services[s.Name] = next
		p.new.whole(&next)
		again = again[:0]
		for _, k := range p.new.shared {
			n := p.refs[k] + 1
			if p.refs[k] = n; n == 1 {
				p.new.own = append(p.new.own, k.element())
			} else {
				again = append(again, k)
			}
		}
		first, pingsAgain := p.countPings(p.new.pings, 1)
		for _, k := range first {
			p.new.own = append(p.new.own, k.element())
		}
		p.compare(ks)
		for _, k := range again {
			ks.forget(k.element())
		}
		for _, k := range pingsAgain {
			ks.forget(k.element())
		}
		p.new.reset()
	}
	if err := ks.reach(everything(want)); err != nil {
		return nil, err
	}
	p.new.own = append(p.new.own, nodePortElements(want.NodePorts)...)
	p.compare(ks)
	p.rewrite(ks)
	p.preserve(ks, want, kept)
	for _, k := range slices.SortedFunc(maps.Keys(ks.elements), elementKey.compare) {
		p.del(element{k.family, k.set, k.key, ks.elements[k]})
	}
	for i := range ks.tables {
		p.compareTable(&ks.tables[i])
	}
	return p, nil
}

// confirm takes down a service that the kernel holds as expected. It compares the elements that several services share, unless they were
// looked up.
func (p *Plan) confirm(ks *kernelState, e *expected) {
	for i := range e.own {
		delete(ks.elements, e.own[i].id())
	}
	for _, k := range e.shared {
		before := len(p.refs)
		p.refs[k]++
		if len(p.refs) == before {
			continue // it was met already
		}
		if e := k.element(); !ks.meet(&e) {
			p.new.own = append(p.new.own, e)
		}
	}
	first, _ := p.countPings(e.pings, 1)
	for _, k := range first {
		if e := k.element(); !ks.meet(&e) {
			p.new.own = append(p.new.own, e)
		}
	}
	p.compare(ks)
	p.new.reset()
}

// reserve prevents that numbers and slots of services, as the mirror shows them, are given to others that come first.
func (p *Plan) reserve(services []*state.Service, previous *Mirror) {
	for _, s := range services {
		a := previous.services[s.Name]
		for _, n := range a.numbers {
			p.m.numbers[n] = struct{}{}
		}
		p.slots.Add(s.Name.Namespace, a.slots)
	}
}

// rewrite plans that sets with anything that was not looked up are emptied and filled again, in one transaction.
func (p *Plan) rewrite(ks *kernelState) {
	sets := map[tableSet]bool{}
	for _, l := range ks.unexpected() {
		if l.rewrite {
			s := p.set(l.family, l.set)
			s.flush = true
			s.del.clear()
			s.add.clear()
			sets[l.tableSet] = true
		}
	}
	if len(sets) == 0 {
		return
	}
	maps.DeleteFunc(ks.elements, func(k elementKey, _ [maxData]byte) bool { return sets[tableSet{k.family, k.set}] })
	p.writeAnew(func(ts tableSet) bool { return sets[ts] })
}

// writeAnew plans all elements of some sets, up to those that are preserved.
func (p *Plan) writeAnew(of func(tableSet) bool) {
	write := func(e element) {
		if of(tableSet{e.family, e.set}) {
			p.add(e)
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.services), state.ServiceName.Compare) {
		a := p.services[name]
		p.new.reset()
		p.new.whole(&a)
		for i := range p.new.own {
			write(p.new.own[i])
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.refs), sharedKey.compare) {
		write(k.element())
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.pings), elementKey.compare) {
		write(k.element())
	}
	for _, e := range nodePortElements(p.nodePorts) {
		write(e)
	}
}

// compare plans the elements in p.new that the kernel lacks, and takes those that it has off ks.
func (p *Plan) compare(ks *kernelState) {
	for i := range p.new.own {
		e := &p.new.own[i]
		k := e.id()
		data, ok := ks.elements[k]
		if ok {
			delete(ks.elements, k)
			if data == e.data {
				p.shape.needs(e.family, e.set)
				continue
			}
			p.del(element{k.family, k.set, k.key, data})
		}
		p.add(*e)
	}
}

// compareTable plans the skeleton of one table. It replaces a table that has foreign content or another version, except for the sets that
// are correct. The replacement is one transaction, so that every packet finds a table.
func (p *Plan) compareTable(t *tableState) {
	if !t.serves() {
		p.skeleton(t.family, func(*nft.Set) bool { return false },
			func(*nft.Chain) (bool, bool) { return false, false })
		last := &p.tables[len(p.tables)-1]
		last.isNew, last.replace = true, t.skeleton
		return
	}
	tb := table(t.family)
	sk := skeleton{p.settings, t.family, &p.shape, p.node}
	sets := p.settings.sets(t.family, &p.shape)
	chains := sk.chains()
	if t.skeleton.Fits(tb, p.settings.TableFlags, sets, chains) {
		p.skeleton(t.family, func(s *nft.Set) bool { return t.skeleton.HasSet(tb, s) },
			func(c *nft.Chain) (bool, bool) { return t.skeleton.HasChain(tb, c) })
		return
	}
	p.replaceTable(t, sets, chains)
}

// replaceTable plans a table from scratch, with its desired and preserved content. Correct sets stay, and get their missing elements. A
// packet that is between two of the old rules at the commit continues with the old rules. If the next set were deleted, the packet would
// find nothing in it. Clients with affinity also stay. The noted numbers follow from names, which have the same meaning in any version that
// has the same set.
func (p *Plan) replaceTable(t *tableState, sets []nft.Set, chains []nft.Chain) {
	next := tablePlan{table: table(t.family), replace: t.skeleton, chains: chains}
	keepsTable := t.skeleton.Flags() == p.settings.TableFlags
	renewed := map[string]bool{}
	for i := range sets {
		if s := &sets[i]; keepsTable && t.skeleton.HasSet(next.table, s) {
			next.keeps = append(next.keeps, s.Name)
		} else {
			next.sets = append(next.sets, *s)
			renewed[s.Name] = true
		}
	}
	// All that was found equal in the others goes with them, and has to be written again.
	isRenewed := func(ts tableSet) bool { return ts.family == t.family && renewed[ts.set.name()] }
	for _, s := range p.order {
		if s.family == t.family && !slices.Contains(next.keeps, s.set.name()) {
			s.flush = false
			s.del.clear()
			s.add.clear()
		}
	}
	p.writeAnew(isRenewed)
	for _, e := range p.kept {
		again := e.set.space == global && (p.refs[sharedOf(&e)] > 0 || p.pings[e.id()] > 0)
		if isRenewed(tableSet{e.family, e.set}) && !again {
			p.add(e)
		}
	}
	p.tables = append(p.tables, next)
}

// fromKernel reads the placements of a record's routes off the kernel's slots, of the first frontend that has any.
func (ks *kernelState) fromKernel(s *state.Service) applied {
	a := applied{record: s, places: make([]placement, len(s.Ports))}
	for i := range s.Ports {
		p := &s.Ports[i]
		routes := routes(p)
		for j := range p.Frontends {
			f := &p.Frontends[j]
			at := internalInside
			if f.Kind != state.ClusterIP {
				at = externalInside
			}
			for _, from := range []struct {
				route route
				view  view
			}{{at, common}, {at, inside}, {at + 1, outside}, {edgeLocal, edge}} {
				if r := routes[from.route]; r != nil && a.places[i][from.route] == nil && from.route.traffic() == at.traffic() {
					a.places[i][from.route] = ks.placed(p, f, from.view, r)
				}
			}
		}
	}
	return a
}

// placed returns how a view's slots are filled, as far as its route has use for them. It is nil if they are empty. Of a weighted route, the
// class is known even if the slots were not read: it may have been chosen for other weights.
func (ks *kernelState) placed(p *state.Port, f *state.Frontend, v view, r *state.Route) (placed []state.Endpoint) {
	frontend, ok := ks.slotsKey(p, f)
	if !ok {
		return nil
	}
	size := slotsFor(len(r.Endpoints))
	if class := ks.classOf(frontend, v, r); class > 0 {
		size = class
		placed = make([]state.Endpoint, size)
	}
	for i := range size {
		data, ok := ks.elements[frontend.slot(v.slotOffset()+uint32(i))]
		if !ok {
			continue
		}
		if placed == nil {
			placed = make([]state.Endpoint, size)
		}
		placed[i] = state.Endpoint{Addr: decodeEndpoint(p.Family, data)}
		// The kernel does not know whether an endpoint is local.
		if j, ok := slices.BinarySearchFunc(r.Endpoints, placed[i], state.Endpoint.Compare); ok {
			placed[i] = withoutWeight(r.Endpoints[j])
		}
	}
	return placed
}

// classOf returns the class that the kernel has for a weighted route in a view of a frontend, 0 if none.
func (ks *kernelState) classOf(frontend elementKey, v view, r *state.Route) int {
	if !r.Weighted() {
		return 0
	}
	for _, class := range shareClasses {
		frontend.set = setID{space: frontend.set.space, view: v, kind: shares, arg: class}
		if _, ok := ks.elements[frontend]; ok {
			return int(class)
		}
	}
	return 0
}
