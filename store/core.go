package store

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/state"
)

// core is what [Store] and [Cluster] have in common: it takes in objects, knows which services they concern, and arbitrates
// between services.
type core struct {
	brain brain.Config
	log   *slog.Logger
	// publish is called with mu held after each change.
	publish func()

	mu         sync.Mutex // guards all below
	incomplete int        // sources that are not complete
	registered int        // sources
	objects    objects
	arbiter    arbiter
	apiServer  lastKnown
	unsettled  []*service // services whose published answer may have to change
}

func newCore(cfg brain.Config, log *slog.Logger, objects objects) core {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return core{brain: cfg, log: log, objects: objects, arbiter: newArbiter(), apiServer: lastKnown{log: log}}
}

func (c *core) source(name string) source.Sink {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.registered++
	c.incomplete++
	return &sink{core: c, name: name}
}

// sink takes the objects of one source.
type sink struct {
	core     *core
	name     string
	complete bool // guarded by core.mu
}

// Update implements [source.Sink]. An object that is both deleted and set is set; of two with the same ref the later wins.
func (k *sink) Update(set []model.Object, deleted []model.Ref) {
	c := k.core
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ref := range deleted {
		c.objects.remove(ref)
	}
	for _, obj := range set {
		c.objects.put(obj)
	}
	c.publish()
}

// Complete implements [source.Sink].
func (k *sink) Complete() {
	c := k.core
	c.mu.Lock()
	defer c.mu.Unlock()
	if k.complete {
		return
	}
	k.complete = true
	c.incomplete--
	c.log.Debug("source is complete", "source", k.name, "waitingFor", c.incomplete)
	c.publish()
}

// complete says that there are sources, and that they have delivered all they have.
func (c *core) complete() bool { return c.registered > 0 && c.incomplete == 0 }

// inputs returns what the answer for svc is to be computed from. The object is nil if the service is not to be routed. The
// slices are valid until the next change.
func (c *core) inputs(svc *service) (*model.Service, []*model.EndpointSlice) {
	endpoints := svc.slices
	if svc.name == apiServerName {
		endpoints = c.apiServer.resolve(svc)
	}
	if c.objects.disabled(svc.name.Namespace) {
		return nil, nil
	}
	return svc.object, endpoints
}

// checkSize logs that a service has become too large, or no longer is.
func (c *core) checkSize(svc *service, object *model.Service, endpoints []*model.EndpointSlice) {
	x := brain.ExcessOf(&c.brain, object, endpoints)
	tooLarge := x != brain.Excess{}
	switch {
	case tooLarge && !svc.tooLarge:
		c.log.Warn("service is too large; connections to some of its ports are refused, or not routed at all",
			"service", svc.name.String(), "field", "spec.ports", "firstPort", fmt.Sprintf("%s %d/%v", x.Port.Name, x.Port.Port, x.Port.Protocol),
			"refused", x.Refused, "notRouted", x.Unrouted, "entries", x.Entries, "limit", brain.MaxEntries,
			"remedy", "split the service into several, each with fewer ports or endpoints; "+
				"or give it fewer externalIPs, load balancer addresses or source ranges")
	case svc.tooLarge && !tooLarge && object != nil:
		c.log.Info("service is no longer too large", "service", svc.name.String())
	}
	svc.tooLarge = tooLarge
}

// claim puts the claims of a service's new record to the arbiter.
func (c *core) claim(svc *service, record *state.Service) {
	moved := c.arbiter.replace(svc, svc.computed, record)
	svc.computed = record
	c.unsettle(svc)
	for _, other := range moved {
		c.unsettle(other)
	}
}

func (c *core) unsettle(svc *service) {
	if !svc.unsettled {
		svc.unsettled = true
		c.unsettled = append(c.unsettled, svc)
	}
}

// maxLossesLogged bounds what is logged at once of the frontends that a service has lost, of which it may have any number.
const maxLossesLogged = 10

// award is the arbiter's, with new losses logged.
func (c *core) award(svc *service) (*state.Service, []loss) {
	record, lost := c.arbiter.award(svc, svc.computed)
	fresh := c.arbiter.newLosses(svc, lost)
	for _, l := range fresh[:min(len(fresh), maxLossesLogged)] {
		c.log.Warn("two services claim the same frontend; the service is published without it",
			"service", svc.name.String(), "frontend", l.claim.String(), "heldBy", l.holder.name.String(),
			"remedy", "give one of the two services another address or port")
	}
	if more := len(fresh) - maxLossesLogged; more > 0 {
		c.log.Warn("other services hold more frontends of the service; it is published without them",
			"service", svc.name.String(), "frontends", more)
	}
	return record, lost
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
