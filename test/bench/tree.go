package bench

import "container/heap"

// A discrete-event model of a tree of relays. Each relay has processors and a queue of work for them, first come,
// first served: first the cost of the change itself, and then the cost of each follower. A follower that waits to be
// served gets all changes up to then together, as with the real feed. Messages arrive a hop later. Bytes are counted
// elsewhere; links have no limit.

// treeCosts are the costs of the parts of a tree in seconds, of one processor but for Hop.
type treeCosts struct {
	// Hop is the time from the end of the work for a follower until it has what was sent.
	Hop float64
	// Start is a relay's work from its start until it has all objects, and Change that for one changed object, without followers.
	Start, Change float64
	// RelayServe is what each relay below costs at first, and RelayChange what it costs for each change.
	RelayServe, RelayChange float64
	// NodeServe and NodeChange are the same of each node.
	NodeServe, NodeChange float64
}

// tree is the shape of a tree of relays.
type tree struct {
	// Levels is how many relays there are at each level, those that follow the API server first. There is one level at least, and each
	// has as many relays as the one before, or more.
	Levels []int
	// Nodes is how many nodes there are, spread evenly over the relays of the last level.
	Nodes int
	// Processors is how many each relay has.
	Processors int
}

// treeSim is one run of the model. Revisions count from 1; revision 1 is the first state.
type treeSim struct {
	costs  treeCosts
	levels [][]*simRelay
	now    float64
	queue  events

	enough  int   // number of nodes whose time to a revision is measured
	reached []int // nodes that have each revision
	// done is when enough nodes had each revision, by revision; 0 if they never did.
	done []float64
}

// simRelay is a relay. It serves relays or nodes.
type simRelay struct {
	sim           *treeSim
	first, change float64 // costs of a follower
	free          int     // processors
	waiting       []*simFollower
	// want is the revision from above, and has the one that followers get.
	want, has int
	computing bool // of what is wanted, or queued for it
	followers []*simFollower
	// busy is how long processors have computed.
	busy float64
}

// simFollower is what a relay knows of a follower. The follower nil of a job is the relay's own state.
type simFollower struct {
	relay  *simRelay // nil for a node
	sent   int       // revision, 0 if it has nothing yet
	queued bool
}

// event is something that happens at a time.
type event struct {
	at     float64
	order  int // among events of the same time
	happen func()
}

type events struct {
	list []event
	n    int // that there have been
}

func (q *events) Len() int { return len(q.list) }
func (q *events) Less(i, j int) bool {
	a, b := &q.list[i], &q.list[j]
	return a.at < b.at || a.at == b.at && a.order < b.order
}
func (q *events) Swap(i, j int) { q.list[i], q.list[j] = q.list[j], q.list[i] }
func (q *events) Push(e any)    { q.list = append(q.list, e.(event)) }
func (q *events) Pop() any {
	last := len(q.list) - 1
	e := q.list[last]
	q.list[last] = event{}
	q.list = q.list[:last]
	return e
}

// newTreeSim returns a model of a tree at rest, where everybody has revision 1. part is which part of the nodes is enough, 1 for all.
func newTreeSim(t tree, costs treeCosts, part float64) *treeSim {
	s := &treeSim{costs: costs, enough: max(int(part*float64(t.Nodes)+0.5), 1), reached: []int{0, t.Nodes}, done: []float64{0, 0}}
	for level, n := range t.Levels {
		var relays []*simRelay
		for i := range n {
			r := &simRelay{sim: s, free: t.Processors, want: 1, has: 1, first: costs.RelayServe, change: costs.RelayChange}
			if level == len(t.Levels)-1 {
				r.first, r.change = costs.NodeServe, costs.NodeChange
			}
			relays = append(relays, r)
			if level > 0 {
				above := s.levels[level-1]
				above[i%len(above)].follow(&simFollower{relay: r, sent: 1})
			}
		}
		s.levels = append(s.levels, relays)
	}
	for i := range t.Nodes {
		leaves := s.levels[len(s.levels)-1]
		leaves[i%len(leaves)].follow(&simFollower{sent: 1})
	}
	return s
}

func (r *simRelay) follow(f *simFollower) { r.followers = append(r.followers, f) }

// leaves returns the relays that serve nodes.
func (s *treeSim) leaves() []*simRelay { return s.levels[len(s.levels)-1] }

// at has something happen at a time that is not past.
func (s *treeSim) at(t float64, happen func()) {
	s.queue.n++
	heap.Push(&s.queue, event{t, s.queue.n, happen})
}

// changeAt has an object change at the API server. It is called with times that rise.
func (s *treeSim) changeAt(t float64) (revision int) {
	revision = len(s.reached)
	s.reached, s.done = append(s.reached, 0), append(s.done, 0)
	for _, r := range s.levels[0] {
		s.at(t+s.costs.Hop, func() { r.learn(revision) })
	}
	return revision
}

// startAll forgets what anybody has: all relays and nodes start at once.
func (s *treeSim) startAll() {
	s.reached[1], s.done[1] = 0, 0
	for _, level := range s.levels {
		for _, r := range level {
			r.want, r.has = 0, 0
			for _, f := range r.followers {
				f.sent = 0
			}
		}
	}
	for _, r := range s.levels[0] {
		s.at(s.costs.Hop, func() { r.learn(1) })
	}
}

// loseLeaf has a relay of the last level vanish. Its nodes follow the others at once, from nothing, and are asked for alone.
func (s *treeSim) loseLeaf() {
	leaves := s.leaves()
	lost, others := leaves[0], leaves[1:]
	s.levels[len(s.levels)-1] = others
	s.reached[1], s.done[1], s.enough = 0, 0, len(lost.followers)
	for i, f := range lost.followers {
		f.sent = 0
		r := others[i%len(others)]
		r.follow(f)
		s.at(s.costs.Hop, func() { r.serve(f) })
	}
	lost.followers = nil
}

// run has everything happen.
func (s *treeSim) run() {
	for s.queue.Len() > 0 {
		e := heap.Pop(&s.queue).(event)
		s.now = e.at
		e.happen()
	}
}

// learn takes a revision from above.
func (r *simRelay) learn(revision int) {
	r.want = max(r.want, revision)
	if !r.computing && r.want > r.has {
		r.computing = true
		r.enqueue(nil)
	}
}

// serve queues a follower that does not have all that the relay has.
func (r *simRelay) serve(f *simFollower) {
	if !f.queued && f.sent < r.has {
		f.queued = true
		r.enqueue(f)
	}
}

func (r *simRelay) enqueue(f *simFollower) {
	r.waiting = append(r.waiting, f)
	r.work()
}

// work gives free processors work.
func (r *simRelay) work() {
	for r.free > 0 && len(r.waiting) > 0 {
		f := r.waiting[0]
		r.waiting = r.waiting[1:]
		r.free--
		if f == nil {
			r.compute()
		} else {
			r.send(f)
		}
	}
}

// compute works out what is wanted.
func (r *simRelay) compute() {
	want := r.want
	r.spend(costOf(r.has, want, r.sim.costs.Start, r.sim.costs.Change), func() {
		r.has, r.computing = want, false
		for _, f := range r.followers {
			r.serve(f)
		}
		r.learn(r.want)
	})
}

// send sends a follower what it does not have.
func (r *simRelay) send(f *simFollower) {
	s, from, has := r.sim, f.sent, r.has
	r.spend(costOf(from, has, r.first, r.change), func() {
		f.sent, f.queued = has, false
		r.serve(f)
		s.at(s.now+s.costs.Hop, func() {
			if f.relay != nil {
				f.relay.learn(has)
			} else {
				s.arrive(from, has)
			}
		})
	})
}

// spend has one processor compute, and then another job, after what follows.
func (r *simRelay) spend(cost float64, then func()) {
	r.busy += cost
	r.sim.at(r.sim.now+cost, func() {
		r.free++
		then()
		r.work()
	})
}

// costOf is what it costs to go from a revision to another one, with all that is between them. From nothing it is the whole state.
func costOf(from, to int, whole, change float64) float64 {
	if from == 0 {
		return whole
	}
	return float64(to-from) * change
}

// arrive counts a node that has all revisions up to one.
func (s *treeSim) arrive(from, has int) {
	for revision := from + 1; revision <= has; revision++ {
		s.reached[revision]++
		if s.reached[revision] == s.enough {
			s.done[revision] = s.now
		}
	}
}
