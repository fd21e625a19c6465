package store

import (
	"cmp"
	"iter"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// core is what [Store] and [Cluster] have in common: it takes in objects, knows which services they concern, and arbitrates
// between services.
type core struct {
	brain brain.Config
	log   *slog.Logger
	// publish is called with mu held after each change.
	publish func()

	mu        sync.Mutex // guards all below
	intake    revlog.Intake
	objects   objects
	arbiter   arbiter
	ledger    ledger
	excess    map[*service]brain.Size // of services that are too large for themselves
	apiServer lastKnown
	ramps     ramps
	pending   []*service // services whose published answer may have to change
	// own are the problems that services have for themselves, without regard to others.
	own      map[*service][]Problem
	problems *problems
	// judgment is the timer of the next judgment of Nodes, nil if none is due.
	judgment   *time.Timer
	nodeHealth atomic.Pointer[NodeHealth]
	// edgeJudgment is the timer of the next judgment of who takes part in the edge, nil if none is due.
	edgeJudgment *time.Timer
	edge         atomic.Pointer[Edge]
}

func (c *core) init(cfg brain.Config, budgets Budgets, log *slog.Logger, onProblem func(Problem), objects objects, publish func()) {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	c.brain, c.log, c.publish, c.objects = cfg, log, publish, objects
	c.arbiter, c.ledger, c.apiServer = newArbiter(), newLedger(budgets), lastKnown{log: log}
	c.ramps = newRamps()
	c.objects.edge = newEdge(cfg.Edge.Enabled)
	c.objects.place()
	c.objects.setHealthRule(cfg.NodeHealth)
	c.nodeHealth.Store(&NodeHealth{Enabled: cfg.NodeHealth.Enabled})
	c.edge.Store(&Edge{Enabled: cfg.Edge.Enabled})
	c.excess, c.own, c.problems = make(map[*service]brain.Size), make(map[*service][]Problem), newProblems(log, onProblem)
	c.intake = revlog.Intake{Mutex: &c.mu, Update: c.update, Completed: publish, Logger: log}
}

// Source registers a source and returns the sink that it delivers to. Sources are registered before any of them runs: as
// long as one is not complete, nothing is published. name is for the log only.
//
// Sources share one set of objects. If two of them deliver the same object, the last one to do so wins, and it is gone as
// soon as either deletes it.
func (c *core) Source(name string) model.Sink { return c.intake.Source(name) }

// Problems lists why parts of services are not routed, and why Nodes take no part in the edge, some of them if there are many. It does not wait for
// changes that are being taken in.
func (c *core) Problems() []error { return append(c.problems.list(), c.edge.Load().Problems...) }

// Limited returns the number of services with problems, by reason. It does not wait for changes that are being taken in.
func (c *core) Limited() map[Reason]int { return c.problems.limited() }

// update takes in objects of a source. An object that is both deleted and set is set; of two with the same ref the later
// wins. The caller holds mu.
func (c *core) update(set []model.Object, deleted []model.Ref) {
	for _, ref := range deleted {
		c.objects.remove(ref)
	}
	for _, obj := range set {
		c.objects.put(obj)
	}
	c.publish()
}

// inputs are the inputs of a service's answer. The object is nil if the service is not to be routed. The slices are
// valid until the next change.
type inputs struct {
	brain    *brain.Config
	object   *model.Service
	slices   []*model.EndpointSlice
	refusals []brain.Refusal // externalIPs that are left out of the object
	noRanges []brain.RangeRefusal
}

// wanted returns the inputs of svc's answer if there is room for all of it.
func (c *core) wanted(svc *service) inputs {
	in := inputs{brain: &c.brain, slices: svc.slices}
	if svc.name == apiServerName {
		in.slices = c.apiServer.resolve(&c.brain, svc)
	}
	if c.objects.disabled(svc.name.Namespace) {
		return inputs{brain: &c.brain}
	}
	in.object, in.refusals = brain.AdmitExternalIPs(&c.brain, svc.object, c.objects.addresses.holder)
	in.withoutRanges(brain.RefuseRanges(&c.brain, in.object, c.objects.addresses.holder))
	in.withYoung(svc.ramp)
	return in
}

// granted returns the inputs of svc's answer.
func (c *core) granted(svc *service) inputs {
	in := c.wanted(svc)
	switch room, short := c.ledger.room(svc); {
	case short && room == 0:
		in.object = nil
	case short:
		cfg := *in.brain
		cfg.MaxEntries, in.brain = room, &cfg
	}
	return in
}

// takeDirty returns the services to compute again: services that the latest objects concern, and services whose room
// changes as a result.
func (c *core) takeDirty() []*service {
	if ns := c.objects.namespaces[apiServerName.Namespace]; ns != nil && ns.services[apiServerName.Name] != nil {
		if svc := ns.services[apiServerName.Name]; svc.dirty {
			c.objects.addresses.setAPIServers(tcpEndpoints(c.apiServer.resolve(&c.brain, svc)), c.objects.markExternal)
		}
	}
	for _, svc := range c.objects.dirty {
		in := c.wanted(svc)
		if born := birth(in.object); born != svc.born {
			c.forget(svc)
			svc.born = born
		}
		c.ramps.note(svc, &in)
		size := brain.SizeOf(in.brain, in.object, in.slices)
		if size.Fits() {
			delete(c.excess, svc)
		} else {
			c.excess[svc] = size
		}
		c.ledger.set(svc, size.Entries)
	}
	c.ledger.finalize(c.objects.servicesOf, c.objects.mark)
	c.ramps.arm(c.step)
	return c.objects.takeDirty()
}

// SetOwn sets the addresses that the node needs for itself. No service may have them as externalIPs, as
// [brain.AdmitExternalIPs] decides. It publishes all differences as one revision.
func (c *core) SetOwn(own Own) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.objects.addresses.setOwn(own, c.objects.markExternal)
	if len(c.objects.dirty) > 0 {
		c.publish()
	}
}

// tcpEndpoints returns the endpoints of slices' TCP ports.
func tcpEndpoints(from []*model.EndpointSlice) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		for _, s := range from {
			for _, p := range s.Ports {
				for _, e := range s.Endpoints {
					if p.Protocol == state.TCP && !yield(netip.AddrPortFrom(e.Addr, p.Port)) {
						return
					}
				}
			}
		}
	}
}

// forget discards all decisions about a service, as if it were new. The service has been deleted, or another service
// with the same name has replaced it.
func (c *core) forget(svc *service) {
	if svc.computed != nil {
		c.claim(svc, nil)
	}
	c.ledger.set(svc, 0)
	c.ramps.forget(svc)
}

// noteOwn takes down the problems that a service has for itself.
func (c *core) noteOwn(svc *service, own []Problem) {
	if slices.Equal(c.own[svc], own) {
		return
	}
	if len(own) == 0 {
		delete(c.own, svc)
	} else {
		c.own[svc] = own
	}
	c.markPending(svc)
}

// ownProblems returns the problems that a service has for itself, and for the room that there is.
func (c *core) ownProblems(svc *service, in *inputs) (own []Problem) {
	if len(in.refusals) > 0 {
		own = append(own, refused(svc, in.refusals))
	}
	if len(in.noRanges) > 0 {
		own = append(own, refusedRanges(svc, in.noRanges))
	}
	for _, bad := range brain.BadAnnotations(in.brain, in.object) {
		own = append(own, badAnnotation(svc, &bad))
	}
	for _, annotation := range [...]string{model.CiliumWeightAnnotation, model.WeightAnnotation} {
		var bad []*model.EndpointSlice
		for _, s := range svc.slices {
			if s.WeightName() == annotation && brain.BadWeight(in.brain, s) {
				bad = append(bad, s)
			}
		}
		if len(bad) > 0 {
			own = append(own, badWeights(svc, annotation, bad))
		}
	}
	if svc.ramp != nil && svc.ramp.noRoom {
		own = append(own, noSlowStart(svc))
	}
	if size, ok := c.excess[svc]; ok {
		own = append(own, tooLarge(svc, &c.brain, &size))
	}
	if room, short := c.ledger.room(svc); short {
		own = append(own, noRoom(svc, room, &c.ledger))
	}
	return own
}

// claim puts the claims of a service's new record to the arbiter.
func (c *core) claim(svc *service, record *state.Service) {
	moved := c.arbiter.replace(svc, svc.computed, record)
	svc.computed = record
	c.markPending(svc)
	for _, other := range moved {
		c.markPending(other)
	}
}

// settle decides about ranges of ports, once all claims are in.
func (c *core) settle() {
	for _, svc := range c.arbiter.ranges.settle() {
		c.markPending(svc)
	}
}

func (c *core) markPending(svc *service) {
	if !svc.pending {
		svc.pending = true
		c.pending = append(c.pending, svc)
	}
}

// award is the arbiter's. It reports the problems of the service.
func (c *core) award(svc *service) (*state.Service, []loss) {
	record, lost := c.arbiter.award(svc, svc.computed)
	now := c.own[svc]
	if len(lost) > 0 {
		now = slices.Clip(now)
		isRange := func(l loss) bool { return l.claim.LastPort != 0 }
		if others := slices.DeleteFunc(slices.Clone(lost), isRange); len(others) > 0 {
			now = append(now, conflict(svc, others))
		}
		if ranges := slices.DeleteFunc(slices.Clone(lost), func(l loss) bool { return !isRange(l) }); len(ranges) > 0 {
			now = append(now, rangeConflict(svc, ranges))
		}
	}
	if len(now) > 0 || svc.hasProblems {
		svc.hasProblems = len(now) > 0
		c.problems.set(svc.name, now, func() bool { return c.reports(svc) })
	}
	return record, lost
}

// reports returns whether this node is the one to report problems of svc to others. Of all nodes, which have the same problems, it should
// be one.
func (c *core) reports(svc *service) bool {
	var first *model.Endpoint
	for _, s := range svc.slices {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.NodeName != "" && (first == nil || e.Addr.Less(first.Addr)) {
				first = e
			}
		}
	}
	return first != nil && first.NodeName == c.objects.nodeName
}

func sameRecord(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// apiServerName is the service by which pods reach the API server.
var apiServerName = state.ServiceName{Namespace: "default", Name: "kubernetes"}

// lastKnown remembers the endpoints of default/kubernetes. If they would drop to none, the last ones are kept: without
// them, no program in the cluster could learn of new ones.
type lastKnown struct {
	log    *slog.Logger
	slices []*model.EndpointSlice
	inUse  bool
}

// resolve returns the slices to compute svc from: its own, or the last ones with a usable endpoint if those have none.
func (k *lastKnown) resolve(cfg *brain.Config, svc *service) []*model.EndpointSlice {
	switch {
	case svc.object == nil:
		k.slices, k.inUse = nil, false
	case slices.ContainsFunc(svc.slices, func(s *model.EndpointSlice) bool { return hasUsableEndpoint(cfg, s) }):
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

func hasUsableEndpoint(cfg *brain.Config, s *model.EndpointSlice) bool {
	return brain.HandlesSlice(cfg, s) && s.Family != 0 &&
		slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool { return (e.Ready || e.Serving) && model.Special(e.Addr) == "" })
}

// stopTimers is called once the feed is closed, so that time leads to no further state.
func (c *core) stopTimers() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ramps.stop()
	c.stopJudging()
	if c.edgeJudgment != nil {
		c.edgeJudgment.Stop()
		c.edgeJudgment = nil
	}
}
