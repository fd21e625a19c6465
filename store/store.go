// Package store holds the objects that sources deliver. It publishes the resulting state of this node, or of every
// node, under revisions.
//
// The cost of a change depends on the objects that it touches, not on the size of the cluster. Only the services that
// it concerns are computed again, and only changed records are published. Services with a slow start are also computed again
// while they have new endpoints, in steps of bounded size. Nothing is queued for consumers: each
// consumer asks for updates newer than its own revision.
package store

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Store.Next] returns once the store is closed.
var ErrClosed = errors.New("store is closed")

// Options has the options of a [Store].
type Options struct {
	// Brain decides about routing. Its NodeName is required.
	Brain brain.Config
	// Budgets bound the entries of all services together. Default: there is no bound.
	Budgets Budgets
	// Logger gets the problems of services. Default: nothing is logged.
	Logger *slog.Logger
	// OnProblem is called when a service begins to have a problem for one of the [Reasons], one call at a time. It must return soon, and not
	// call the store. It may be nil.
	OnProblem func(Problem)
}

// Store turns objects into published states. It implements [state.Feed]. All methods may be called concurrently.
type Store struct {
	core
	feed *revlog.States
	node *state.Node // the node as dataplanes see it, the same pointer as long as it is the same node; guarded by mu
}

var _ state.Feed = (*Store)(nil)

// Snapshot is one published state. It is immutable and costs nothing to keep but the records that have changed since.
type Snapshot struct{ of *revlog.Snapshot }

// Revision is the revision of the state, 0 if nothing has been published yet.
func (s *Snapshot) Revision() state.Revision { return s.of.Revision() }

// Node is this node, never nil.
func (s *Snapshot) Node() *state.Node { return s.of.Node() }

// Len is the number of services.
func (s *Snapshot) Len() int { return s.of.Len() }

// Get returns a service's record, or nil if there is none.
func (s *Snapshot) Get(name state.ServiceName) *state.Service { return s.of.Get(name) }

// Services are all records, ordered by name.
func (s *Snapshot) Services() iter.Seq[*state.Service] { return s.of.Services() }

// New returns an empty store. It publishes nothing before it has a source and all its sources are complete.
func New(o Options) *Store {
	node := settingsOf(&o.Brain).node(o.Brain.NodeName, nil, nil, nil)
	s := &Store{feed: revlog.NewStates(node, ErrClosed), node: node}
	s.init(o.Brain, o.Budgets, o.Logger, o.OnProblem, objectsOfNode(o.Brain.NodeName), s.publish)
	return s
}

// Reconfigure makes the store decide about routing by another configuration, as if it had been made with it. It
// publishes all differences as one revision. The store keeps its node, regardless of c's NodeName. Likewise, the edge stays on or off: without it, the
// store has forgotten all other Nodes.
func (s *Store) Reconfigure(c brain.Config, b Budgets) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.NodeName, c.Edge.Enabled = s.brain.NodeName, s.brain.Edge.Enabled
	if c.Equal(&s.brain) && b == s.ledger.budgets {
		return
	}
	s.brain = c
	s.objects.setHealthRule(c.NodeHealth)
	s.renewNode()
	s.ledger.reset(b)
	for _, ns := range s.objects.namespaces {
		s.objects.markAll(ns)
	}
	s.publish()
}

// Next implements [state.Feed]. It fails with ErrClosed once the store is closed, also if there is a newer state.
func (s *Store) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	return s.feed.Next(ctx, after)
}

// Snapshot returns the latest published state. Before the first one it is an empty snapshot with revision 0.
func (s *Store) Snapshot() *Snapshot { return &Snapshot{s.feed.Snapshot()} }

// Close ends all calls of Next. Objects that sources deliver afterwards are ignored.
func (s *Store) Close() {
	s.feed.Close()
	s.stopTimers()
}

// publish computes the services that the latest objects concern and publishes a new state if any record, or the node, came
// out different. The caller holds mu.
func (s *Store) publish() {
	if !s.intake.Complete() || s.feed.IsClosed() {
		return
	}
	s.judgeNodes()
	s.updateNode()
	dirty := s.takeDirty()
	for _, svc := range dirty {
		s.recompute(svc)
	}
	s.settle()
	changes := make([]revlog.Change, 0, len(s.pending))
	for _, svc := range s.pending {
		svc.pending = false
		if s.finalize(svc) {
			changes = append(changes, revlog.Change{Name: svc.name, Record: svc.published, Trigger: svc.trigger})
		}
	}
	for _, svc := range dirty {
		svc.trigger = time.Time{} // also of changes that make no difference here
	}
	s.pending = nil
	s.problems.endReport()
	s.feed.Publish(s.node, changes)
}

// updateNode applies changes of the node. All services depend on it, but for its peers.
func (s *Store) updateNode() {
	nodes, cidrs := s.objects.takeNodes()
	if len(nodes) > 0 {
		for _, ns := range s.objects.namespaces {
			s.objects.markAll(ns)
		}
	}
	if peers := s.objects.edge.takeRenewed(); len(nodes) > 0 || cidrs || peers {
		s.renewNode()
	}
}

// renewNode makes the node again.
func (s *Store) renewNode() {
	node := settingsOf(&s.brain).node(s.node.Name, s.objects.nodes[s.node.Name], s.objects.allServiceCIDRs(), s.objects.edge.peers)
	if !node.Equal(s.node) {
		s.node = node
	}
}

// recompute asks the brain about a service and puts its claims to the arbiter.
func (s *Store) recompute(svc *service) {
	in := s.granted(svc)
	record := brain.Compute(in.brain, s.objects.nodes[s.brain.NodeName], in.object, in.slices)
	s.noteOwn(svc, s.ownProblems(svc, &in))
	s.objects.dropIfEmpty(svc)
	if !sameRecord(svc.computed, record) {
		s.claim(svc, record)
	}
}

// finalize brings svc.published up to date after all claims have been placed and reports whether it changed.
func (s *Store) finalize(svc *service) bool {
	record, _ := s.award(svc)
	if sameRecord(svc.published, record) {
		return false
	}
	svc.published = record
	return true
}
