// Package store holds the objects that sources deliver and publishes what they mean for this node, under revisions.
//
// A change costs what it touches, not what the cluster holds: only the services that it concerns are computed again, and
// only those whose record came out different are published. Nothing is queued for consumers; each asks for what is newer
// than what it has.
package store

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/statelog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/state"
)

// ErrClosed is what [Store.Next] returns once the store is closed.
var ErrClosed = errors.New("store is closed")

// Options is what a [Store] needs.
type Options struct {
	// Brain decides about routing. Its NodeName is required.
	Brain brain.Config
	// Logger gets conflicts between services. Default: nothing is logged.
	Logger *slog.Logger
}

// Store turns objects into published states. It implements [state.Feed]. All methods may be called concurrently.
type Store struct {
	brain brain.Config
	log   *slog.Logger
	feed  *statelog.Feed

	mu         sync.Mutex // guards all below
	incomplete int        // sources that are not complete
	registered int        // sources
	objects    objects
	arbiter    arbiter
	apiServer  lastKnown
	unsettled  []*service // services whose published record may have to change
}

var _ state.Feed = (*Store)(nil)

// Snapshot is one published state. It is immutable and costs nothing to keep but the records that have changed since.
type Snapshot = statelog.Snapshot

// New returns an empty store. It publishes nothing before it has a source and all its sources are complete.
func New(o Options) *Store {
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &Store{
		brain:     o.Brain,
		log:       log,
		objects:   newObjects(o.Brain.NodeName),
		arbiter:   newArbiter(),
		apiServer: lastKnown{log: log},
		feed:      statelog.NewFeed(&state.Node{Name: o.Brain.NodeName}, ErrClosed),
	}
}

// Source registers a source and returns the sink that it delivers to. Sources are registered before any of them runs: as
// long as one is not complete, nothing is published. name is for the log only.
//
// Sources share one set of objects. If two of them deliver the same object, the last one to do so wins, and it is gone as
// soon as either deletes it.
func (s *Store) Source(name string) source.Sink {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered++
	s.incomplete++
	return &sink{store: s, name: name}
}

// Reconfigure makes the store decide about routing by another configuration, as if it had been made with it: what comes out
// different is published as one revision. The store stays the one of its node, whatever NodeName c has.
func (s *Store) Reconfigure(c brain.Config) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c.NodeName = s.brain.NodeName
	if c == s.brain {
		return
	}
	s.brain = c
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
func (s *Store) Snapshot() *Snapshot { return s.feed.Latest() }

// Close ends all calls of Next. What sources still deliver is ignored.
func (s *Store) Close() { s.feed.Close() }

// sink takes the objects of one source.
type sink struct {
	store    *Store
	name     string
	complete bool // guarded by store.mu
}

// Update implements [source.Sink]. An object that is both deleted and set is set; of two with the same ref the later wins.
func (k *sink) Update(set []model.Object, deleted []model.Ref) {
	s := k.store
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, ref := range deleted {
		s.objects.remove(ref)
	}
	for _, obj := range set {
		s.objects.put(obj)
	}
	s.publish()
}

// Complete implements [source.Sink].
func (k *sink) Complete() {
	s := k.store
	s.mu.Lock()
	defer s.mu.Unlock()
	if k.complete {
		return
	}
	k.complete = true
	s.incomplete--
	s.log.Debug("source is complete", "source", k.name, "waitingFor", s.incomplete)
	s.publish()
}

// publish computes the services that the latest objects concern and publishes a new state if any record, or the node, came
// out different. The caller holds mu.
func (s *Store) publish() {
	if s.registered == 0 || s.incomplete > 0 || s.feed.Closed() {
		return
	}
	dirty := s.objects.takeDirty()
	for _, svc := range dirty {
		s.recompute(svc)
	}
	var changes []statelog.Change
	for _, svc := range s.unsettled {
		svc.unsettled = false
		if s.settle(svc) {
			changes = append(changes, statelog.Change{Name: svc.name, Record: svc.published, Trigger: svc.trigger})
		}
	}
	for _, svc := range dirty {
		svc.trigger = time.Time{} // also of changes that make no difference here
	}
	s.unsettled = nil
	s.feed.Publish(s.objects.stateNode(), changes)
}

// recompute asks the brain about a service and puts its claims to the arbiter.
func (s *Store) recompute(svc *service) {
	record := s.compute(svc)
	s.objects.dropIfEmpty(svc)
	if sameRecord(svc.computed, record) {
		return
	}
	moved := s.arbiter.replace(svc, svc.computed, record)
	svc.computed = record
	s.unsettle(svc)
	for _, other := range moved {
		s.unsettle(other)
	}
}

func (s *Store) compute(svc *service) *state.Service {
	endpoints := svc.slices
	if svc.name == apiServerName {
		endpoints = s.apiServer.resolve(svc)
	}
	if svc.object == nil || s.objects.disabled(svc.name.Namespace) {
		return nil
	}
	return brain.Compute(&s.brain, s.objects.node, svc.object, endpoints)
}

func (s *Store) unsettle(svc *service) {
	if !svc.unsettled {
		svc.unsettled = true
		s.unsettled = append(s.unsettled, svc)
	}
}

// settle brings svc.published up to date after all claims have been placed and says whether it changed.
func (s *Store) settle(svc *service) bool {
	record, lost := s.arbiter.award(svc, svc.computed)
	for _, l := range s.arbiter.newLosses(svc, lost) {
		s.log.Warn("two services claim the same frontend; the service is published without it",
			"service", svc.name.String(), "frontend", l.claim.String(), "heldBy", l.holder.name.String(),
			"remedy", "give one of the two services another address or port")
	}
	if sameRecord(svc.published, record) {
		return false
	}
	svc.published = record
	return true
}

func sameRecord(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// apiServerName is the service by which pods reach the API server.
var apiServerName = state.ServiceName{Namespace: "default", Name: "kubernetes"}

// lastKnown remembers the endpoints of default/kubernetes: they are kept rather than fall to none, because without them
// nothing in the cluster could learn of the new ones.
type lastKnown struct {
	log    *slog.Logger
	slices []*model.EndpointSlice
	inUse  bool
}

// resolve returns the slices to compute svc from: its own, or the last ones with a usable endpoint if those have none.
func (k *lastKnown) resolve(svc *service) []*model.EndpointSlice {
	switch {
	case svc.object == nil:
		k.slices, k.inUse = nil, false
	case slices.ContainsFunc(svc.slices, hasUsableEndpoint):
		k.slices, k.inUse = slices.Clone(svc.slices), false
	case k.slices != nil:
		if !k.inUse {
			k.log.Warn("service has no usable endpoints left; keeping the last known ones", "service", svc.name.String())
		}
		k.inUse = true
		return k.slices
	}
	return svc.slices
}

func hasUsableEndpoint(s *model.EndpointSlice) bool {
	return !s.Headless && s.Family != 0 &&
		slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool { return e.Ready || e.Serving })
}
