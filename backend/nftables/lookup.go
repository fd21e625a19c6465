package nftables

import (
	"slices"
	"sync"
)

// lookups look up what is expected in large sets, for some services at a time: while those are compared, the kernel is asked for the
// next ones, on all sockets. So only a few answers are in memory at once.
type lookups struct {
	sets   []*largeSet
	index  map[tableSet]int // of sets
	expect expectation
	// reached is how many services elements shows, and one more if it shows the node ports, too.
	reached int
	queue   []*lookup // in the order of the services
	depth   int       // how many lookups are in the queue, if there are enough
	jobs    chan *lookup
	workers sync.WaitGroup
}

// lookup is one request for what some services have.
type lookup struct {
	until int     // what lookups.reached is after it
	asked []asked // for each of lookups.sets
	err   error
	done  chan struct{} // gets a value when asked has the answers, or err is set
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

const (
	// lookupSize is how many keys are looked up for some services, or a few more.
	lookupSize = 4096
	// lookupsAhead is how many lookups are made ahead on each socket, so that none has to wait.
	lookupsAhead = 2
)

// lookUp starts to look up what is expected.
func (b *Backend) lookUp(ks *kernelState, want desired, large []*largeSet) *lookups {
	l := &lookups{
		sets: large, index: map[tableSet]int{}, depth: lookupsAhead * len(b.finders),
		expect: expect(&b.o, b.mirror, ks, want, b.selectNodePorts(want.node)),
	}
	for i, s := range large {
		l.index[s.tableSet] = i
		s.rewrite = want.spared.none() && s.count > b.limits.rewrite
	}
	l.jobs = make(chan *lookup, l.depth)
	for _, f := range b.finders {
		l.workers.Go(func() {
			for next := range l.jobs {
				next.err = l.find(f, next)
				next.done <- struct{}{}
			}
		})
	}
	return l
}

// close ends the lookups. The sockets are free afterwards.
func (l *lookups) close() {
	close(l.jobs)
	l.workers.Wait()
}

func (l *lookups) find(f finder, next *lookup) error {
	for i, s := range l.sets {
		a := &next.asked[i]
		if len(a.keys) == 0 {
			continue
		}
		err := f.Find(table(s.family), s.set.name(), s.layout.key, a.keys, func(i int, data []byte) {
			a.found = append(a.found, found{index: i})
			copy(a.found[len(a.found)-1].data[:], data)
		})
		if err != nil {
			return readFailed(s.tableSet, err)
		}
	}
	return nil
}

func (l *lookups) reach(ks *kernelState, n int) error {
	for l.reached < n {
		for len(l.queue) < l.depth && l.expect.more() {
			l.queue = append(l.queue, l.ask())
		}
		next := l.queue[0]
		<-next.done
		if next.err != nil {
			return next.err
		}
		l.add(ks, next)
		l.queue, l.reached = slices.Delete(l.queue, 0, 1), next.until
	}
	return nil
}

// ask hands the next lookup to a worker.
func (l *lookups) ask() *lookup {
	next := &lookup{asked: make([]asked, len(l.sets)), done: make(chan struct{}, 1)}
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
	l.jobs <- next
	return next
}

// add adds what was found to elements.
func (l *lookups) add(ks *kernelState, from *lookup) {
	for i, s := range l.sets {
		a, width, before := &from.asked[i], s.layout.key, len(ks.elements)
		k := elementKey{family: s.family, set: s.set}
		for j := range a.found {
			copy(k.key[:], a.keys[a.found[j].index*width:][:width])
			ks.elements[k] = a.found[j].data
		}
		s.found += len(ks.elements) - before
	}
}

func (l *lookups) forget(ks *kernelState, k sharedKey) {
	e := k.element()
	if i, ok := l.index[tableSet{e.family, e.set}]; ok {
		before := len(ks.elements)
		delete(ks.elements, e.id())
		l.sets[i].found -= before - len(ks.elements)
	}
}

func (l *lookups) unexpected() (sets []*largeSet) {
	for _, s := range l.sets {
		if s.found != s.count {
			sets = append(sets, s)
		}
	}
	return sets
}
