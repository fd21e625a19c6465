package ruleset

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// A plan that is committed in parts is divided between units, which stay whole. A unit is one of these:
//   - the changes of a table apart from elements
//   - all elements of a service
//   - all elements of a frontend without a service, if they fit
//   - a single element
//
// Units come in the order of stages. So nothing is added before its prerequisites, or deleted before its replacement
// exists.
type stage uint8

const (
	tableChanges    stage = iota // sets, chains and rules
	sharedAdditions              // shared elements of services, before the first service needs them
	wholeServices
	orphanedFrontends
	orphanedNumbers // of lists, tables and ports, when no frontend leads there
	sharedDeletions // when no service needs them
)

// unit is a place in the order in which a plan is committed in parts.
type unit struct {
	stage stage
	index int
}

func (u unit) compare(o unit) int {
	return cmp.Or(cmp.Compare(u.stage, o.stage), cmp.Compare(u.index, o.index))
}

// Part is a part of a plan, which may be committed in a transaction of its own.
type Part struct {
	of     *division
	units  []unit  // consecutive ones
	pieces []piece // in place of units
}

// piece is an element that is deleted of a frontend without a service.
type piece struct {
	set     *dividedSet
	element *element
}

// Size returns how many units the part has, which stay whole: 0 for an empty part.
func (p Part) Size() int { return len(p.units) + len(p.pieces) }

// Halves cuts a part of two or more units.
func (p Part) Halves() (first, second Part) {
	units, pieces := len(p.units)/2, len(p.pieces)/2
	return Part{p.of, p.units[:units], p.pieces[:pieces]}, Part{p.of, p.units[units:], p.pieces[pieces:]}
}

// Service returns the service of a part that has all elements of one service, and nothing else. ok is false for other parts.
func (p Part) Service() (name state.ServiceName, ok bool) {
	if len(p.units) != 1 || p.units[0].stage != wholeServices {
		return state.ServiceName{}, false
	}
	return p.of.names[p.units[0].index], true
}

// Orphan divides a part that deletes one frontend without a service. first deletes the elements that send packets to its slots. last
// deletes the slots, and then the firewall and the masquerade rule. The first slot needs no element that sends packets there, so the
// firewall protects it to the end. Both can be halved down to single elements. ok is false for other parts.
func (p Part) Orphan() (first, last Part, ok bool) {
	if len(p.units) != 1 || p.units[0].stage != orphanedFrontends {
		return Part{}, Part{}, false
	}
	first.of, last.of = p.of, p.of
	var guards []piece
	for i := range p.of.sets {
		s := &p.of.sets[i]
		for _, e := range s.part(s.del, p.units) {
			switch s.set.kind {
			case restricted, masquerade:
				guards = append(guards, piece{s, e.element})
			case slots:
				last.pieces = append(last.pieces, piece{s, e.element})
			default:
				first.pieces = append(first.pieces, piece{s, e.element})
			}
		}
	}
	last.pieces = append(last.pieces, guards...)
	return first, last, true
}

// Write puts the part into a batch.
func (p Part) Write(b *nft.Batch) {
	for _, piece := range p.pieces {
		s := piece.set
		b.DeleteElem(table(s.family), s.set.name(), piece.element.encode(s.set.layout(s.family)))
	}
	if len(p.units) == 0 {
		return
	}
	for _, u := range p.units {
		if u.stage == tableChanges {
			p.of.plan.tables[u.index].write(b, p.of.plan.settings.TableFlags)
		}
	}
	for i := range p.of.sets {
		s := &p.of.sets[i]
		s.writePart(s.del, p.units, b.DeleteElem)
	}
	for i := range p.of.sets {
		s := &p.of.sets[i]
		s.writePart(s.add, p.units, b.AddElem)
	}
}

// Probe puts an element into a batch that deletes it again, so that it is never visible. If the kernel has no room for
// it, it has no room for any element.
func Probe(b *nft.Batch) {
	e := newSharedKey(hairpin, netip.IPv4Unspecified()).element()
	t, name, encoded := table(e.family), e.set.name(), e.encode(e.set.layout(e.family))
	b.AddElem(t, name, encoded)
	b.DeleteElem(t, name, encoded)
}

// division is a plan by units.
type division struct {
	plan  *Plan
	names []state.ServiceName // of the units of wholeServices
	units []unit              // all of them, in order
	sets  []dividedSet
}

// dividedSet is what changes in a set.
type dividedSet struct {
	*setPlan
	del, add []ofUnit // by unit
}

type ofUnit struct {
	unit    unit
	element *element
}

// Divisible reports whether a plan may be committed in parts. It may not if it deletes elements to write them again, which takes one
// transaction.
func (p *Plan) Divisible() bool {
	return !slices.ContainsFunc(p.tables, func(t tablePlan) bool { return t.replace != nil }) &&
		!slices.ContainsFunc(p.order, func(s *setPlan) bool { return s.flush })
}

// Divide returns the plan in two parts, for a kernel that has no room for the whole. The last part deletes elements
// that are unused once all of the first part is written.
func (p *Plan) Divide() (first, last Part) {
	d := p.units()
	from, _ := slices.BinarySearchFunc(d.units, orphanedFrontends, func(u unit, s stage) int { return cmp.Compare(u.stage, s) })
	return Part{of: d, units: d.units[:from]}, Part{of: d, units: d.units[from:]}
}

// units finds the unit of each of the plan's elements. The unit of a frontend's element is the service that has the frontend after the
// plan. So a frontend moves from one service to another in one transaction.
func (p *Plan) units() *division {
	d := &division{plan: p, names: slices.SortedFunc(maps.Keys(p.services), state.ServiceName.Compare)}
	frontends, numbers := map[elementKey]int{}, map[uint32]int{}
	for i, name := range d.names {
		a := p.services[name]
		if a.record == nil {
			continue
		}
		for port, f := range a.record.Frontends() {
			for k := range frontendKeys(port, f) {
				frontends[k] = i
			}
		}
		for _, n := range a.numbers {
			numbers[n] = i
		}
	}
	orphans := map[elementKey]int{}
	single := 0
	next := func(s stage) unit { single++; return unit{s, single} }
	of := func(e *element, deletion bool) unit {
		switch k := e.id(); {
		case k.set.isNumbered():
			if i, ok := numbers[k.numberIn()]; ok {
				return unit{wholeServices, i}
			}
			return next(orphanedNumbers)
		case k.set.space == global && deletion:
			return next(sharedDeletions)
		case k.set.space == global:
			return next(sharedAdditions)
		default:
			frontend := k.frontend()
			if i, ok := frontends[frontend]; ok {
				return unit{wholeServices, i}
			}
			if _, ok := orphans[frontend]; !ok {
				orphans[frontend] = len(orphans)
			}
			return unit{orphanedFrontends, orphans[frontend]}
		}
	}
	seen := map[unit]struct{}{}
	for i := range p.tables {
		seen[unit{tableChanges, i}] = struct{}{}
	}
	divide := func(s *setPlan, elements *elements, deletion bool) []ofUnit {
		list := make([]ofUnit, 0, elements.n)
		for e := range s.all(elements) {
			u := of(&e, deletion)
			list = append(list, ofUnit{u, &e})
			seen[u] = struct{}{}
		}
		slices.SortStableFunc(list, func(a, b ofUnit) int { return a.unit.compare(b.unit) })
		return list
	}
	for _, s := range p.order {
		d.sets = append(d.sets, dividedSet{s, divide(s, &s.del, true), divide(s, &s.add, false)})
	}
	d.units = slices.SortedFunc(maps.Keys(seen), unit.compare)
	return d
}

func (s *dividedSet) writePart(list []ofUnit, units []unit, put func(nft.Table, string, nft.Elem)) {
	elements := s.part(list, units)
	if len(elements) == 0 {
		return
	}
	t, name, l := table(s.family), s.set.name(), s.set.layout(s.family)
	for _, e := range elements {
		put(t, name, e.element.encode(l))
	}
}

// part returns the part of list that belongs to consecutive units.
func (s *dividedSet) part(list []ofUnit, units []unit) []ofUnit {
	compare := func(e ofUnit, u unit) int { return e.unit.compare(u) }
	from, _ := slices.BinarySearchFunc(list, units[0], compare)
	last := units[len(units)-1]
	to, _ := slices.BinarySearchFunc(list, unit{last.stage, last.index + 1}, compare)
	return list[from:to]
}
