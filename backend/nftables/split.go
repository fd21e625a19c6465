package nftables

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"syscall"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// What is committed in parts is cut between units, which stay whole: all elements of a service; all of a frontend that no service has
// any longer; or a single element. They come in the order of stages, so that nothing goes before what replaces it is there.
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
	compare := func(e ofUnit, u unit) int { return e.unit.compare(u) }
	from, _ := slices.BinarySearchFunc(list, units[0], compare)
	last := units[len(units)-1]
	to, _ := slices.BinarySearchFunc(list, unit{last.stage, last.index + 1}, compare)
	if from == to {
		return
	}
	t, name, l := table(s.family), s.set.name(), s.set.layout(s.family)
	for _, e := range list[from:to] {
		put(t, name, e.element.encode(l))
	}
}

// stages returns the units from one stage on, before another.
func (d *division) stages(from, before stage) []unit {
	compare := func(u unit, s stage) int { return cmp.Compare(u.stage, s) }
	i, _ := slices.BinarySearchFunc(d.units, from, compare)
	j, _ := slices.BinarySearchFunc(d.units, before, compare)
	return d.units[i:j]
}

// tooLargeError reports services for each of which alone there is no room. What else an update adds has been committed.
type tooLargeError struct {
	services map[state.ServiceName]error
}

func (e *tooLargeError) Error() string {
	return fmt.Sprintf("no room for %d services", len(e.services))
}

// mostWithoutRoom is how many services in a row the kernel may have no memory for. Then it has none for any.
const mostWithoutRoom = 16

// commitParts carries out a plan that there was no room for as a whole, in as few transactions as there is room for, and returns how
// many objects it wrote. Services that do not even fit alone are left as they are, with all that is to be deleted after
// others, and are reported by a [tooLargeError].
func (b *Backend) commitParts(p *plan) (written int, err error) {
	commit := func(fill func(*nft.Batch)) error {
		n, err := b.commitBatch(fill)
		written += n
		return err
	}
	for i := range p.tables {
		if err := commit(func(b *nft.Batch) { p.tables[i].write(b, p.flags) }); err != nil {
			return written, err
		}
	}
	d := p.divide()
	failed, inARow := map[state.ServiceName]error{}, 0
	var search func([]unit) error
	search = func(units []unit) error {
		if len(units) == 0 {
			return nil
		}
		err := commit(func(b *nft.Batch) { d.write(b, units) })
		switch {
		case err == nil:
			inARow = 0
			return nil
		case !errors.Is(err, nft.ErrNoRoom):
			return err
		case len(units) > 1:
			half := len(units) / 2
			if err := search(units[:half]); err != nil {
				return err
			}
			return search(units[half:])
		case units[0].stage != wholeServices:
			return err
		}
		name := d.names[units[0].index]
		failed[name] = fmt.Errorf("service %v does not fit into one transaction of the kernel: give it fewer endpoints, ports or "+
			"source ranges, or raise net.core.wmem_max where this process may not exceed it: %w", name, err)
		if inARow++; inARow == mostWithoutRoom && !errors.Is(err, syscall.EMSGSIZE) {
			return err
		}
		return nil
	}
	if err := search(d.stages(sharedAdditions, orphanedFrontends)); err != nil {
		return written, err
	}
	if len(failed) > 0 {
		return written, &tooLargeError{failed}
	}
	return written, search(d.stages(orphanedFrontends, numStages))
}
