package backend

import (
	"cmp"
	"iter"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// A change of a record costs a dataplane entries. Each frontend that the change adds, removes or replaces costs about one entry, and so
// does each endpoint behind a frontend. A large change is cut into parts. Each part is a record between the programmed one and the desired
// one. In a part, a frontend has its previous or its desired content. Only a route may have some endpoints of each. So a part sends each
// connection where the previous or the desired record sends it.

// portPair is a port before and after a change; one of them may be nil.
type portPair struct{ from, to *state.Port }

// pairPorts pairs the ports of two records in their order. Either record may be nil.
func pairPorts(from, to *state.Service) (pairs []portPair) {
	a, b := portsOf(from), portsOf(to)
	pairs = make([]portPair, 0, max(len(a), len(b)))
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && a[0].Compare(&b[0]) < 0:
			pairs = append(pairs, portPair{from: &a[0]})
			a = a[1:]
		case len(a) == 0 || a[0].Compare(&b[0]) > 0:
			pairs = append(pairs, portPair{to: &b[0]})
			b = b[1:]
		default:
			pairs = append(pairs, portPair{&a[0], &b[0]})
			a, b = a[1:], b[1:]
		}
	}
	return pairs
}

func portsOf(s *state.Service) []state.Port {
	if s == nil {
		return nil
	}
	return s.Ports
}

// share returns a record that equals to. It uses the ports and frontends of from where they are equal, so that later comparisons find the
// same memory.
func share(from, to *state.Service) *state.Service {
	if from == nil || to == nil {
		return to
	}
	ports := make([]state.Port, 0, len(to.Ports))
	for _, p := range pairPorts(from, to) {
		switch {
		case p.to == nil:
		case p.from != nil && p.from.Equal(p.to):
			ports = append(ports, *p.from)
		default:
			next := *p.to
			if p.from != nil && slices.EqualFunc(p.from.Frontends, next.Frontends, state.Frontend.Equal) {
				next.Frontends = p.from.Frontends
			}
			ports = append(ports, next)
		}
	}
	return to.WithPorts(ports)
}

func sameList[E any](a, b []E) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }

// isSame reports whether the ports of a pair are the same memory.
func (p *portPair) isSame() bool {
	same := func(a, b [4]*state.Route) bool {
		return slices.EqualFunc(a[:], b[:], func(a, b *state.Route) bool {
			return a.Verdict == b.Verdict && a.Refused == b.Refused && sameList(a.Endpoints, b.Endpoints)
		})
	}
	return p.from == p.to || p.from != nil && p.to != nil &&
		p.from.Affinity == p.to.Affinity && p.from.Balance == p.to.Balance && p.from.Ejection == p.to.Ejection && p.from.DrainSeconds == p.to.DrainSeconds &&
		sameList(p.from.Frontends, p.to.Frontends) && sameList(p.from.Lingering, p.to.Lingering) && p.from.Edge == p.to.Edge &&
		p.from.Internal.Masquerade == p.to.Internal.Masquerade && p.from.External.Masquerade == p.to.External.Masquerade &&
		same(p.from.Routes(), p.to.Routes())
}

// isGradual reports whether steps can make the change of a pair. Both ports must distinguish the same kinds of clients, and no frontend may
// change its kind.
func (p *portPair) isGradual() bool {
	if p.from == nil || p.to == nil || p.from.Affinity != p.to.Affinity {
		return false
	}
	alike := func(a, b *state.Traffic) bool {
		return isUnused(a) || isUnused(b) || a.Masquerade == b.Masquerade && a.Inside.Equal(&a.Outside) == b.Inside.Equal(&b.Outside)
	}
	if !alike(&p.from.Internal, &p.to.Internal) || !alike(&p.from.External, &p.to.External) {
		return false
	}
	gone := map[state.FrontendKey]bool{}
	for was, is := range changed(p.from.Frontends, p.to.Frontends, state.Frontend.Compare, state.Frontend.Equal) {
		if is == nil {
			gone[p.from.Key(was)] = true
		}
	}
	if len(gone) > 0 {
		for i := range p.to.Frontends {
			if gone[p.to.Key(&p.to.Frontends[i])] {
				return false
			}
		}
	}
	return true
}

func isUnused(t *state.Traffic) bool { return t.Inside.Verdict == state.Unused }

// base returns p.from, with the traffic of p.to where no frontend uses it.
func (p *portPair) base() state.Port {
	base := *p.from
	if isUnused(&base.Internal) {
		base.Internal = p.to.Internal
	}
	if isUnused(&base.External) {
		base.External, base.Edge = p.to.External, p.to.Edge
	}
	return base
}

// entriesEach is what a frontend of a port takes.
func entriesEach(p *state.Port) int {
	n := 0
	for _, t := range []*state.Traffic{&p.Internal, &p.External} {
		endpoints := len(t.Inside.Endpoints)
		if !sameList(t.Inside.Endpoints, t.Outside.Endpoints) && !t.Inside.Equal(&t.Outside) {
			endpoints += len(t.Outside.Endpoints)
		}
		if t == &p.External && p.Edge != nil {
			endpoints += len(p.Edge.Local.Endpoints)
		}
		n = max(n, endpoints)
	}
	return 1 + n*perEndpoint(p)
}

// perEndpoint is what an endpoint behind a frontend takes. With weights, the endpoints of a route share more slots. With session affinity,
// dataplanes look endpoints up as well.
func perEndpoint(p *state.Port) int {
	each, routes := 1, p.Routes()
	for _, r := range append(routes[:], edgeRoute(p)) {
		if r.Weighted() {
			each = max(each, weightedSlots/len(r.Endpoints))
		}
	}
	if p.Affinity > 0 {
		each++
	}
	return each
}

// edgeRoute returns the route of connections that nodes hand over to each other. It drops all if there is none.
func edgeRoute(p *state.Port) *state.Route {
	if p.Edge == nil {
		return &state.Route{Verdict: state.Drop}
	}
	return &p.Edge.Local
}

// weightedSlots are about as many slots as a dataplane gives the endpoints of a weighted route.
const weightedSlots = 256

// weight is what a port takes as a whole.
func weight(p *state.Port) int {
	if p == nil {
		return 0
	}
	return len(p.Frontends) * entriesEach(p)
}

// cost returns how many entries the change of a pair takes, 0 if there is none.
func (p *portPair) cost() int {
	switch {
	case p.isSame(), p.from != nil && p.to != nil && p.from.Equal(p.to):
		return 0
	case !p.isGradual():
		return weight(p.from) + weight(p.to)
	}
	n := 0
	for range changed(p.from.Frontends, p.to.Frontends, state.Frontend.Compare, state.Frontend.Equal) {
		n += entriesEach(p.to)
	}
	_, moved := p.mix(len(p.from.Frontends) + weight(p.from) + weight(p.to))
	return max(1, n+moved*perEndpoint(p.to)*len(p.to.Frontends))
}

// changed yields the items that only one of two sorted lists has, and the items that differ. Of each pair, an item is nil if its list lacks
// it.
func changed[E any](from, to []E, compare func(a, b E) int, equal func(a, b E) bool) iter.Seq2[*E, *E] {
	return func(yield func(was, is *E) bool) {
		if sameList(from, to) {
			return
		}
		for len(from) > 0 || len(to) > 0 {
			c := 0
			switch {
			case len(to) == 0:
				c = -1
			case len(from) == 0:
				c = 1
			default:
				c = compare(from[0], to[0])
			}
			var was, is *E
			if c <= 0 {
				was, from = &from[0], from[1:]
			}
			if c >= 0 {
				is, to = &to[0], to[1:]
			}
			if (was == nil || is == nil || !equal(*was, *is)) && !yield(was, is) {
				return
			}
		}
	}
}

// mix returns p.to with routes that differ from the routes of p.from by at most n endpoints, and how many endpoints that is.
func (p *portPair) mix(n int) (mixed state.Port, moved int) {
	mixed = *p.to
	base := p.base()
	for _, t := range []struct{ from, to, mixed *state.Traffic }{
		{&base.Internal, &p.to.Internal, &mixed.Internal}, {&base.External, &p.to.External, &mixed.External},
	} {
		var took int
		t.mixed.Inside, took = mixRoutes(&t.from.Inside, &t.to.Inside, n-moved)
		moved += took
		if t.to.Inside.Equal(&t.to.Outside) {
			t.mixed.Outside = t.mixed.Inside
		} else {
			t.mixed.Outside, took = mixRoutes(&t.from.Outside, &t.to.Outside, n-moved)
			moved += took
		}
	}
	// An edge that takes none of the frontends comes when they do.
	if len(base.Frontends) == 0 && p.to.Edge != nil || p.to.Edge.TakesOneOf(base.Frontends) {
		local, took := mixRoutes(edgeRoute(&base), &p.to.Edge.Local, n-moved)
		if moved += took; !local.Equal(&p.to.Edge.Local) {
			edge := *p.to.Edge
			edge.Local, mixed.Edge = local, &edge
		}
	}
	return mixed, moved
}

// mixRoutes returns a route on the way from one to another that is at most n endpoints away from the first. As long as the second has endpoints, so
// has the result.
func mixRoutes(from, to *state.Route, n int) (mixed state.Route, moved int) {
	var gone, come []state.Endpoint
	for was, is := range changed(from.Endpoints, to.Endpoints, state.Endpoint.Compare, sameInMix) {
		if is != nil {
			come = append(come, *is) // or is of another kind: it is replaced
		} else {
			gone = append(gone, *was)
		}
	}
	switch {
	case len(gone)+len(come) <= n:
		return *to, len(gone) + len(come)
	case n <= 0:
		return *from, 0
	}
	come = come[:min(len(come), max((n+1)/2, n-len(gone)))]
	gone = gone[:min(len(gone), n-len(come))]
	mixed.Endpoints = make([]state.Endpoint, 0, len(from.Endpoints)+len(come))
	left, at := gone, come
	for _, e := range from.Endpoints {
		for len(at) > 0 && at[0].Compare(e) < 0 {
			mixed.Endpoints, at = append(mixed.Endpoints, at[0]), at[1:]
		}
		isGone := len(left) > 0 && left[0] == e
		if isGone {
			left = left[1:]
		}
		if len(at) > 0 && at[0].Compare(e) == 0 {
			e, at, isGone = at[0], at[1:], false
		}
		if !isGone {
			mixed.Endpoints = append(mixed.Endpoints, e)
		}
	}
	mixed.Endpoints = append(mixed.Endpoints, at...)
	mixed.Verdict, mixed.Refused = state.Forward, to.Refused
	if mixed.Refused > 0 || slices.ContainsFunc(mixed.Endpoints, func(e state.Endpoint) bool { return e.Weight != 0 }) {
		for i := range mixed.Endpoints { // one of both may be even
			mixed.Endpoints[i].Weight = max(1, mixed.Endpoints[i].Weight)
		}
	}
	if len(mixed.Endpoints) == 0 {
		mixed.Verdict, mixed.Refused = to.Verdict, 0
	}
	return mixed, len(gone) + len(come)
}

// sameInMix reports whether endpoints are the same in routes of which one may be even. Next to weights, no weight is 1. Without this, a step to an even
// route would change the same endpoints as the step before.
func sameInMix(a, b state.Endpoint) bool {
	a.Weight, b.Weight = max(1, a.Weight), max(1, b.Weight)
	return a == b
}

// lingering returns the endpoints of a mixed port whose flows must not be cut: of both versions, those that are in no route.
func (p *portPair) lingering(mixed *state.Port) []state.Endpoint {
	if len(p.from.Lingering)+len(p.to.Lingering) == 0 {
		return nil
	}
	all := slices.Concat(p.from.Lingering, p.to.Lingering)
	slices.SortFunc(all, state.Endpoint.Compare)
	all = slices.CompactFunc(all, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
	return slices.DeleteFunc(all, func(e state.Endpoint) bool {
		routes := mixed.Routes()
		return slices.ContainsFunc(routes[:], func(r *state.Route) bool { return r.Has(e.Addr) })
	})
}

// step returns a port on the way from p.from to p.to that takes about most entries, and how many it takes. It is p.to at the end.
func (p *portPair) step(m *moving, most int) (next *state.Port, cost int) {
	cost = m.cost(p)
	switch {
	case cost <= most:
		return p.to, cost
	case p.to == nil:
		if n := max(1, most/entriesEach(p.from)); n < len(p.from.Frontends) {
			return withFrontends(p.from, p.from.Frontends[n:]), n * entriesEach(p.from)
		}
		return nil, cost
	case p.from == nil:
		n, took, each := 0, 0, entriesEach(p.to)
		first := p.to.Key(&p.to.Frontends[0])
		if in, ex := &p.to.Internal, &p.to.External; each > most && m.entries(first) == 0 && in.Inside.Equal(&in.Outside) && ex.Inside.Equal(&ex.Outside) {
			// The first frontend, with some of the endpoints: the others come before the other frontends do.
			none := state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}}
			begun, moved := (&portPair{&state.Port{Internal: none, External: none}, p.to}).mix(max(1, most/perEndpoint(p.to)))
			return withFrontends(&begun, p.to.Frontends[:1]), 1 + moved*perEndpoint(p.to)
		}
		for ; took < most && n < len(p.to.Frontends); n++ {
			took += each + m.entries(p.to.Key(&p.to.Frontends[n]))
		}
		if n < len(p.to.Frontends) {
			return withFrontends(p.to, p.to.Frontends[:n]), took
		}
		return p.to, cost
	case !p.isGradual():
		return p.to, cost
	}
	// Frontends go first, then the traffic of those that stay changes, and then others come, which so have the new traffic only. Without the last one
	// the endpoints would be gone for a while: it goes once others have come.
	if next, cost := p.stepFrontends(m, most, true); cost > 0 {
		return next, cost
	}
	each := len(p.from.Frontends) * perEndpoint(p.to) // is what an endpoint takes
	mixed, moved := p.mix(max(1, most/each))
	mixed.Frontends = p.from.Frontends
	if isUnused(&p.from.Internal) {
		mixed.Internal = state.Traffic{}
	}
	if isUnused(&p.from.External) {
		mixed.External = state.Traffic{}
	}
	if !mixed.Edge.TakesOneOf(mixed.Frontends) {
		mixed.Edge = nil
	}
	mixed.Lingering = p.lingering(&mixed)
	if moved > 0 {
		return &mixed, moved * each
	}
	if next, cost := p.stepFrontends(m, most, false); cost > 0 {
		return next, cost
	}
	return p.to, cost
}

// withFrontends returns a port with some of its frontends, and the traffic of these.
func withFrontends(p *state.Port, frontends []state.Frontend) *state.Port {
	taken := make(map[state.FrontendKey]bool, len(p.Frontends))
	for i := range p.Frontends {
		taken[p.Key(&p.Frontends[i])] = true
	}
	for i := range frontends {
		delete(taken, p.Key(&frontends[i]))
	}
	return without(p, taken)
}

// without returns a port without the frontends that are taken, nil if none is left.
func without(p *state.Port, taken map[state.FrontendKey]bool) *state.Port {
	s := &state.Service{Ports: []state.Port{*p}}
	if s = s.Without(taken); len(s.Ports) == 0 {
		return nil
	}
	return &s.Ports[0]
}

// stepFrontends removes frontends of p.from that p.to lacks, except the last frontend of traffic that p.to has, or adds the frontends
// of p.to. It stops when that takes so many entries. It takes none if there is nothing to do.
func (p *portPair) stepFrontends(m *moving, most int, gone bool) (next *state.Port, cost int) {
	if sameList(p.from.Frontends, p.to.Frontends) {
		return p.from, 0
	}
	left := map[bool]int{} // for internal and external traffic
	for i := range p.from.Frontends {
		left[p.from.Frontends[i].Kind == state.ClusterIP]++
	}
	goes := func(f *state.Frontend) bool {
		n := left[f.Kind == state.ClusterIP]
		if n == 1 && !isUnused(p.to.Traffic(f.Kind)) {
			return false
		}
		left[f.Kind == state.ClusterIP] = n - 1
		return true
	}
	union, out := p.base(), map[state.FrontendKey]bool{}
	union.Frontends = nil
	each := entriesEach(&union)
	for was, is := range changed(p.from.Frontends, p.to.Frontends, state.Frontend.Compare, func(a, b state.Frontend) bool { return false }) {
		takes := was != nil && is != nil && was.Equal(*is)
		if !takes && cost < most && (is == nil) == gone && (is != nil || goes(was)) {
			takes, cost = true, cost+each
			if was == nil {
				cost += m.entries(union.Key(is))
			}
		}
		f, isIn := was, !takes
		if is != nil && (takes || was == nil) {
			f, isIn = is, takes
		}
		union.Frontends = append(union.Frontends, *f)
		if !isIn {
			out[union.Key(f)] = true
		}
	}
	return without(&union, out), cost
}

// moving records which frontends of a service are about to go to another port or service. They stay in place until the change that adds
// them there. The same update removes them here.
type moving struct {
	service *want
	// coming are the services that are about to get frontends, and leaving the services that give frontends up.
	coming  map[keyHash]*want
	leaving map[keyHash]leaver
}

// entries returns how many entries it takes that a frontend leaves where it is, 0 if it is nowhere.
func (m *moving) entries(k state.FrontendKey) int {
	if len(m.leaving) == 0 {
		return 0
	}
	return m.leaving[hashOf(k)].entries
}

// cost returns how many entries the change of a pair takes, with the entries of the ports that had its frontends.
func (m *moving) cost(p *portPair) int {
	n := p.cost()
	if n > 0 && len(m.leaving) > 0 {
		gained(p.from, p.to, func(k state.FrontendKey) { n += m.entries(k) })
	}
	return n
}

// within reports whether a frontend moves within the service.
func (m *moving) within(k state.FrontendKey) bool {
	h := hashOf(k)
	return m.leaving[h].want == m.service && m.coming[h] == m.service
}

// keep returns what a port of the change becomes as long as frontends that move stay: p.to if there are none.
func (m *moving) keep(p *portPair) (to *state.Port, kept bool) {
	if p.from == nil {
		return p.to, false
	}
	has := map[state.FrontendKey]bool{}
	if p.to != nil {
		if sameList(p.from.Frontends, p.to.Frontends) {
			return p.to, false
		}
		for i := range p.to.Frontends {
			has[p.to.Key(&p.to.Frontends[i])] = true
		}
	}
	var stay []state.Frontend
	for i := range p.from.Frontends {
		f := &p.from.Frontends[i]
		if k := p.from.Key(f); !has[k] && m.coming[hashOf(k)] != nil {
			stay = append(stay, *f)
		}
	}
	switch {
	case len(stay) == 0:
		return p.to, false
	case p.to == nil:
		return withFrontends(p.from, stay), true
	}
	with := *p.to
	for _, f := range stay {
		if t := with.Traffic(f.Kind); isUnused(t) {
			*t = *p.from.Traffic(f.Kind)
		}
	}
	with.Frontends = slices.Concat(with.Frontends, stay)
	slices.SortFunc(with.Frontends, state.Frontend.Compare)
	return &with, true
}

// part returns the record after a part of a change, and how many entries the part takes: about most. The cost is 0 if other services must
// get their frontends first. The part begins with the port at index at, and the next part begins at end. Once done, the result is to.
func part(from, to *state.Service, m *moving, most, at int) (next *state.Service, cost, end int, done bool) {
	pairs := pairPorts(from, to)
	chosen := make([]*state.Port, len(pairs)) // nil if there is none
	done, end = true, at
	isFull := false
	leave := func(i int) {
		if !isFull {
			end = i
		}
		done, isFull = false, true
	}
	order := make([]int, 0, len(pairs))
	for n := range pairs {
		order = append(order, (at+n)%len(pairs))
	}
	if !m.service.isReplaced { // else records would grow as long as it changes
		// Ports come before others go: their endpoints may be the same.
		slices.SortStableFunc(order, func(i, j int) int {
			if isGone := pairs[i].to == nil; isGone == (pairs[j].to == nil) {
				return 0
			} else if isGone {
				return 1
			}
			return -1
		})
	}
	for _, i := range order {
		p := pairs[i]
		chosen[i] = p.from
		if isFull || p.isSame() {
			continue
		}
		var kept bool
		if p.to, kept = m.keep(&p); kept {
			done = false
		}
		c := m.cost(&p)
		switch {
		case c <= most-cost:
			chosen[i], cost = p.to, cost+c
		case cost > most/2:
			leave(i)
		default:
			var took int
			chosen[i], took = p.step(m, most-cost)
			cost += took
			if took < c {
				leave(i)
			}
		}
		if cost >= most && !isFull {
			leave((i + 1) % len(pairs))
		}
	}
	if done {
		return to, max(1, cost), 0, true
	}
	take(pairs, chosen, m.within)
	ports := make([]state.Port, 0, len(chosen))
	for _, p := range chosen {
		if p != nil {
			ports = append(ports, *p)
		}
	}
	return cmp.Or(to, from).WithPorts(ports), cost, end, false
}

// gained calls do with the frontends that a port gets by a change.
func gained(from, to *state.Port, do func(state.FrontendKey)) {
	if to == nil {
		return
	}
	if from == nil || len(from.Frontends) == 0 {
		for i := range to.Frontends {
			do(to.Key(&to.Frontends[i]))
		}
		return
	}
	always := func(state.Frontend, state.Frontend) bool { return true }
	var gone map[state.FrontendKey]bool // made if a frontend may only be of another kind now
	for was, is := range changed(from.Frontends, to.Frontends, state.Frontend.Compare, always) {
		if was == nil && (is.Kind != from.Frontends[0].Kind || is.Kind != from.Frontends[len(from.Frontends)-1].Kind) {
			gone = map[state.FrontendKey]bool{}
			break
		}
	}
	if gone != nil {
		for i := range from.Frontends {
			gone[from.Key(&from.Frontends[i])] = true
		}
	}
	for was, is := range changed(from.Frontends, to.Frontends, state.Frontend.Compare, always) {
		if was == nil && !gone[to.Key(is)] {
			do(to.Key(is))
		}
	}
}

// take takes frontends that move within a service away from the ports that had them, where others have got them.
func take(pairs []portPair, chosen []*state.Port, within func(state.FrontendKey) bool) {
	to := map[state.FrontendKey]int{}
	for i := range pairs {
		gained(pairs[i].from, chosen[i], func(k state.FrontendKey) {
			if within(k) {
				to[k] = i
			}
		})
	}
	if len(to) == 0 {
		return
	}
	for i, p := range chosen {
		if p == nil {
			continue
		}
		taken := map[state.FrontendKey]bool{}
		for j := range p.Frontends {
			k := p.Key(&p.Frontends[j])
			if at, moved := to[k]; moved && at != i {
				taken[k] = true
			}
		}
		if len(taken) > 0 {
			chosen[i] = without(p, taken)
		}
	}
}
