package store

import (
	"log/slog"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// ClusterOptions has the options of a [Cluster].
type ClusterOptions struct {
	// Brain decides about routing on all nodes. Its NodeName does not count.
	Brain brain.Config
	// Budgets bound the entries of all services together. Default: there is no bound.
	Budgets Budgets
	// Logger gets the problems of services. Default: nothing is logged.
	Logger *slog.Logger
	// OnProblem is called when a service begins to have a problem for one of the [Reasons], one call at a time. It must return soon, and not
	// call the cluster. It may be nil.
	OnProblem func(Problem)
}

// Cluster turns objects into the published states of every node. For each node it publishes the same state as a [Store]
// of that node. All methods may be called concurrently.
//
// Nodes that see a service from the same viewpoint share its record, by pointer. The cost of a change depends on its
// objects and on the few viewpoints of their services. It does not depend on the number of nodes. Only nodes whose
// records change are woken.
type Cluster struct {
	core
	feed        *clusterFeed
	maxCompared int
}

// NewCluster returns an empty cluster. It publishes nothing before it has a source and all its sources are complete.
func NewCluster(o ClusterOptions) *Cluster {
	c := &Cluster{feed: newClusterFeed(settingsOf(&o.Brain)), maxCompared: maxCompared}
	c.init(o.Brain, o.Budgets, o.Logger, o.OnProblem, objectsOfAll(), c.publish)
	return c
}

// Node returns the states of a node, by its name. A node without an object has no zone, no addresses, and only the
// endpoints that name it. All nodes share the revisions of the cluster, so the updates of one node may skip some. After
// Close its Next fails with ErrClosed.
func (c *Cluster) Node(name string) state.Feed { return &nodeFeed{c.feed, name} }

// Close ends all calls of Next of all nodes. Objects that sources deliver afterwards are ignored.
func (c *Cluster) Close() {
	c.feed.close()
	c.stopTimers()
}

// publish computes the services that the latest objects concern and publishes a new state if it is different for any node.
// The caller holds mu.
func (c *Cluster) publish() {
	if !c.intake.Complete() || c.feed.isClosed() {
		return
	}
	c.judgeNodes()
	var p publication
	previous, cidrs := c.objects.takeNodes()
	for name, node := range previous {
		p.moved = append(p.moved, move{name: name, from: node, to: c.objects.nodes[name]})
	}
	if cidrs {
		p.cidrs = c.objects.allServiceCIDRs()
		p.cidrsChanged = true
	}
	if c.objects.edge.takeRenewed() {
		p.peers, p.peersChanged = c.objects.edge.peers, true
	}
	dirty := c.takeDirty()
	for _, svc := range dirty {
		c.recompute(svc)
	}
	c.settle()
	for _, svc := range c.pending {
		svc.pending = false
		c.finalize(svc, &p)
	}
	for _, svc := range dirty {
		svc.trigger = time.Time{} // also of changes that make no difference anywhere
	}
	c.pending = nil
	c.problems.endReport()
	c.feed.publish(&p)
}

// recompute asks the brain about a service and puts its claims to the arbiter. Claims are the same from everywhere.
func (c *Cluster) recompute(svc *service) {
	in := c.granted(svc)
	record := brain.Viewpoint{}.Compute(in.brain, in.object, in.slices)
	c.noteOwn(svc, c.ownProblems(svc, &in))
	c.objects.dropIfEmpty(svc)
	if !sameRecord(svc.computed, record) {
		c.claim(svc, record)
	} else {
		c.markPending(svc) // some node may see a difference
	}
}

// finalize brings the answer for svc up to date after all claims have been placed.
func (c *Cluster) finalize(svc *service, p *publication) {
	record, lost := c.award(svc)
	previous := svc.answer
	svc.answer = nil
	if record != nil {
		in := c.granted(svc)
		svc.answer = &answer{
			brain: in.brain, object: in.object, slices: slices.Clone(in.slices),
			facts: brain.FactsOf(in.brain, in.object, in.slices), lost: lost, common: record,
		}
	}
	if previous == nil && svc.answer == nil {
		return
	}
	p.answers = append(p.answers, answered{svc.name, svc.answer})
	if s := compare(previous, svc.answer, c.objects.nodes, c.maxCompared); !s.none() {
		p.events = append(p.events, event{name: svc.name, trigger: svc.trigger, scope: s})
	}
}
