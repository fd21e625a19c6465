package store

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// arbiter decides which service holds a frontend that several claim, so that no two hold it in one published state. A
// claim as cluster IP beats all others, because the API server gives each cluster IP away only once. An address in
// status.loadBalancer beats one in externalIPs: the first is written by a controller, the second by anyone who may
// write a Service. A nodePort beats a healthCheckNodePort: the kernel translates connections to the first before
// anything could answer on the second. Then the oldest service wins, and of two that are equally old the one whose name
// comes first. So no service can take an address away from a service that already uses it, except by a better kind of
// claim. The answer depends on the claims only, not on the order in which they came.
//
// A claim costs O(log n) with n claims on the same frontend.
type arbiter struct {
	sole      map[state.FrontendKey]bid      // claims that one service makes
	contested map[state.FrontendKey]*contest // claims of several services
	ranges    ranges                         // claims on ranges of ports
}

// bid is one service's claim.
type bid struct {
	service *service
	kind    state.FrontendKind
}

// HealthCheckPort is the kind of the claim that a Service has on its healthCheckNodePort, which is no frontend.
const HealthCheckPort state.FrontendKind = 255

// precedence orders the kinds of claims on one frontend, the best first. A node port competes with node ports and health check node ports only.
func (b bid) precedence() int {
	switch b.kind {
	case state.ClusterIP:
		return 0
	case state.LoadBalancer:
		return 1
	case HealthCheckPort:
		return 3
	}
	return 2
}

func (b bid) compare(o bid) int {
	return cmp.Or(cmp.Compare(b.precedence(), o.precedence()), cmp.Compare(b.service.born, o.service.born), b.service.name.Compare(o.service.name))
}

// bornUnknown is the birth of a service whose age is not known. It counts as younger than all others, so that it takes nothing from
// them.
const bornUnknown = math.MaxInt64

// birth returns when a service was created, in seconds since 1970. object may be nil.
func birth(object *model.Service) int64 {
	if object == nil || object.Created.IsZero() {
		return bornUnknown
	}
	return object.Created.Unix()
}

// contest holds the bids of several services for one frontend. It is a heap, the best bid first.
type contest struct {
	bids []bid
	at   map[*service]int // positions in bids
}

var _ heap.Interface = (*contest)(nil)

// Len, Less, Swap, Push and Pop implement [heap.Interface].
func (c *contest) Len() int           { return len(c.bids) }
func (c *contest) Less(i, j int) bool { return c.bids[i].compare(c.bids[j]) < 0 }
func (c *contest) Swap(i, j int) {
	c.bids[i], c.bids[j] = c.bids[j], c.bids[i]
	c.at[c.bids[i].service], c.at[c.bids[j].service] = i, j
}

// Push adds a bid at the end.
func (c *contest) Push(x any) {
	b := x.(bid)
	c.at[b.service] = len(c.bids)
	c.bids = append(c.bids, b)
}

// Pop removes the last bid.
func (c *contest) Pop() any {
	last := c.bids[len(c.bids)-1]
	c.bids = c.bids[:len(c.bids)-1]
	delete(c.at, last.service)
	return last
}

func (c *contest) holder() *service { return c.bids[0].service }

// loss is a claim that another service holds. A healthCheckNodePort may also be lost to a nodePort of its own service.
type loss struct {
	claim  state.FrontendKey
	kind   state.FrontendKind
	holder *service
	// to is the range that overlaps the one that is claimed, if that is one. full is set if there are too many ranges: the holder is the service itself.
	to   state.FrontendKey
	full bool
}

func newArbiter() arbiter {
	return arbiter{sole: make(map[state.FrontendKey]bid), contested: make(map[state.FrontendKey]*contest)}
}

// replace replaces the claims of svc's previous record by the claims of its new one; either record may be nil. It
// returns the other services that may have gained or lost a frontend. Ranges of ports are decided when they are settled. While svc has claims, its name and birth must not
// change.
func (a *arbiter) replace(svc *service, previous, record *state.Service) (moved []*service) {
	if sameFrontends(previous, record) {
		return nil
	}
	eachClaim(previous, func(key state.FrontendKey, kind state.FrontendKind) {
		if key.LastPort != 0 {
			a.ranges.remove(rangeClaim{bid{svc, kind}, key})
		} else if next := a.withdraw(key, svc); next != nil {
			moved = append(moved, next)
		}
	})
	eachClaim(record, func(key state.FrontendKey, kind state.FrontendKind) {
		if key.LastPort != 0 {
			a.ranges.add(rangeClaim{bid{svc, kind}, key})
		} else if displaced := a.place(key, bid{svc, kind}); displaced != nil {
			moved = append(moved, displaced)
		}
	})
	return moved
}

// eachClaim goes through the claims of a record, which may be nil: its frontends, and then its health check node port, in both families.
func eachClaim(record *state.Service, do func(state.FrontendKey, state.FrontendKind)) {
	if record == nil {
		return
	}
	for p, f := range record.Frontends() {
		do(p.Key(f), f.Kind)
	}
	if port := record.HealthCheck.Port; port != 0 {
		for _, f := range [...]state.Family{state.IPv4, state.IPv6} {
			do(state.FrontendKey{Family: f, Protocol: state.TCP, Port: port}, HealthCheckPort)
		}
	}
}

// sameFrontends reports whether two records make the same claims, as those before and after a change of endpoints do.
func sameFrontends(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.HealthCheck.Port == b.HealthCheck.Port && slices.EqualFunc(a.Ports, b.Ports, func(p, q state.Port) bool {
		return p.Family == q.Family && p.Protocol == q.Protocol &&
			slices.EqualFunc(p.Frontends, q.Frontends, func(f, g state.Frontend) bool { return f.Compare(g) == 0 })
	})
}

// place adds a bid. If it beats another service's, that service is returned.
func (a *arbiter) place(key state.FrontendKey, b bid) (displaced *service) {
	c := a.contested[key]
	if c == nil {
		sole, taken := a.sole[key]
		if !taken || sole.service == b.service {
			if !taken || b.compare(sole) < 0 { // a service may have one address as frontends of two kinds
				a.sole[key] = b
			}
			return nil
		}
		c = &contest{at: make(map[*service]int, 2)}
		heap.Push(c, sole)
		delete(a.sole, key)
		a.contested[key] = c
	}
	holder := c.holder()
	if i, has := c.at[b.service]; !has {
		heap.Push(c, b)
	} else if b.compare(c.bids[i]) < 0 {
		c.bids[i] = b
		heap.Fix(c, i)
	}
	if c.holder() == b.service && holder != b.service {
		return holder
	}
	return nil
}

// withdraw removes a service's bid, if there is one. If another service now holds the claim instead, it is returned.
func (a *arbiter) withdraw(key state.FrontendKey, svc *service) (next *service) {
	c := a.contested[key]
	if c == nil {
		if a.sole[key].service == svc {
			delete(a.sole, key)
		}
		return nil
	}
	i, has := c.at[svc]
	if !has {
		return nil
	}
	heap.Remove(c, i)
	if len(c.bids) == 1 {
		delete(a.contested, key)
		a.sole[key] = c.bids[0]
	}
	if i == 0 {
		return c.holder()
	}
	return nil
}

// award returns svc's record without what other services hold, and that. If there is nothing, it is the record itself. The record may be nil.
func (a *arbiter) award(svc *service, record *state.Service) (*state.Service, []loss) {
	if len(a.contested)+len(a.ranges.lost) == 0 && (record == nil || record.HealthCheck.Port == 0) {
		return record, nil
	}
	var lost []loss
	eachClaim(record, func(key state.FrontendKey, kind state.FrontendKind) {
		if key.LastPort != 0 {
			if l, isLost := a.ranges.loss(svc, key, kind); isLost {
				lost = append(lost, l)
			}
			return
		}
		best := a.best(key)
		if best.service != svc || kind == HealthCheckPort && best.kind != HealthCheckPort {
			lost = append(lost, loss{claim: key, kind: kind, holder: best.service})
		}
	})
	if len(lost) == 0 {
		return record, nil
	}
	return without(record, lost), lost
}

// best returns the bid that holds a claim. The claim must have a bid.
func (a *arbiter) best(key state.FrontendKey) bid {
	if c := a.contested[key]; c != nil {
		return c.bids[0]
	}
	return a.sole[key]
}

// without returns record without the lost frontends, and without the ports that have no other frontend.
func without(record *state.Service, lost []loss) *state.Service {
	taken := make(map[state.FrontendKey]bool, len(lost))
	unchecked := false
	for _, l := range lost {
		if l.kind == HealthCheckPort {
			unchecked = true
		} else {
			taken[l.claim] = true
		}
	}
	record = record.Without(taken)
	if unchecked {
		record = new(*record)
		record.HealthCheck = state.HealthCheck{}
	}
	return record
}
