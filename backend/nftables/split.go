package nftables

import (
	"cmp"
	"errors"
	"maps"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// What is committed in parts is cut between units, which stay whole: all elements of a service; all of a frontend that no service has
// any longer, unless they do not fit; or a single element. They come in the order of stages, so that nothing goes before what replaces it is there.
type stage uint8

const (
	sharedAdditions stage = iota // what services have in common, before the first of them needs it
	wholeServices
	orphanedFrontends
	orphanedNumbers // of lists and ports, when no frontend leads there any longer
	sharedDeletions // when no service needs it any longer
	numStages
)

// unit is a place in the order in which a plan is committed in parts.
type unit struct {
	stage stage
	index int
}

func (u unit) compare(o unit) int {
	return cmp.Or(cmp.Compare(u.stage, o.stage), cmp.Compare(u.index, o.index))
}

// division is a plan's elements by units.
type division struct {
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

// divisible reports whether a plan may be committed in parts: not if what is there is deleted to be written anew.
func (p *plan) divisible() bool {
	return !slices.ContainsFunc(p.tables, func(t tablePlan) bool { return t.replace != nil }) &&
		!slices.ContainsFunc(p.order, func(s *setPlan) bool { return s.flush })
}

// divide finds the unit of each of the plan's elements. That of a frontend's element is the service that has the frontend after the
// plan: what moves from one service to another moves in one transaction.
func (p *plan) divide() *division {
	d := &division{names: slices.SortedFunc(maps.Keys(p.services), state.ServiceName.Compare)}
	frontends, numbers := map[elementKey]int{}, map[uint32]int{}
	for i, name := range d.names {
		a := p.services[name]
		if a.record == nil {
			continue
		}
		for j := range a.record.Ports {
			port := &a.record.Ports[j]
			for k := range port.Frontends {
				frontends[frontendKey(port, &port.Frontends[k])] = i
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
		case k.set.kind == allowed || k.set.kind == endpointNumbers:
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
	divide := func(elements *elements, deletion bool) []ofUnit {
		list := make([]ofUnit, 0, elements.len())
		for e := range elements.all() {
			u := of(e, deletion)
			list = append(list, ofUnit{u, e})
			seen[u] = struct{}{}
		}
		slices.SortStableFunc(list, func(a, b ofUnit) int { return a.unit.compare(b.unit) })
		return list
	}
	for _, s := range p.order {
		d.sets = append(d.sets, dividedSet{s, divide(&s.del, true), divide(&s.add, false)})
	}
	d.units = slices.SortedFunc(maps.Keys(seen), unit.compare)
	return d
}

// piece is an element of a unit that is deleted piece by piece.
type piece struct {
	set     *dividedSet
	element *element
}

// orphan deletes a frontend that no service has any longer and that does not fit into a transaction as a whole: first what sends packets
// to its slots, and then those, in as few transactions as there is room for.
func (d *division) orphan(u unit, commit func([]piece) error) error {
	var first, last []piece
	for i := range d.sets {
		s := &d.sets[i]
		for _, e := range s.part(s.del, []unit{u}) {
			if s.set.kind == slots {
				last = append(last, piece{s, e.element})
			} else {
				first = append(first, piece{s, e.element})
			}
		}
	}
	var split func([]piece) error
	split = func(pieces []piece) error {
		err := commit(pieces)
		if len(pieces) < 2 || !errors.Is(err, nft.ErrNoRoom) {
			return err
		}
		half := len(pieces) / 2
		if err := split(pieces[:half]); err != nil {
			return err
		}
		return split(pieces[half:])
	}
	if err := split(first); err != nil {
		return err
	}
	return split(last)
}

func writePieces(b *nft.Batch, pieces []piece) {
	for _, p := range pieces {
		s := p.set
		b.DeleteElem(table(s.family), s.set.name(), p.element.encode(s.set.layout(s.family)))
	}
}

// write puts the elements of consecutive units into a batch.
func (d *division) write(b *nft.Batch, units []unit) {
	for i := range d.sets {
		s := &d.sets[i]
		s.writePart(s.del, units, b.DeleteElem)
	}
	for i := range d.sets {
		s := &d.sets[i]
		s.writePart(s.add, units, b.AddElem)
	}
}

func (s *dividedSet) writePart(list []ofUnit, units []unit, put func(nft.Table, string, nft.Elem)) {
	part := s.part(list, units)
	if len(part) == 0 {
		return
	}
	t, name, l := table(s.family), s.set.name(), s.set.layout(s.family)
	for _, e := range part {
		put(t, name, e.element.encode(l))
	}
}

// part returns what list has of consecutive units.
func (s *dividedSet) part(list []ofUnit, units []unit) []ofUnit {
	compare := func(e ofUnit, u unit) int { return e.unit.compare(u) }
	from, _ := slices.BinarySearchFunc(list, units[0], compare)
	last := units[len(units)-1]
	to, _ := slices.BinarySearchFunc(list, unit{last.stage, last.index + 1}, compare)
	return list[from:to]
}

// stages returns the units from one stage on, before another.
func (d *division) stages(from, before stage) []unit {
	compare := func(u unit, s stage) int { return cmp.Compare(u.stage, s) }
	i, _ := slices.BinarySearchFunc(d.units, from, compare)
	j, _ := slices.BinarySearchFunc(d.units, before, compare)
	return d.units[i:j]
}
