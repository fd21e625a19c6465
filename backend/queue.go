package backend

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

const (
	// usualPart is the default of RunOptions.PartEntries.
	usualPart = 1_000
	// sharesOfPart is into how many shares an update is cut at most, one for each namespace.
	sharesOfPart = 20
	// restFactor is how many times the duration of its last change a service waits before the next, if that change had several parts.
	restFactor = 4
	// maxRest is the longest rest.
	maxRest = 5 * time.Second
	// maxTriggers is how many triggers are kept of updates that end as one.
	maxTriggers = 1_024
)

// queue has the changes that are not applied yet, and decides the order. Namespaces take turns, with equal shares of an update. Within a
// namespace, small changes come before large ones, and large changes take turns. A change that is larger than its share is applied in
// parts, between which other changes come. A service rests after a change of several parts, and also when it changes again before the last
// part. So such a service gets at most a fifth of the time.
type queue struct {
	// most is about how many entries an update takes at most.
	most int
	// got is the last revision that was taken from the feed, and node the node of it.
	got  state.Revision
	node *state.Node
	// held is what the dataplane holds.
	held  *held
	wants map[state.ServiceName]*want
	// arrivals are the updates that are not applied completely, the oldest first.
	arrivals []*arrival
	// turns are the namespaces that have something to apply, in the order of their turns.
	turns   []*turn
	turnsOf map[string]*turn
	// rests are when services may change again whose last change was more than a part.
	rests map[state.ServiceName]time.Time
	// waiting are wants that have no turn yet: they rest, or others have to get their frontends first.
	waiting []*want
	// leaving are the frontends that a service, or one of its ports, is to give up. coming are the ones among them that another service
	// or port is to get.
	coming  map[keyHash]*want
	leaving map[keyHash]leaver
}

// leaver is who gives a frontend up, and how many entries that takes.
type leaver struct {
	*want
	entries int
}

func newQueue(most int, h *held) queue {
	return queue{
		most: most, held: h, wants: map[state.ServiceName]*want{}, turnsOf: map[string]*turn{},
		rests: map[state.ServiceName]time.Time{}, coming: map[keyHash]*want{}, leaving: map[keyHash]leaver{},
	}
}

// keyHash stands for a frontend. Two frontends may have the same hash, but nobody can choose such frontends.
type keyHash uint64

var hashSeed = maphash.MakeSeed()

func hashOf(k state.FrontendKey) keyHash {
	var key [20]byte
	addr := k.Addr.As16() // all zeroes for a node port, which is no address of a service
	copy(key[:], addr[:])
	key[16], key[17] = byte(k.Family), byte(k.Protocol)
	binary.BigEndian.PutUint16(key[18:], k.Port)
	return keyHash(maphash.Bytes(hashSeed, key[:]))
}

// arrival is an update of the feed.
type arrival struct {
	after    state.Revision // the revision before it
	at       time.Time
	left     int // services that are not as it or a later update says
	triggers []time.Time
}

// want is a service that is not as it should be.
type want struct {
	name    state.ServiceName
	record  *state.Service // nil if it is to be removed
	arrival *arrival
	isLarge bool
	// isReplaced is set if it was to be something else before that was done.
	isReplaced bool
	// isRetry is set if it has failed, and nothing is new.
	isRetry bool
	// place is where it is found.
	place place
	// isBlocked is set if nothing can be done before others have got its frontends.
	isBlocked bool
	// at is the port with which the next part begins, cost is what those that have been applied took, and spent how long that was.
	at, cost int
	spent    time.Duration
	// coming and leaving are its frontends in the maps of the queue.
	coming, leaving []keyHash
}

// place is where a want is. Other entries that lists may have of it do not count.
type place uint8

const (
	nowhere place = iota // in a batch
	inWaiting
	inSmall
	inLarge
)

// turn is what a namespace has to apply.
type turn struct {
	namespace    string
	small, large []*want
	credit       int // the rest of its turns
}

// add takes an update that is not full.
func (q *queue) add(u *state.Update, now time.Time) {
	a := &arrival{after: q.got, at: now, triggers: u.Triggers}
	q.got, q.node = u.Revision, u.Node
	var older *arrival // the last one that waits for a change which this one replaces
	want := func(name state.ServiceName, record *state.Service) {
		if waits := q.want(name, record, a, now); waits != a && (older == nil || waits.after > older.after) {
			older = waits
		}
	}
	for _, s := range u.Changed {
		want(s.Name, s)
	}
	for _, name := range u.Removed {
		want(name, nil)
	}
	if len(q.leaving) > 0 { // what a service gets of another leaves that by now, or did before
		for _, s := range u.Changed {
			q.noteComing(q.wants[s.Name])
		}
	}
	if a.left > 0 {
		var merged []time.Time
		q.arrivals = slices.DeleteFunc(q.arrivals, func(previous *arrival) bool {
			if previous.left == 0 {
				merged = addTriggers(merged, previous.triggers)
			}
			return previous.left == 0
		})
		a.triggers = addTriggers(merged, a.triggers)
		q.arrivals = append(q.arrivals, a)
	} else if older != nil {
		older.triggers = addTriggers(older.triggers, a.triggers)
	}
	for _, w := range q.waiting {
		w.isBlocked = false
	}
}

// addTriggers returns all triggers, or as many as are kept.
func addTriggers(all, more []time.Time) []time.Time {
	return append(all, more[:min(len(more), maxTriggers-len(all))]...)
}

// want takes down the desired record of a service. The update that brought its previous desired record still waits for the service, unless
// the change is large. The rest of a large change belongs to this update, so that no update waits for a large service that keeps changing.
// want returns the update that waits.
func (q *queue) want(name state.ServiceName, record *state.Service, a *arrival, now time.Time) *arrival {
	shown := q.held.records[name]
	w := q.wants[name]
	if w == nil {
		w = &want{name: name}
		q.wants[name] = w
	} else {
		w.isReplaced = true
		q.forgetMoves(w)
		q.rest(w, now)
	}
	if w.arrival != nil && (w.isLarge || w.isRetry) {
		w.arrival.left--
		w.arrival = nil
	}
	if w.arrival == nil {
		w.arrival = a
		a.left++
	}
	w.isRetry = false
	w.record = share(shown, record)
	pairs := pairPorts(shown, w.record)
	w.isLarge = q.held.failed[name] > q.most || takesMore(pairs, q.most)
	for _, p := range pairs {
		each := 0
		gained(p.to, p.from, func(k state.FrontendKey) {
			if each == 0 {
				each = entriesEach(p.from)
			}
			h := hashOf(k)
			w.leaving, q.leaving[h] = append(w.leaving, h), leaver{w, each}
		})
	}
	if w.place == nowhere || w.isLarge != (w.place == inLarge) || q.isResting(w) {
		q.wait(w)
	}
	return w.arrival
}

// again takes down a desired record that failed before, unless the service is about to change. No update waits for it.
func (q *queue) again(name state.ServiceName, record *state.Service, now time.Time) {
	if q.wants[name] == nil {
		q.want(name, record, &arrival{}, now)
		q.wants[name].isRetry = true
	}
}

// noteComing takes down which frontends a service is to get that others give up, or other ports of it.
func (q *queue) noteComing(w *want) {
	entries := 0
	for _, p := range pairPorts(q.held.records[w.name], w.record) {
		gained(p.from, p.to, func(k state.FrontendKey) {
			if h := hashOf(k); q.leaving[h].want != nil {
				w.coming, q.coming[h] = append(w.coming, h), w
				entries += q.leaving[h].entries
			}
		})
	}
	if entries > q.most && !w.isLarge {
		w.isLarge = true
		q.wait(w)
	}
}

func (q *queue) wait(w *want) {
	if w.place != inWaiting {
		w.place = inWaiting
		q.waiting = append(q.waiting, w)
	}
}

// rest has a service wait for what has been spent on its change. After that it goes on with the next port: one that changes all the time does not
// keep the others from their turns.
func (q *queue) rest(w *want, now time.Time) {
	if w.cost > q.most {
		q.rests[w.name] = now.Add(min(restFactor*w.spent, maxRest))
		w.cost, w.spent = 0, 0
		w.at++
	}
}

func (q *queue) forgetMoves(w *want) {
	for _, k := range w.coming {
		if q.coming[k] == w {
			delete(q.coming, k)
		}
	}
	for _, k := range w.leaving {
		if q.leaving[k].want == w {
			delete(q.leaving, k)
		}
	}
	w.coming, w.leaving = nil, nil
}

// requeue gives those that wait no longer their places.
func (q *queue) requeue(now time.Time) {
	maps.DeleteFunc(q.rests, func(_ state.ServiceName, until time.Time) bool { return !until.After(now) })
	q.waiting = slices.DeleteFunc(q.waiting, func(w *want) bool {
		switch {
		case q.wants[w.name] != w:
			return true
		case w.isBlocked || q.isResting(w):
			return false
		}
		s := q.turnsOf[w.name.Namespace]
		if s == nil {
			s = &turn{namespace: w.name.Namespace}
			q.turnsOf[w.name.Namespace] = s
			q.turns = append(q.turns, s)
		}
		if w.isLarge {
			w.place, s.large = inLarge, append(s.large, w)
		} else {
			w.place, s.small = inSmall, append(s.small, w)
		}
		return true
	})
}

func (q *queue) isResting(w *want) bool { return w.isLarge && !q.rests[w.name].IsZero() }

// since returns the start time of the oldest update that waits for other services than resting ones. It returns zero if there is none.
func (q *queue) since() time.Time {
	resting := map[*arrival]int{}
	for _, w := range q.waiting {
		if q.wants[w.name] == w && q.isResting(w) {
			resting[w.arrival]++
		}
	}
	for _, a := range q.arrivals {
		if a.left > resting[a] {
			return a.at
		}
	}
	return time.Time{}
}

// wakes returns when a service that rests may change, zero if none is to.
func (q *queue) wakes() (at time.Time) {
	for _, w := range q.waiting {
		at = earliest(at, q.rests[w.name])
	}
	return at
}

// isReady reports whether there is something to apply after a revision and node.
func (q *queue) isReady(applied state.Revision, node *state.Node, now time.Time) bool {
	if node == nil {
		return false // the first update is full
	}
	q.requeue(now)
	return len(q.turns) > 0 || !q.node.Equal(node) || len(q.wants) == 0 && q.got != applied
}

// takesMore reports whether the change of some ports takes more than so many entries.
func takesMore(pairs []portPair, most int) bool {
	n := 0
	for i := range pairs {
		if n += pairs[i].cost(); n > most {
			return true
		}
	}
	return false
}

// batch is the set of changes that are applied at once.
type batch struct {
	steps []step
	// next are the records, nil for services that are removed. Those that only lose frontends to others have no step.
	next map[state.ServiceName]*state.Service
	cost int
}

// step is the part of a change that is in a batch.
type step struct {
	*want
	cost, end int
	done      bool
}

// take returns what to apply next, which is to be given back to applied, failed or kept. With another node, everything comes at once: what
// records say depends on it.
func (q *queue) take(node *state.Node) *batch {
	b := &batch{next: map[state.ServiceName]*state.Service{}}
	if !q.node.Equal(node) {
		for name, w := range q.wants {
			b.next[name] = w.record
			b.steps = append(b.steps, step{want: w, cost: 1, done: true})
			b.cost++
		}
		q.turns, q.turnsOf = nil, map[string]*turn{} // nothing is left for them
		return b
	}
	fair := max(1, q.most/min(max(1, len(q.turns)), sharesOfPart))
	for b.cost < q.most && len(q.turns) > 0 {
		s := q.turns[0]
		q.turns = append(q.turns[1:], s)
		s.credit += fair
		half := 0
		if len(s.large) > 0 {
			half = s.credit / 2
		}
		s.credit -= q.takeFrom(b, &s.small, inSmall, s.credit-half, len(s.small))
		s.credit -= q.takeFrom(b, &s.large, inLarge, s.credit, 1)
		s.credit -= q.takeFrom(b, &s.small, inSmall, s.credit, len(s.small))
		if len(s.small)+len(s.large) == 0 {
			q.turns = q.turns[:len(q.turns)-1]
			delete(q.turnsOf, s.namespace)
		}
	}
	return b
}

// takeFrom adds steps of some services until they take most entries, and returns how many that are.
func (q *queue) takeFrom(b *batch, from *[]*want, at place, most, services int) (cost int) {
	for ; services > 0 && cost < most && b.cost < q.most && len(*from) > 0; services-- {
		w := (*from)[0]
		*from = (*from)[1:]
		if q.wants[w.name] == w && w.place == at {
			cost += q.step(b, w, min(most-cost, q.most-b.cost))
		}
	}
	return cost
}

// step adds a part of a service's change, including the frontends that it takes from other services, and returns its cost.
func (q *queue) step(b *batch, w *want, most int) (cost int) {
	switch {
	case q.held.failed[w.name] > 0:
		most = math.MaxInt
	case !w.isLarge:
		most = 2 * q.most
	}
	from := q.record(b, w.name)
	next, cost, end, done := part(from, w.record, &moving{w, q.coming, q.leaving}, most, w.at)
	if cost == 0 {
		w.isBlocked = true
		q.wait(w)
		return 0
	}
	cost = max(cost, q.held.failed[w.name])
	w.place = nowhere
	losers := map[state.ServiceName]map[state.FrontendKey]bool{}
	for _, p := range pairPorts(from, next) {
		gained(p.from, p.to, func(k state.FrontendKey) {
			holder := q.leaving[hashOf(k)].want
			if holder == nil || holder == w {
				return
			}
			if losers[holder.name] == nil {
				losers[holder.name] = map[state.FrontendKey]bool{}
			}
			losers[holder.name][k] = true
		})
	}
	for holder, taken := range losers {
		if had := q.record(b, holder); had != nil {
			b.next[holder] = had.Without(taken)
		}
	}
	b.next[w.name] = next
	b.steps = append(b.steps, step{w, cost, end, done})
	b.cost += cost
	return cost
}

// record returns what a service has after a batch.
func (q *queue) record(b *batch, name state.ServiceName) *state.Service {
	if s, ok := b.next[name]; ok {
		return s
	}
	return q.held.records[name]
}

// isRetry reports whether a batch holds only services that failed before.
func (b *batch) isRetry() bool {
	return len(b.steps) > 0 && !slices.ContainsFunc(b.steps, func(s step) bool { return !s.isRetry })
}

// update returns a batch as an update of a revision and node.
func (b *batch) update(r state.Revision, node *state.Node) *state.Update {
	u := &state.Update{Revision: r, Node: node}
	for name, s := range b.next {
		if s == nil {
			u.Removed = append(u.Removed, name)
		} else {
			u.Changed = append(u.Changed, s)
		}
	}
	slices.SortFunc(u.Changed, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(u.Removed, state.ServiceName.Compare)
	return u
}

// revision returns the revision that is applied as a whole once a batch is, and the triggers of the updates that end with it.
func (q *queue) revision(b *batch) (r state.Revision, triggers []time.Time) {
	ends := map[*arrival]int{}
	for _, s := range b.steps {
		if s.done {
			ends[s.arrival]++
		}
	}
	r = q.got
	for _, a := range slices.Backward(q.arrivals) {
		if a.left > ends[a] {
			r = a.after
		} else {
			triggers = addTriggers(triggers, a.triggers)
		}
	}
	return r, triggers
}

// keep puts back a batch that could not be applied.
func (q *queue) keep(b *batch) {
	for _, s := range b.steps {
		q.wait(s.want)
	}
}

// applied records that a batch was applied, and how long that took. Services that failed are left to the retries.
func (q *queue) applied(b *batch, failed map[state.ServiceName]error, took time.Duration, now time.Time) {
	for _, s := range b.steps {
		s.at = s.end
		s.want.cost += s.cost
		s.spent += took * time.Duration(s.cost) / time.Duration(max(1, b.cost))
		if s.done || failed[s.name] != nil {
			q.finish(s.want, now)
		} else {
			q.wait(s.want)
		}
	}
	for _, w := range q.waiting {
		w.isBlocked = false
	}
}

func (q *queue) finish(w *want, now time.Time) {
	q.rest(w, now)
	q.forgetMoves(w)
	delete(q.wants, w.name)
	w.arrival.left--
	q.arrivals = slices.DeleteFunc(q.arrivals, func(a *arrival) bool { return a.left == 0 })
}

// replace takes down that a full update was applied.
func (q *queue) replace(u *state.Update) {
	rests := q.rests
	*q = newQueue(q.most, q.held)
	q.got, q.node, q.rests = u.Revision, u.Node, rests
}
