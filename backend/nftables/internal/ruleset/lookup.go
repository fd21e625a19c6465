package ruleset

import (
	"bytes"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// lookups look up the expected elements of large sets, for some services at a time. While these are compared, the kernel looks up the next
// ones. So only a few answers are in memory at once.
type lookups struct {
	reader Reader
	sets   []*largeSet
	index  map[tableSet]int // of sets
	// last is the most recent set that was asked for, because several elements of a set follow each other. at is its index in sets, and
	// isLarge whether it has one.
	last    tableSet
	at      int
	isLarge bool
	expect  expectation
	// reached is how many services were looked up, plus one if the node ports were also looked up. The last of them are
	// the services in present.
	reached int
	present *Lookup
	queue   []*Lookup // those that have begun, in the order of the services
	ahead   int       // how many lookups are in the queue, if there are enough
}

// Lookup is one request for what some services have in large sets, to be carried out by a [Reader].
type Lookup struct {
	sets  []*largeSet
	asked []asked // for each of sets
	// services are those from number first on, and the node ports after the last one.
	services []expected
	first    int
	wait     func() error
}

// asked are the keys that a set is asked for, one after another.
type asked struct {
	keys []byte
	data []byte  // the expected data, and then the data that was found
	of   []int32 // the services that the keys are of, by their place in the lookup
	// absent are the places of keys that were not found, in order.
	absent []int
}

// expected is a service as the kernel most likely holds it.
type expected struct {
	applied
	// own are its elements in sets that are not large, but for shared ones.
	own    []element
	shared []sharedKey
	pings  []elementKey
	// isOther is set if the kernel holds something else, or may do so. Then the service is compared element by element.
	isOther bool
}

// lookupSize is how many keys are looked up for some services, or a few more.
const lookupSize = 4096

// newLookups makes lookups of the expected elements. If rewrite is set, sets with other elements may be rewritten.
func newLookups(r Reader, limits Limits, large []*largeSet, expect expectation, rewrite bool) *lookups {
	l := &lookups{reader: r, sets: large, index: map[tableSet]int{}, expect: expect, ahead: max(limits.Ahead, 1)}
	for i, s := range large {
		l.index[s.tableSet] = i
		s.rewrite = rewrite && s.count > limits.Rewrite
	}
	return l
}

// end waits for the lookups that have begun.
func (l *lookups) end() {
	for _, next := range l.queue {
		_ = next.wait() // its result is not needed
	}
}

// Finder looks elements up by their keys. It is an nft.Conn, outside tests.
type Finder interface {
	Find(t nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error
	HasAll(t nft.Table, set string, width int, keys []byte) (bool, error)
}

// Run asks for the elements. Lookups may run at the same time, each with a Finder of its own.
func (l *Lookup) Run(f Finder) error {
	for i, s := range l.sets {
		a := &l.asked[i]
		if len(a.keys) == 0 {
			continue
		}
		if s.layout.data == 0 {
			all, err := f.HasAll(table(s.family), s.set.name(), s.layout.key, a.keys)
			if err != nil {
				return readFailed(s.tableSet, err)
			}
			if all {
				continue
			}
		}
		next := 0
		err := f.Find(table(s.family), s.set.name(), s.layout.key, a.keys, func(i int, data []byte) {
			l.lack(a, next, i)
			next = i + 1
			if want := a.data[i*s.layout.data:][:s.layout.data]; !bytes.Equal(data, want) {
				copy(want, data)
				l.services[a.of[i]].isOther = true
			}
		})
		if err != nil {
			return readFailed(s.tableSet, err)
		}
		l.lack(a, next, len(a.of))
	}
	return nil
}

// lack notes that some keys were not found.
func (l *Lookup) lack(a *asked, from, to int) {
	for i := from; i < to; i++ {
		a.absent = append(a.absent, i)
		l.services[a.of[i]].isOther = true
	}
}

// reach ensures that the first n services, or everything, are looked up. Afterwards ks.elements has the kernel's
// elements of those services that differ from the expected ones.
func (ks *kernelState) reach(n int) error {
	l := ks.lookups
	for l != nil && l.reached < n {
		for len(l.queue) < l.ahead && l.expect.more() {
			l.queue = append(l.queue, l.ask())
		}
		l.present = l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		if err := l.present.wait(); err != nil {
			return err
		}
		ks.add(l.present)
		l.reached = l.present.first + len(l.present.services)
	}
	return nil
}

// find returns the index of a set among those that are large.
func (l *lookups) find(f state.Family, id setID) (at int, isLarge bool) {
	if ts := (tableSet{f, id}); ts != l.last {
		l.last = ts
		l.at, l.isLarge = l.index[ts]
	}
	return l.at, l.isLarge
}

// ask begins the next lookup.
func (l *lookups) ask() *Lookup {
	next := &Lookup{sets: l.sets, asked: make([]asked, len(l.sets)), first: l.expect.at}
	keys := 0
	ask := func(e *element) bool {
		at, isLarge := l.find(e.family, e.set)
		if isLarge {
			a, of := &next.asked[at], l.sets[at].layout
			a.keys = append(a.keys, e.key[:of.key]...)
			a.data = append(a.data, e.data[:of.data]...)
			a.of = append(a.of, int32(len(next.services)))
			keys++
		}
		return isLarge
	}
	var own []element
	var shared []sharedKey
	for keys < lookupSize && l.expect.more() {
		service, elements := l.expect.next()
		from := len(own)
		for i := range elements.own {
			if e := &elements.own[i]; !ask(e) {
				own = append(own, *e)
			}
		}
		service.own, from = own[from:], len(shared)
		for _, k := range elements.shared {
			e := k.element()
			ask(&e)
		}
		shared = append(shared, elements.shared...)
		service.shared = shared[from:]
		for _, k := range elements.pings {
			e := k.element()
			ask(&e)
		}
		service.pings = slices.Clone(elements.pings)
		next.services = append(next.services, service)
	}
	next.wait = l.reader.LookUp(next)
	return next
}

// add adds the found elements of services that are compared element by element. For the other services, it counts the found elements,
// except for shared ones.
func (ks *kernelState) add(from *Lookup) {
	for i := range from.services {
		e := &from.services[i]
		e.isOther = e.isOther || !ks.holds(e.own)
	}
	for i, s := range from.sets {
		a, before := &from.asked[i], len(ks.elements)
		k, absent := elementKey{family: s.family, set: s.set}, a.absent
		for j, service := range a.of {
			switch {
			case len(absent) > 0 && absent[0] == j:
				absent = absent[1:]
			case from.services[service].isOther:
				var data [maxData]byte
				copy(k.key[:], a.keys[j*s.layout.key:][:s.layout.key])
				copy(data[:], a.data[j*s.layout.data:][:s.layout.data])
				ks.elements[k] = data
			case !s.set.kind.isShared() && !s.set.kind.isPing():
				s.found++
			}
		}
		s.found += len(ks.elements) - before
	}
}

// holds reports whether all these elements, of sets that were dumped, are there.
func (ks *kernelState) holds(elements []element) bool {
	for i := range elements {
		if data, ok := ks.elements[elements[i].id()]; !ok || data != elements[i].data {
			return false
		}
	}
	return true
}

// asExpected returns the elements of a service if the kernel holds them as expected, and else nil.
func (ks *kernelState) asExpected(i int) *expected {
	if ks.lookups == nil {
		return nil
	}
	from := ks.lookups.present
	if i < from.first || from.services[i-from.first].isOther {
		return nil
	}
	return &from.services[i-from.first]
}

// meet counts a shared element that was found as expected, for the first service that has it. It reports whether its set is large: else it
// was not looked up.
func (ks *kernelState) meet(e *element) (isLarge bool) {
	at, isLarge := ks.lookups.find(e.family, e.set)
	if isLarge {
		ks.large[at].found++
	}
	return isLarge
}

// forget takes a shared element off elements that was found again, for another service, after it was compared.
func (ks *kernelState) forget(e element) {
	if ks.lookups == nil {
		return
	}
	if i, isLarge := ks.lookups.find(e.family, e.set); isLarge {
		before := len(ks.elements)
		delete(ks.elements, e.id())
		ks.large[i].found -= before - len(ks.elements)
	}
}
