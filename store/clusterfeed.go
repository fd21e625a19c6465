package store

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// clusterFeed holds the latest answers, and what changed in the revisions before them. All nodes share it.
type clusterFeed struct {
	settings settings // of all nodes

	mu       sync.Mutex // guards all below
	revision state.Revision
	latest   *overview
	cidrs    []netip.Prefix
	peers    []state.Peer
	log      revlog.Ring[event]
	nodes    map[string]*clusterNode // those that have an object or a waiting consumer
	// followed are the nodes whose states have been requested. Only these are examined when a change concerns many
	// nodes.
	followed map[*clusterNode]struct{}
	closed   bool
}

// clusterNode is a node in the feed.
type clusterNode struct {
	name   string
	object *model.Node // nil if absent
	// state is the node as dataplanes see it, nil until a consumer asks for it.
	state *state.Node
	// latest is the latest revision that may concern this node.
	latest state.Revision
	// quiet is a time in which nothing concerned this node.
	quiet   span
	callers int           // of Next
	wake    chan struct{} // closed when there is news, nil if no consumer waits
}

// span is all revisions after one and up to another.
type span struct{ after, until state.Revision }

func (n *clusterNode) zone() string {
	if n.object == nil {
		return ""
	}
	return n.object.Zone
}

// event is something that changed in a revision. It is a service if name is set, and a node if moved is. Otherwise it is the service CIDRs or the peers.
type event struct {
	name    state.ServiceName
	trigger time.Time
	scope   *scope
	moved   *move
}

// move is a change of a node's object. Objects are nil if absent.
type move struct {
	name     string
	from, to *model.Node
}

// answered is the new answer for a service, nil if it is no longer routed.
type answered struct {
	name   state.ServiceName
	answer *answer
}

// publication has the changes of one revision.
type publication struct {
	answers []answered
	events  []event // of services; there may be fewer of them than of answers
	moved   []move

	cidrs        []netip.Prefix
	cidrsChanged bool
	peers        []state.Peer
	peersChanged bool
}

func newClusterFeed(s settings) *clusterFeed {
	return &clusterFeed{
		settings: s,
		latest:   new(overview),
		log:      revlog.Ring[event]{Max: revlog.Limit},
		nodes:    make(map[string]*clusterNode), followed: make(map[*clusterNode]struct{}),
	}
}

// publish makes a new revision of p, if it is news for any node. The first state is always news. It is called by one goroutine
// at a time.
func (f *clusterFeed) publish(p *publication) {
	next := f.latest // only publish replaces it
	if len(p.answers) > 0 {
		next = &overview{answers: next.answers.Clone()}
		for _, a := range p.answers {
			if a.answer == nil {
				next.answers.Delete(a.name)
			} else {
				next.answers.Set(a.name, a.answer)
			}
		}
	}

	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return
	}
	f.latest = next
	for i, m := range p.moved {
		if f.revision > 0 {
			p.events = append(p.events, event{scope: &scope{nodes: []string{m.name}}, moved: &p.moved[i]})
		}
		f.move(m)
	}
	cidrs := p.cidrsChanged && !slices.Equal(f.cidrs, p.cidrs)
	if cidrs {
		f.cidrs = p.cidrs
	}
	if p.peersChanged {
		f.peers = p.peers
	}
	if cidrs || p.peersChanged {
		p.events = append(p.events, event{})
		for n := range f.followed {
			n.state = nil
		}
	}
	switch {
	case f.revision == 0:
		f.revision = 1
		f.log.Forget(1) // a consumer without a state gets everything: no need to log it
		f.touchAll()
	case len(p.events) > 0:
		f.revision++
		for _, e := range p.events {
			f.log.Add(f.revision, e)
		}
		f.notify(p.events)
	}
}

// move takes over a node's object.
func (f *clusterFeed) move(m move) {
	n := f.node(m.name)
	n.object = m.to
	if n.state != nil && !f.settings.node(m.name, m.to, f.cidrs, f.peers).Equal(n.state) {
		n.state = nil
	}
	f.dropIfIdle(n)
}

// notify wakes the nodes that the events of the latest revision concern.
func (f *clusterFeed) notify(events []event) {
	if slices.ContainsFunc(events, func(e event) bool { return e.scope == nil }) {
		f.touchAll()
		return
	}
	for _, e := range events {
		if e.scope.few() {
			for _, name := range e.scope.nodes {
				if n := f.nodes[name]; n != nil {
					f.touch(n)
				}
			}
			continue
		}
		for n := range f.followed {
			if n.latest != f.revision && e.scope.concerns(n.name, n.zone()) {
				f.touch(n)
			}
		}
	}
}

func (f *clusterFeed) touchAll() {
	for n := range f.followed {
		f.touch(n)
	}
}

// touch notes that the latest revision concerns a node, and wakes it.
func (f *clusterFeed) touch(n *clusterNode) {
	if n.latest < f.revision {
		// The log serves consumers whose revision it still has. A consumer with an older revision needs the full state,
		// unless nothing changed between its revision and the beginning of the log. The quiet time is kept while it
		// lasts.
		if f.log.Knows(n.quiet.after) || !f.log.Knows(n.quiet.until) {
			n.quiet = span{n.latest, f.revision - 1}
		}
		n.latest = f.revision
	}
	if n.wake != nil {
		close(n.wake)
		n.wake = nil
	}
}

func (f *clusterFeed) node(name string) *clusterNode {
	n := f.nodes[name]
	if n == nil {
		n = &clusterNode{name: name}
		f.nodes[name] = n
	}
	return n
}

// follow returns a node whose state is asked for. The first time, any revision may concern it.
func (f *clusterFeed) follow(name string) *clusterNode {
	n := f.node(name)
	if _, ok := f.followed[n]; !ok {
		f.followed[n] = struct{}{}
		n.latest, n.quiet = f.revision, span{}
	}
	return n
}

func (f *clusterFeed) dropIfIdle(n *clusterNode) {
	if n.object == nil && n.callers == 0 {
		delete(f.nodes, n.name)
		delete(f.followed, n)
	}
}

func (f *clusterFeed) isClosed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.closed
}

func (f *clusterFeed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	f.touchAll()
}

// nodeFeed is what one node gets.
type nodeFeed struct {
	feed *clusterFeed
	name string
}

// Next implements [state.Feed].
func (nf *nodeFeed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	f := nf.feed
	f.mu.Lock()
	defer f.mu.Unlock() // which is let go while there is something to compute or to wait for
	n := f.follow(nf.name)
	n.callers++
	defer func() {
		n.callers--
		f.dropIfIdle(n)
	}()
	for {
		switch {
		case f.closed:
			return nil, ErrClosed
		case f.revision == 0 || after == f.revision || 0 < after && after < f.revision && after >= n.latest:
			if err := f.wait(ctx, n); err != nil {
				return nil, err
			}
			continue
		}
		if n.quiet.after <= after && after < n.quiet.until {
			after = n.quiet.until
		}
		now := f.look(n)
		events, known := f.log.Since(after)
		f.mu.Unlock()
		u := now.update(after, events, known)
		f.mu.Lock()
		if u != nil {
			return u, nil
		}
		after = now.revision // nothing was different for this node
	}
}

// wait waits for news for n.
func (f *clusterFeed) wait(ctx context.Context, n *clusterNode) error {
	if n.wake == nil {
		n.wake = make(chan struct{})
	}
	wake := n.wake
	f.mu.Unlock()
	defer f.mu.Lock()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-wake:
		return nil
	}
}

// look is the cluster at one revision, as one node sees it.
type look struct {
	*overview
	revision state.Revision
	name     string
	object   *model.Node
	state    *state.Node
}

func (f *clusterFeed) look(n *clusterNode) *look {
	if n.state == nil {
		n.state = f.settings.node(n.name, n.object, f.cidrs, f.peers)
	}
	return &look{f.latest, f.revision, n.name, n.object, n.state}
}

// update returns how to get here from a revision, after which there were those events, the latest first. It returns nil if
// nothing is different.
func (l *look) update(after state.Revision, events iter.Seq[event], known bool) *state.Update {
	if after == 0 || after > l.revision || !known {
		return l.full()
	}
	return l.delta(events)
}

func (l *look) full() *state.Update {
	return &state.Update{Revision: l.revision, Full: true, Node: l.state, Changed: l.records(l.name, l.object)}
}

func (l *look) get(name state.ServiceName) *state.Service {
	a := l.answers.Get(name)
	return a.at(a.view(l.name, l.object))
}

func (l *look) delta(events iter.Seq[event]) *state.Update {
	var first *move // of this node, in events
	for e := range events {
		if e.moved != nil && e.moved.name == l.name {
			first = e.moved
		}
	}
	u := &state.Update{Revision: l.revision, Node: l.state}
	var names []state.ServiceName
	news := false
	for e := range events {
		switch {
		case e.name != state.ServiceName{}:
			// Scopes hold for the node as it was. If it was another one, all changes count.
			if first == nil && !e.scope.concerns(l.name, l.zone()) {
				continue
			}
			names = append(names, e.name)
			if !e.trigger.IsZero() {
				u.Triggers = append(u.Triggers, e.trigger)
			}
		case e.moved == nil:
			news = true // service CIDRs or peers
		}
	}
	if first != nil {
		names = append(names, l.seenAnew(first.from)...)
		before := settings{l.state.LocalDetector, l.state.NodePorts}.node(l.name, first.from, l.state.ServiceCIDRs, l.state.Peers)
		news = news || !before.Equal(l.state)
	}
	if !news && len(names) == 0 {
		return nil
	}
	u.Changed, u.Removed = revlog.Outcome(names, l.get)
	return u
}

func (l *look) zone() string {
	if l.object == nil {
		return ""
	}
	return l.object.Zone
}

// seenAnew returns the services whose record for the node now differs from the record for from.
func (l *look) seenAnew(from *model.Node) (names []state.ServiceName) {
	for a := range l.answers.Values() {
		before, now := a.view(l.name, from), a.view(l.name, l.object)
		if before != now && !sameRecord(a.at(before), a.at(now)) {
			names = append(names, a.object.Name)
		}
	}
	return names
}
