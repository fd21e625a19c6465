package ruleset

import (
	"cmp"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// SetDrained and SetDraining are the sets of endpoints with a deadline in the tables of resets: endpoint . port . frontend . port. While an element is in SetDraining, which
// is until its deadline, connections stay. Afterwards, an element of SetDrained has them reset. The frontend is a part of the key, so that
// the deadline of a service never concerns connections to another one.
const (
	SetDrained  = "drained"
	SetDraining = "draining"
)

const (
	// MaxDrained is how many such elements a family has at a time, and MaxDrainedOf how many of them are of one namespace.
	MaxDrained   = 1 << 14
	MaxDrainedOf = MaxDrained / 4
)

// way is how connections reach an endpoint: through a frontend.
type way struct{ endpoint, frontend endpointKey }

func (w way) compare(o way) int {
	return cmp.Or(w.endpoint.compare(o.endpoint), w.frontend.compare(o.frontend))
}

func (w way) family() state.Family { return w.endpoint.family() }

// key returns the key in the sets of endpoints with a deadline.
func (w way) key() []byte { return appendAddrPort(w.endpoint.key(), w.frontend.addrPort()) }

func wayOf(f state.Family, key []byte) (w way, ok bool) {
	half := len(key) / 2
	endpoint, ok := endpointOf(f, key[:half])
	if !ok {
		return way{}, false
	}
	frontend, ok := endpointOf(f, key[half:])
	return way{endpoint, frontend}, ok
}

// ways has a value for each of some ways, by their endpoints and frontends.
type ways[V any] map[endpointKey]map[endpointKey]V

func (m ways[V]) has(w way) bool {
	_, has := m[w.endpoint][w.frontend]
	return has
}

func (m ways[V]) put(w way, v V) {
	of := m[w.endpoint]
	if of == nil {
		of = map[endpointKey]V{}
		m[w.endpoint] = of
	}
	of[w.frontend] = v
}

func (m ways[V]) delete(w way) {
	of := m[w.endpoint]
	if delete(of, w.frontend); len(of) == 0 {
		delete(m, w.endpoint)
	}
}

func (m ways[V]) all() iter.Seq2[way, V] {
	return func(yield func(way, V) bool) {
		for endpoint, of := range m {
			for frontend, v := range of {
				if !yield(way{endpoint, frontend}, v) {
					return
				}
			}
		}
	}
}

// sorted returns the ways in order.
func (m ways[V]) sorted() (list []way) {
	for w := range m.all() {
		list = append(list, w)
	}
	slices.SortFunc(list, way.compare)
	return list
}

// departure is that an endpoint takes no more connections of a service with a deadline.
type departure struct {
	from    state.ServiceName
	seconds uint32
}

// drained is a way to an endpoint that takes no more connections this way.
type drained struct {
	reset
	deadline time.Time // until when connections stay
}

// drains are the ways on which connections are reset after a deadline.
type drains struct {
	// left are the ways that endpoints have left since the deadlines were set last.
	left  ways[departure]
	held  ways[drained]
	state [2]drainState // by family
}

// drainState counts the ways of a family.
type drainState struct {
	count      int
	namespaces map[string]int // the count of each namespace
}

// hasRoom reports whether a namespace may have one more way.
func (s *drainState) hasRoom(namespace string) bool {
	return s.count < MaxDrained && s.namespaces[namespace] < MaxDrainedOf
}

// add changes the count of a namespace.
func (s *drainState) add(namespace string, n int) {
	if s.namespaces == nil {
		s.namespaces = map[string]int{}
	}
	s.count += n
	if s.namespaces[namespace] += n; s.namespaces[namespace] == 0 {
		delete(s.namespaces, namespace)
	}
}

func newDrains() drains { return drains{left: ways[departure]{}, held: ways[drained]{}} }

// hold takes a way in.
func (d *drains) hold(w way, v drained) {
	if was, is := d.held[w.endpoint][w.frontend]; is {
		d.forget(w, was)
	}
	d.held.put(w, v)
	d.state[index(w.family())].add(v.from.Namespace, 1)
}

func (d *drains) forget(w way, v drained) {
	d.held.delete(w)
	d.state[index(w.family())].add(v.from.Namespace, -1)
}

// remove forgets a way, if it is held.
func (d *drains) remove(w way) {
	if v, is := d.held[w.endpoint][w.frontend]; is {
		d.forget(w, v)
	}
}

// UsesDeadlines reports whether a service has a deadline after a plan. want is what a comparison had to make, nil for a change.
func (p *Plan) UsesDeadlines(want *Desired) bool {
	if want != nil {
		return slices.ContainsFunc(want.All(), hasDeadline)
	}
	for _, is := range p.Changed() {
		if is != nil && hasDeadline(is) {
			return true
		}
	}
	return false
}

func hasDeadline(s *state.Service) bool {
	return slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.DrainSeconds > 0 })
}

// drainMoves are what a plan changes of the ways to endpoints.
type drainMoves struct {
	of *drains
	// left are the ways with a deadline on which no more connections come. back are ways in of.held and of.left that have connections again, or
	// no longer have a deadline.
	left ways[departure]
	back ways[bool]
}

// movesAfter returns what a plan changes.
func (d *drains) movesAfter(p *Plan) drainMoves {
	m := drainMoves{of: d, left: ways[departure]{}, back: ways[bool]{}}
	for was, is := range p.Changed() {
		for before, after := range portPairs(was, is) {
			m.leave(was, before, after, p.previous.nodePorts)
		}
	}
	if len(m.left)+len(d.left)+len(d.held) == 0 {
		return m
	}
	for was, is := range p.Changed() {
		for before, after := range portPairs(was, is) {
			m.comeBack(before, after)
		}
	}
	return m
}

// leave notes which ways of a port end. Either version may be nil.
func (m *drainMoves) leave(s *state.Service, was, is *state.Port, nodePorts []netip.Addr) {
	if was == nil || was.Protocol != state.TCP {
		return
	}
	seconds := was.DrainSeconds
	if is != nil {
		seconds = is.DrainSeconds
	}
	if seconds == 0 {
		return
	}
	for i, r := range was.Routes() {
		var to []state.Endpoint
		if is != nil {
			to = is.Routes()[i].Endpoints
		}
		for a, leaves := range differing(r.Endpoints, to) {
			if !leaves || isRouted(is, a) {
				continue
			}
			for f := range frontendsOf(was, nodePorts) {
				m.left.put(way{endpointKeyOf(a), f}, departure{s.Name, seconds})
			}
		}
	}
}

// comeBack notes which ways of a port have connections again, or lose their deadline.
func (m *drainMoves) comeBack(was, is *state.Port) {
	if is == nil || is.Protocol != state.TCP {
		return
	}
	same := was != nil && slices.EqualFunc(was.Frontends, is.Frontends, state.Frontend.Equal)
	for i, r := range is.Routes() {
		var from []state.Endpoint
		if same {
			from = was.Routes()[i].Endpoints
		}
		for a, leaves := range differing(from, r.Endpoints) {
			if !leaves {
				m.open(is, a)
			}
		}
	}
	if was != nil && was.DrainSeconds > 0 && is.DrainSeconds == 0 {
		for _, e := range was.Lingering {
			m.open(was, e.Addr)
		}
	}
}

// open notes that the ways through a port's frontends to an endpoint are open.
func (m *drainMoves) open(p *state.Port, a netip.AddrPort) {
	endpoint := endpointKeyOf(a)
	for f := range m.left[endpoint] {
		if leadsFrom(p, f) {
			m.left.delete(way{endpoint, f})
		}
	}
	for f := range m.of.left[endpoint] {
		if leadsFrom(p, f) {
			m.back.put(way{endpoint, f}, true)
		}
	}
	for f := range m.of.held[endpoint] {
		if leadsFrom(p, f) {
			m.back.put(way{endpoint, f}, true)
		}
	}
}

// commit notes that the plan was carried out.
func (m *drainMoves) commit() {
	for w := range m.back.all() {
		m.of.left.delete(w)
	}
	for w, d := range m.left.all() {
		m.of.left.put(w, d)
	}
}

// openWays returns which of some ways are open in a state.
func openWays[V any](of ways[V], services []*state.Service) (open []way) {
	if len(of) == 0 {
		return nil
	}
	for _, s := range services {
		for i := range s.Ports {
			p := &s.Ports[i]
			if p.Protocol != state.TCP {
				continue
			}
			for _, r := range p.Routes() {
				for _, e := range r.Endpoints {
					endpoint := endpointKeyOf(e.Addr)
					for f := range of[endpoint] {
						if leadsFrom(p, f) {
							open = append(open, way{endpoint, f})
						}
					}
				}
			}
		}
	}
	slices.SortFunc(open, way.compare)
	return slices.Compact(open)
}

// isRouted reports whether a port, which may be nil, sends new connections to an endpoint.
func isRouted(p *state.Port, a netip.AddrPort) bool {
	if p == nil {
		return false
	}
	routes := p.Routes()
	return slices.ContainsFunc(routes[:], func(r *state.Route) bool { return r.Has(a) })
}

// frontendsOf yields the addresses and ports of a port's frontends, with NodePorts at all addresses that serve them.
func frontendsOf(p *state.Port, nodePorts []netip.Addr) iter.Seq[endpointKey] {
	return func(yield func(endpointKey) bool) {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			addrs := []netip.Addr{f.Addr}
			if f.Kind == state.NodePort {
				addrs = nodePorts
			}
			for _, a := range addrs {
				if state.FamilyOf(a) == p.Family && !yield(endpointKeyOf(netip.AddrPortFrom(a, f.Port))) {
					return
				}
			}
		}
	}
}

// leadsFrom reports whether a frontend is one of the port's. For a NodePort, the address does not count: the node's addresses change. So a NodePort also
// takes frontends with its number at other addresses for its own (docs/adr/0046-drain.md).
func leadsFrom(p *state.Port, frontend endpointKey) bool {
	a := frontend.addrPort()
	return slices.ContainsFunc(p.Frontends, func(f state.Frontend) bool {
		return f.Port == a.Port() && (f.Kind == state.NodePort || f.Addr == a.Addr())
	})
}

// set plans deadlines for the ways that endpoints have left.
func (d *drains) set(p *ResetPlan) {
	if len(d.left) == 0 {
		return
	}
	after := d.state
	for i := range after {
		after[i].namespaces = maps.Clone(after[i].namespaces)
	}
	for _, w := range d.left.sorted() {
		from := d.left[w.endpoint][w.frontend]
		of := &after[index(w.family())]
		if !of.hasRoom(from.from.Namespace) {
			p.r.Dropped.Deadlines++
			continue
		}
		of.add(from.from.Namespace, 1)
		deadline := p.now.Add(time.Duration(from.seconds) * time.Second)
		p.addDrained = append(p.addDrained, drainedElement{w, drained{reset{from: from.from, until: deadline.Add(GoneTimeout)}, deadline}})
	}
	clear(d.left)
}

// inherit takes over the ways that an earlier process has left, with their deadlines, as far as there is room. It reports whether there are any.
func (d *drains) inherit(p *ResetPlan, in *Found) (any bool) {
	drain, draining := waysIn(in.Family, in.Elems[SetDrained]), waysIn(in.Family, in.Elems[SetDraining])
	for _, w := range drain.sorted() {
		e := drain[w.endpoint][w.frontend]
		from := parseName(e.Comment)
		if !d.held.has(w) && !d.state[index(in.Family)].hasRoom(from.Namespace) {
			p.r.Dropped.Deadlines++
			continue
		}
		any = true
		d.hold(w, drained{
			reset:    reset{from, p.now.Add(time.Duration(e.Expires) * time.Millisecond), e.Packets},
			deadline: p.now.Add(time.Duration(draining[w.endpoint][w.frontend].Expires) * time.Millisecond),
		})
	}
	return any
}

// waysIn are the elements of a set that have not timed out.
func waysIn(f state.Family, elems []nft.Elem) ways[nft.Elem] {
	found := ways[nft.Elem]{}
	for _, e := range elems {
		if w, ok := wayOf(f, e.Key); ok && e.Expires > 0 {
			found.put(w, e)
		}
	}
	return found
}

// compare plans the deletion of elements that the kernel has and that are not to be. It returns what tells whether the kernel has the elements
// of a way.
func (d *drains) compare(p *ResetPlan, in *Found) (there func(way, drained) bool) {
	found, draining := waysIn(in.Family, in.Elems[SetDrained]), waysIn(in.Family, in.Elems[SetDraining])
	for _, w := range found.sorted() {
		if !d.held.has(w) {
			p.delDrained = append(p.delDrained, w)
		}
	}
	for _, w := range draining.sorted() {
		switch v, is := d.held[w.endpoint][w.frontend]; {
		case !is && !found.has(w):
			p.delDrained = append(p.delDrained, w)
		case is && v.deadline.Before(p.now.Add(-time.Second)):
			p.delDraining = append(p.delDraining, w)
		}
	}
	return func(w way, v drained) bool {
		// A deadline that is about to pass may have passed in the kernel.
		return found.has(w) && (draining.has(w) || !v.deadline.After(p.now.Add(time.Second)))
	}
}

type drainedElement struct {
	way
	drained
}

// writeDrained puts the elements of a family into a batch. exists is set if the table was there before.
func (p *ResetPlan) writeDrained(b *nft.Batch, f state.Family, exists bool) {
	t := resetTable(f)
	for _, w := range p.delDrained {
		if exists && w.family() == f {
			deleteElem(b, t, SetDrained, w.key())
			deleteElem(b, t, SetDraining, w.key())
		}
	}
	for _, w := range p.delDraining {
		if exists && w.family() == f {
			deleteElem(b, t, SetDraining, w.key())
		}
	}
	for _, e := range p.addDrained {
		if e.family() != f {
			continue
		}
		if left := e.deadline.Sub(p.now); left > 0 {
			b.AddElem(t, SetDraining, nft.Elem{Key: e.key(), Timeout: millis(left), Expires: millis(left)})
		}
		left := millis(e.until.Sub(p.now))
		b.AddElem(t, SetDrained, nft.Elem{Key: e.key(), Timeout: left, Expires: left, Comment: e.from.String()})
	}
}

// Deadlines looks up until when connections stay that reach endpoints through a frontend. A deadline that has passed counts as now. Endpoints
// without a deadline are left out. There is at least one, and all are of the frontend's family.
func Deadlines(frontend netip.AddrPort, endpoints []netip.AddrPort, now time.Time, find FindElems) (map[netip.AddrPort]time.Time, error) {
	var keys []byte
	for _, e := range endpoints {
		keys = append(keys, way{endpointKeyOf(e), endpointKeyOf(frontend)}.key()...)
	}
	until, t := map[netip.AddrPort]time.Time{}, resetTable(state.FamilyOf(frontend.Addr()))
	for _, set := range []string{SetDrained, SetDraining} {
		if err := find(t, set, len(keys)/len(endpoints), keys, func(i int, e nft.Elem) {
			until[endpoints[i]] = now
			if set == SetDraining {
				until[endpoints[i]] = now.Add(time.Duration(e.Expires) * time.Millisecond)
			}
		}); err != nil {
			return nil, err
		}
	}
	return until, nil
}
