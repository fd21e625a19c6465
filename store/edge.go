package store

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// maxPeerBytes bounds the Nodes that others can hand connections over to. It has room for more than 20,000 usual ones.
const maxPeerBytes = 8 << 20

// peerCost is what a Node counts in addition to its name, addresses and ranges: it is in two lists.
const peerCost = 192

// peerPause is for how long the peers stay as they are, for each of them. Each consumer of a node gets all peers with a change, about 90 bytes for each.
// So a consumer gets about 22 KB of them a second at most.
const peerPause = 4 * time.Millisecond

// edge knows the Nodes, and which of them take part in the edge. It knows none while it is off.
type edge struct {
	on bool
	// known are the Nodes by their latest objects, and faults those with a bad annotation. They take so many bytes. Nodes beyond
	// maxPeerBytes are in rejected, by number, and take no part.
	known    map[string]state.Peer
	faults   map[string]edgeFault
	bytes    int
	rejected int

	// peers are all Nodes since the last judgment, and part the names of those that take part. The list is shared, and part is nil before the first one.
	peers []state.Peer
	part  map[string]struct{}
	// changed reports that known has changed since then. The next judgment is not before next: as many pauses later as there are peers.
	changed bool
	next    time.Time
	pause   time.Duration
	// renewed reports that the peers are others than those that were published.
	renewed bool
}

func newEdge(on bool) edge {
	return edge{on: on, changed: on, known: make(map[string]state.Peer), faults: make(map[string]edgeFault), pause: peerPause}
}

// set notes a Node, nil if it is gone.
func (e *edge) set(name string, node *model.Node) {
	if !e.on {
		return
	}
	before, was := e.known[name]
	if was {
		e.bytes -= costOf(&before, e.faults[name])
	}
	if node == nil {
		if was {
			e.forget(name)
		}
		return
	}
	peer, fault := brain.PeerOf(node), faultOf(node)
	cost := costOf(&peer, fault)
	if e.bytes+cost > maxPeerBytes {
		e.rejected++
		e.forget(name)
		return
	}
	e.bytes += cost
	if fault != e.faults[name] {
		e.changed = true
		if delete(e.faults, name); fault != (edgeFault{}) {
			e.faults[name] = fault
		}
	}
	if !was || !before.Equal(&peer) {
		e.known[name] = peer
		e.changed = true
	}
}

// edgeFault is an annotation by which a Node takes no part. The zero value is for a Node without a fault.
type edgeFault struct{ node, value, want string }

func faultOf(node *model.Node) edgeFault {
	if _, want := brain.EdgePort(node); want != "" {
		return edgeFault{node.Name, node.Edge, want}
	}
	return edgeFault{}
}

func (f edgeFault) Error() string {
	return fmt.Sprintf("node %s: metadata.annotations[%s]: %q is not %s, so no connection is handed over to the node; "+
		"run the same version of Switchyard there, or remove the annotation", f.node, model.EdgeAnnotation, f.value, f.want)
}

func (e *edge) forget(name string) {
	delete(e.known, name)
	delete(e.faults, name)
	e.changed = true
}

func costOf(p *state.Peer, f edgeFault) int {
	return peerCost + len(p.Name) + 24*len(p.Addresses) + 32*len(p.PodCIDRs) + len(f.value)
}

// judge makes the peers. It returns the Nodes that begin to take part, and those that cease to, in order.
func (e *edge) judge(now time.Time) (begun, ended []string) {
	e.changed = false
	peers := make([]state.Peer, 0, len(e.known))
	for _, p := range e.known {
		peers = append(peers, p)
	}
	slices.SortFunc(peers, func(a, b state.Peer) int { return a.Compare(&b) })
	part := make(map[string]struct{}, len(peers))
	for i := range peers {
		if i > 0 && peers[i-1].ID == peers[i].ID || i+1 < len(peers) && peers[i+1].ID == peers[i].ID {
			peers[i].Port = 0
		}
		if peers[i].Port != 0 {
			part[peers[i].Name] = struct{}{}
		}
	}
	if !slices.EqualFunc(peers, e.peers, func(a, b state.Peer) bool { return a.Equal(&b) }) {
		e.peers, e.renewed = peers, true
		e.next = now.Add(time.Duration(len(peers)) * e.pause)
	}
	begun, ended = missing(part, e.part), missing(e.part, part)
	e.part = part
	return begun, ended
}

// isApart reports whether a Node takes no part. Before the first judgment, none does not.
func (e *edge) isApart(node string) bool {
	if e.part == nil || node == "" {
		return false
	}
	_, ok := e.part[node]
	return !ok
}

// takeRenewed reports whether the peers are others than at the last call.
func (e *edge) takeRenewed() bool {
	renewed := e.renewed
	e.renewed = false
	return renewed
}

// judgeEdge judges which Nodes take part in the edge, and marks the services with endpoints on Nodes for which that changes.
func (o *objects) judgeEdge(now time.Time) (begun, ended []string) {
	first := o.edge.part == nil
	begun, ended = o.edge.judge(now)
	changed := slices.Concat(begun, ended)
	if first { // no endpoint is marked
		changed = slices.DeleteFunc(slices.Collect(maps.Keys(o.places)), func(name string) bool { return !o.edge.isApart(name) })
	}
	o.markNodes(changed)
	return begun, ended
}

// Edge is what a store knows about the Nodes that hand connections over to each other.
type Edge struct {
	// Enabled reports whether the edge is on.
	Enabled bool
	// Nodes is the number of Nodes that are known, and Part how many of them take part.
	Nodes, Part int
	// Rejected is how many times a Node was left out because the others take 8 MiB.
	Rejected int
	// Problems are why Nodes take no part although their annotation asks for it, some of them if there are many.
	Problems []error
}

// Edge returns who takes part in the edge by the latest judgment. It does not wait for changes that are being taken in.
func (c *core) Edge() Edge { return *c.edge.Load() }

// judgeEdge judges which Nodes take part in the edge, at once or when the pause is over. The caller holds mu.
func (c *core) judgeEdge() {
	e, now := &c.objects.edge, time.Now()
	switch {
	case !e.changed:
	case now.Before(e.next):
		if c.edgeJudgment == nil {
			c.edgeJudgment = time.AfterFunc(e.next.Sub(now), func() {
				c.mu.Lock()
				defer c.mu.Unlock()
				c.edgeJudgment = nil
				c.publish()
			})
		}
	default:
		c.noteEdge(c.objects.judgeEdge(now))
	}
}

// noteEdge logs how a judgment differs from the one before, and keeps it for those who ask.
func (c *core) noteEdge(begun, ended []string) {
	e, was := &c.objects.edge, c.edge.Load()
	is := &Edge{Enabled: e.on, Nodes: len(e.peers), Part: len(e.part), Rejected: e.rejected, Problems: e.problems()}
	c.edge.Store(is)
	if len(begun) > 0 {
		c.log.Info("nodes take part in the edge", "nodes", someOf(begun), "count", len(begun))
	}
	if len(ended) > 0 {
		c.log.Info("nodes no longer take part in the edge", "nodes", someOf(ended), "count", len(ended))
	}
	known := make(map[string]bool, len(was.Problems))
	for _, p := range was.Problems {
		known[p.Error()] = true
	}
	for _, p := range is.Problems {
		if !known[p.Error()] {
			c.log.Warn("a node takes no part in the edge", "error", p)
		}
	}
}

// problems returns why Nodes take no part.
func (e *edge) problems() (list []error) {
	if e.rejected > 0 {
		list = append(list, fmt.Errorf("nodes were left out of the edge %d times, because the others take up to %d bytes; remove Nodes that no longer exist, and restart",
			e.rejected, maxPeerBytes))
	}
	for i := 1; i < len(e.peers); i++ {
		if p, before := &e.peers[i], &e.peers[i-1]; p.ID == before.ID {
			list = append(list, fmt.Errorf("node %s and node %s: their names have the same hash, %08x, so no connection is handed over to them; rename one of them",
				before.Name, p.Name, p.ID))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(e.faults)) {
		list = append(list, e.faults[name])
	}
	if more := len(list) - maxListed; more > 0 {
		list = append(list[:maxListed], fmt.Errorf("%d more problems keep nodes from taking part in the edge", more))
	}
	return list
}
