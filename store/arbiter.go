package store

import (
	"cmp"
	"container/heap"
	"math"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// arbiter decides which service holds a frontend that several claim, so that no two hold it in one published state. A claim as
// cluster IP beats all others, because the API server gives each cluster IP away only once. An address in status.loadBalancer
// beats one in externalIPs: the first is written by a controller, the second by anyone who may write a Service. Then the oldest
// service wins, and of two that are equally old the one whose name comes first. So nobody can take an address away from a service
// that uses it already, except by a better kind of claim. The answer depends on the claims only, not on the order in which they
// came.
//
// A claim costs O(log n) with n claims on the same frontend.
type arbiter struct {
	sole      map[state.FrontendKey]bid      // claims that one service makes
	contested map[state.FrontendKey]*contest // claims of several services
}

// bid is one service's claim.
type bid struct {
	service *service
	kind    state.FrontendKind
}

// precedence orders the kinds of claims on one frontend, the best first. A node port competes with node ports only.
func (b bid) precedence() int {
	switch b.kind {
	case state.ClusterIP:
		return 0
	case state.LoadBalancer:
		return 1
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

// loss is a claim that another service holds.
type loss struct {
	claim  state.FrontendKey
	kind   state.FrontendKind
	holder *service
}

func newArbiter() arbiter {
	return arbiter{sole: make(map[state.FrontendKey]bid), contested: make(map[state.FrontendKey]*contest)}
}

// replace puts the claims of svc's new record in the place of those of its former one; either may be nil. It returns the other services
// that may have gained or lost a frontend by that. As long as svc has claims, its name and birth must not change.
func (a *arbiter) replace(svc *service, former, record *state.Service) (moved []*service) {
	if sameFrontends(former, record) {
		return nil
	}
	eachFrontend(former, func(p *state.Port, f *state.Frontend) {
		if next := a.withdraw(p.Key(f), svc); next != nil {
			moved = append(moved, next)
		}
	})
	eachFrontend(record, func(p *state.Port, f *state.Frontend) {
		if previous := a.place(p.Key(f), bid{svc, f.Kind}); previous != nil {
			moved = append(moved, previous)
		}
	})
	return moved
}

func eachFrontend(record *state.Service, do func(*state.Port, *state.Frontend)) {
	if record == nil {
		return
	}
	for i := range record.Ports {
		p := &record.Ports[i]
		for j := range p.Frontends {
			do(p, &p.Frontends[j])
		}
	}
}

// sameFrontends reports whether two records make the same claims, as those before and after a change of endpoints do.
func sameFrontends(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return slices.EqualFunc(a.Ports, b.Ports, func(p, q state.Port) bool {
		return p.Family == q.Family && p.Protocol == q.Protocol &&
			slices.EqualFunc(p.Frontends, q.Frontends, func(f, g state.Frontend) bool { return f.Compare(g) == 0 })
	})
}

// place adds a bid. If it beats another service's, that service is returned.
func (a *arbiter) place(key state.FrontendKey, b bid) (previous *service) {
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

// award returns svc's record without the frontends that other services hold, and those. If there are none, it is the record
// itself. The record may be nil.
func (a *arbiter) award(svc *service, record *state.Service) (*state.Service, []loss) {
	if len(a.contested) == 0 {
		return record, nil
	}
	var lost []loss
	eachFrontend(record, func(p *state.Port, f *state.Frontend) {
		c := p.Key(f)
		if contest := a.contested[c]; contest != nil && contest.holder() != svc {
			lost = append(lost, loss{c, f.Kind, contest.holder()})
		}
	})
	if len(lost) == 0 {
		return record, nil
	}
	return without(record, lost), lost
}

// without returns record without the lost frontends, and without the ports that have no frontend but those.
func without(record *state.Service, lost []loss) *state.Service {
	taken := make(map[state.FrontendKey]bool, len(lost))
	for _, l := range lost {
		taken[l.claim] = true
	}
	return record.Without(taken)
}
