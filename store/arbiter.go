package store

import (
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// arbiter decides which service holds a frontend that several claim, so that no two hold it in one published state. A
// claim as cluster IP beats all others, because the API server gives each cluster IP away only once; then the service
// whose name comes first wins. The answer depends on the claims only, not on the order in which they came.
type arbiter struct {
	sole      map[state.FrontendKey]bid   // claims that one service makes
	contested map[state.FrontendKey][]bid // claims of several services, best first
	lost      map[*service]map[state.FrontendKey]bool
}

// bid is one service's claim.
type bid struct {
	service   *service
	clusterIP bool
}

func (b bid) compare(o bid) int {
	if b.clusterIP != o.clusterIP {
		if b.clusterIP {
			return -1
		}
		return 1
	}
	return b.service.name.Compare(o.service.name)
}

// loss is a claim that another service holds.
type loss struct {
	claim  state.FrontendKey
	holder *service
}

func newArbiter() arbiter {
	return arbiter{sole: make(map[state.FrontendKey]bid), contested: make(map[state.FrontendKey][]bid), lost: make(map[*service]map[state.FrontendKey]bool)}
}

// replace puts the claims of svc's new record in the place of those of its former one; either may be nil. It returns the
// other services that may have gained or lost a frontend by that.
func (a *arbiter) replace(svc *service, former, record *state.Service) (moved []*service) {
	if sameFrontends(former, record) {
		return nil
	}
	eachFrontend(former, func(p *state.Port, f *state.Frontend) {
		if heir := a.withdraw(p.Key(f), svc); heir != nil {
			moved = append(moved, heir)
		}
	})
	eachFrontend(record, func(p *state.Port, f *state.Frontend) {
		if rival := a.place(p.Key(f), bid{svc, f.Kind == state.ClusterIP}); rival != nil {
			moved = append(moved, rival)
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

// sameFrontends says that two records make the same claims, as those before and after a change of endpoints do.
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
func (a *arbiter) place(c state.FrontendKey, b bid) (rival *service) {
	bids := a.contested[c]
	if bids == nil {
		sole, ok := a.sole[c]
		if !ok {
			a.sole[c] = b
			return nil
		}
		bids = []bid{sole}
	}
	holder := bids[0].service
	if i := indexOf(bids, b.service); i >= 0 { // a service may have one address as frontends of two kinds
		if bids[i].compare(b) <= 0 {
			return nil
		}
		bids = slices.Delete(bids, i, i+1)
	}
	i, _ := slices.BinarySearchFunc(bids, b, bid.compare)
	a.store(c, slices.Insert(bids, i, b))
	if i == 0 && holder != b.service {
		return holder
	}
	return nil
}

// withdraw removes a service's bid, if there is one. If another service now holds the claim instead, it is returned.
func (a *arbiter) withdraw(c state.FrontendKey, svc *service) (heir *service) {
	bids := a.contested[c]
	if bids == nil {
		if a.sole[c].service == svc {
			delete(a.sole, c)
		}
		return nil
	}
	i := indexOf(bids, svc)
	if i < 0 {
		return nil
	}
	bids = slices.Delete(bids, i, i+1)
	a.store(c, bids)
	if i == 0 {
		return bids[0].service
	}
	return nil
}

// store keeps one or more bids where they belong.
func (a *arbiter) store(c state.FrontendKey, bids []bid) {
	if len(bids) > 1 {
		delete(a.sole, c)
		a.contested[c] = bids
	} else {
		delete(a.contested, c)
		a.sole[c] = bids[0]
	}
}

func indexOf(bids []bid, svc *service) int {
	return slices.IndexFunc(bids, func(b bid) bool { return b.service == svc })
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
		if bids := a.contested[c]; bids != nil && bids[0].service != svc {
			lost = append(lost, loss{c, bids[0].service})
		}
	})
	if len(lost) == 0 {
		return record, nil
	}
	return without(record, lost), lost
}

// newLosses remembers what svc has lost and returns what it had not lost before.
func (a *arbiter) newLosses(svc *service, lost []loss) (fresh []loss) {
	known := a.lost[svc]
	delete(a.lost, svc)
	if len(lost) == 0 {
		return nil
	}
	now := make(map[state.FrontendKey]bool, len(lost))
	for _, l := range lost {
		if !known[l.claim] {
			fresh = append(fresh, l)
		}
		now[l.claim] = true
	}
	a.lost[svc] = now
	return fresh
}

// without returns a copy of record that lacks the lost frontends, and the ports that have no frontend but those.
func without(record *state.Service, lost []loss) *state.Service {
	taken := make(map[state.FrontendKey]bool, len(lost))
	for _, l := range lost {
		taken[l.claim] = true
	}
	out := &state.Service{Name: record.Name, HealthCheck: record.HealthCheck}
	for _, p := range record.Ports {
		p.Frontends = slices.DeleteFunc(slices.Clone(p.Frontends), func(f state.Frontend) bool { return taken[p.Key(&f)] })
		if len(p.Frontends) > 0 {
			dropUnusedTraffic(&p)
			out.Ports = append(out.Ports, p)
		}
	}
	return out
}

// dropUnusedTraffic clears the traffic of p to which no frontend leads any more. The endpoints of a UDP port that were only
// there keep the flows that they have: they linger.
func dropUnusedTraffic(p *state.Port) {
	isClusterIP := func(f state.Frontend) bool { return f.Kind == state.ClusterIP }
	isOther := func(f state.Frontend) bool { return f.Kind != state.ClusterIP }
	var stranded []state.Endpoint
	if !slices.ContainsFunc(p.Frontends, isClusterIP) {
		stranded = append(stranded, endpointsOf(&p.Internal)...)
		p.Internal = state.Traffic{}
	}
	if !slices.ContainsFunc(p.Frontends, isOther) {
		stranded = append(stranded, endpointsOf(&p.External)...)
		p.External = state.Traffic{}
	}
	if p.Protocol != state.UDP {
		return
	}
	routed := append(endpointsOf(&p.Internal), endpointsOf(&p.External)...)
	slices.SortFunc(routed, state.Endpoint.Compare)
	lingering := append(slices.Clone(p.Lingering), stranded...)
	lingering = slices.DeleteFunc(lingering, func(e state.Endpoint) bool {
		_, is := slices.BinarySearchFunc(routed, e, state.Endpoint.Compare)
		return is
	})
	slices.SortFunc(lingering, state.Endpoint.Compare)
	p.Lingering = slices.Compact(lingering)
}

func endpointsOf(t *state.Traffic) []state.Endpoint {
	return slices.Concat(t.Inside.Endpoints, t.Outside.Endpoints)
}
