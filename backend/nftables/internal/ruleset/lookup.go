package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// lookups look up what is expected in large sets, for some services at a time: while those are compared, the kernel is asked for the
// next ones. So only a few answers are in memory at once.
type lookups struct {
	reader Reader
	sets   []*largeSet
	index  map[tableSet]int // of sets
	expect expectation
	// reached is how many services elements shows, and one more if it shows the node ports, too.
	reached int
	queue   []*Lookup // those that have begun, in the order of the services
	ahead   int       // how many lookups are in the queue, if there are enough
}

// Lookup is one request for what some services have in large sets, to be carried out by a [Reader].
type Lookup struct {
	sets  []*largeSet
	asked []asked // for each of sets
	until int     // what lookups.reached is after it
	wait  func() error
}

// asked are the keys that a set is asked for, one after another, and those that were found.
type asked struct {
	keys  []byte
	found []found
}

type found struct {
	index int // of the key
	data  [maxData]byte
}

// lookupSize is how many keys are looked up for some services, or a few more.
const lookupSize = 4096

// newLookups makes lookups of what is expected. Sets that hold something else may be written anew if rewrite is set.
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
		_ = next.wait() // nobody needs what it finds
	}
}

// Run asks for the elements with find, which is the method of an nft.Conn of this name. Lookups may run at the same time.
func (l *Lookup) Run(find func(t nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error) error {
	for i, s := range l.sets {
		a := &l.asked[i]
		if len(a.keys) == 0 {
			continue
		}
		err := find(table(s.family), s.set.name(), s.layout.key, a.keys, func(i int, data []byte) {
			a.found = append(a.found, found{index: i})
			copy(a.found[len(a.found)-1].data[:], data)
		})
		if err != nil {
			return readFailed(s.tableSet, err)
		}
	}
	return nil
}

// reach adds to elements what the kernel holds of the first n services, or of everything.
func (ks *kernelState) reach(n int) error {
	l := ks.lookups
	for l != nil && l.reached < n {
		for len(l.queue) < l.ahead && l.expect.more() {
			l.queue = append(l.queue, l.ask())
		}
		next := l.queue[0]
		l.queue = slices.Delete(l.queue, 0, 1)
		if err := next.wait(); err != nil {
			return err
		}
		ks.add(next)
		l.reached = next.until
	}
	return nil
}

// ask begins the next lookup.
func (l *lookups) ask() *Lookup {
	next := &Lookup{sets: l.sets, asked: make([]asked, len(l.sets))}
	keys, last, at, isLarge := 0, tableSet{}, 0, false
	for keys < lookupSize && l.expect.more() {
		l.expect.next(func(e *element) {
			if ts := (tableSet{e.family, e.set}); ts != last { // several of one set follow each other
				at, isLarge = l.index[ts]
				last = ts
			}
			if isLarge {
				a := &next.asked[at]
				a.keys = append(a.keys, e.key[:l.sets[at].layout.key]...)
				keys++
			}
		})
	}
	next.until = l.expect.at
	next.wait = l.reader.LookUp(next)
	return next
}

// add adds what was found to elements.
func (ks *kernelState) add(from *Lookup) {
	for i, s := range from.sets {
		a, width, before := &from.asked[i], s.layout.key, len(ks.elements)
		k := elementKey{family: s.family, set: s.set}
		for j := range a.found {
			copy(k.key[:], a.keys[a.found[j].index*width:][:width])
			ks.elements[k] = a.found[j].data
		}
		s.found += len(ks.elements) - before
	}
}

// forget takes a shared element off elements that was found again, for another service, after it was compared.
func (ks *kernelState) forget(k sharedKey) {
	if ks.lookups == nil {
		return
	}
	e := k.element()
	if i, ok := ks.lookups.index[tableSet{e.family, e.set}]; ok {
		before := len(ks.elements)
		delete(ks.elements, e.id())
		ks.large[i].found -= before - len(ks.elements)
	}
}
