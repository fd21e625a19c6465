package ruleset

import (
	"fmt"
	"iter"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// route names one of the routes of a port, for slot placements.
type route uint8

const (
	internalInside route = iota
	internalOutside
	externalInside
	externalOutside
	edgeLocal
	numRoutes
)

// traffic returns which traffic a route belongs to: 0 for internal, 1 for external.
func (r route) traffic() int {
	if r < externalInside {
		return 0
	}
	return 1
}

// placement is how the routes of a port are laid out in slots.
type placement [numRoutes][]state.Endpoint

// routes returns the routes of a port by their names, nil for those that no frontend uses.
func routes(p *state.Port) [numRoutes]*state.Route {
	var rs [numRoutes]*state.Route
	for i, t := range [...]*state.Traffic{&p.Internal, &p.External} {
		rs[2*i] = &t.Inside
		if isSplit(t) {
			rs[2*i+1] = &t.Outside
		}
	}
	if p.Edge != nil {
		rs[edgeLocal] = &p.Edge.Local
	}
	return rs
}

// isSplit reports whether outside clients are treated differently from inside clients. They are if they take another route. They also are
// if only the node's own connections are masqueraded, because they could take another route. So the masquerade rule of unsplit frontends
// does not change with their policies.
func isSplit(t *state.Traffic) bool {
	return t.Masquerade == state.MasqueradeNode || !t.Inside.Equal(&t.Outside)
}

// Check returns why a record cannot be programmed, with the remedy, or nil.
func Check(s *state.Service) error {
	for i := range s.Ports {
		for _, r := range routes(&s.Ports[i]) {
			if r != nil && len(r.Endpoints)+int(min(r.Refused, 1)) > maxEndpoints {
				return fmt.Errorf("service %v: port %q has %d endpoints, and this dataplane programs at most %d: "+
					"spread them over several Services, or over nodes with trafficDistribution", s.Name, s.Ports[i].Name,
					len(r.Endpoints), maxEndpoints)
			}
		}
	}
	return nil
}

// renderer turns records into elements.
type renderer struct {
	settings *Settings
	// shape decides which timeouts there are.
	shape *shape
	// own receives elements that belong to one service alone, except the elements of lists and tables.
	own []element
	// lists receives the service's lists of allowed clients, which may be long and are compared in their own way.
	lists []allowedList
	// tables receives the service's tables of slots, likewise.
	tables []hashTable
	// shared receives elements that services may have in common.
	shared []sharedKey
	// pings receives elements about echo requests, likewise.
	pings []elementKey
}

// allowedList is a list of allowed clients.
type allowedList struct {
	family state.Family
	number uint32
	// sources are sorted.
	sources []netip.Prefix
}

// element returns the element of one range.
func (l *allowedList) element(src netip.Prefix) element {
	e := element{family: l.family, set: setID{kind: allowed, arg: uint32(src.Bits())}}
	w := writer{buf: e.key[:]}
	w.mark(l.number)
	w.addr(src.Masked().Addr())
	return e
}

func (r *renderer) reset() {
	r.own, r.lists, r.tables, r.shared, r.pings = r.own[:0], r.lists[:0], r.tables[:0], r.shared[:0], r.pings[:0]
}

// service appends the elements of a record.
func (r *renderer) service(a *applied) {
	var lists sourceLists
	for i := range a.record.Ports {
		r.port(a, &a.record.Ports[i], &a.places[i], &lists, nil)
		r.pingPort(&a.record.Ports[i])
	}
	r.above(a)
}

// above appends the elements of the frontends that are counted in addition to the frontends of the record.
func (r *renderer) above(a *applied) {
	for _, above := range a.above {
		b := r.begin(a, above.port, above.frontend)
		b.masquerade(state.MasqueradeNever) // its packets pass the chain without being marked
		b.count()
	}
}

// whole is service with the elements of lists and tables among the others.
func (r *renderer) whole(a *applied) {
	r.service(a)
	for i := range r.lists {
		for _, src := range r.lists[i].sources {
			r.own = append(r.own, r.lists[i].element(src))
		}
	}
	for i := range r.tables {
		for at, ep := range r.tables[i].slots() {
			if ep.Addr.IsValid() {
				r.own = append(r.own, r.tables[i].element(at, ep))
			}
		}
	}
}

// port appends the elements of a port: those that may differ, if the difference from another one is given, else all.
func (r *renderer) port(a *applied, p *state.Port, place *placement, lists *sourceLists, d *portDiff) {
	affinity, tableNumbers := r.affinity(a, p, d), r.hashTables(a, p)
	for i := range p.Frontends {
		f := &p.Frontends[i]
		isKept := d != nil && d.isKept(p, f)
		if isKept && !f.Restricted && !d.changes(f) {
			continue
		}
		b := r.begin(a, p, f)
		b.affinity, b.tableNumbers = affinity, tableNumbers
		if isKept {
			b.only = d
		} else if f.LastPort != 0 {
			r.blocks(p, f, a.numbers[rangeOwner(p, f)])
		}
		if f.Restricted {
			list, isNew := lists.index(p.Family, f.Sources)
			number := a.numbers[listOwner(p.Family, list)]
			b.number(restricted, number)
			if isNew {
				r.lists = append(r.lists, allowedList{p.Family, number, f.Sources})
			}
		}
		if f.Kind == state.ClusterIP {
			b.frontend(p, &p.Internal, place[internalInside:externalInside])
		} else {
			b.frontend(p, &p.External, place[externalInside:])
		}
	}
	for i, rt := range routes(p) {
		switch {
		case rt == nil:
		case d == nil:
			r.hairpins(rt.Endpoints)
		default:
			r.hairpins(d.only(p, i))
		}
	}
}

func (r *renderer) hairpins(endpoints []state.Endpoint) {
	for _, e := range endpoints {
		r.shared = append(r.shared, newSharedKey(hairpin, e.Addr.Addr()))
	}
}

// portAffinity is what the frontends of a port with affinity have in common.
type portAffinity struct {
	number, timeout uint32
	endpoints       map[netip.AddrPort]uint32
}

// affinity appends the numbers of a port's endpoints. It returns nil for a port without affinity.
func (r *renderer) affinity(a *applied, p *state.Port, d *portDiff) *portAffinity {
	if p.Affinity == 0 {
		return nil
	}
	timeout := r.shape.timeout(uint32(p.Affinity / time.Second))
	r.shape.needs(p.Family, setID{kind: stickyFor, arg: timeout}) // for the elements that follow
	of := &portAffinity{number: a.numbers[portOwner(p)], timeout: timeout}
	if d != nil {
		of.endpoints = d.numbers[d.side(p)]
	} else {
		of.endpoints = endpointNumbersOf(p)
	}
	for addr := range distinctEndpoints(p) {
		if d != nil && d.isNumbered(p, addr) {
			continue
		}
		e := element{family: p.Family, set: setID{kind: endpointNumbers}}
		key := writer{buf: e.key[:]}
		key.mark(of.number)
		key.addr(addr.Addr())
		key.port(addr.Port())
		data := writer{buf: e.data[:]}
		data.mark(of.endpoints[addr])
		r.own = append(r.own, e)
	}
	return of
}

// distinctEndpoints yields the endpoints of a port's routes, each once.
func distinctEndpoints(p *state.Port) iter.Seq[netip.AddrPort] {
	return func(yield func(netip.AddrPort) bool) {
		seen := map[netip.AddrPort]bool{}
		for _, rt := range routes(p) {
			if rt == nil {
				continue
			}
			for _, ep := range rt.Endpoints {
				if !seen[ep.Addr] {
					seen[ep.Addr] = true
					if !yield(ep.Addr) {
						return
					}
				}
			}
		}
	}
}

// endpointNumbersOf returns the numbers of a port's endpoints.
func endpointNumbersOf(p *state.Port) map[netip.AddrPort]uint32 {
	numbers, taken := map[netip.AddrPort]uint32{}, map[uint32]bool{}
	for addr := range distinctEndpoints(p) {
		numbers[addr] = endpointNumber(addr, taken)
	}
	return numbers
}

// frontendElement returns an element with the key of a frontend, and the key's length.
func frontendElement(p *state.Port, f *state.Frontend) (element, int) {
	e := element{family: p.Family}
	w := writer{buf: e.key[:]}
	if f.Kind != state.NodePort {
		w.addr(f.Addr)
	}
	w.proto(p.Protocol)
	w.port(f.Port)
	return e, w.n
}

// frontendKey is the key under which placements read from the kernel are found, of a frontend that is no range.
func frontendKey(p *state.Port, f *state.Frontend) elementKey {
	e, _ := frontendElement(p, f)
	e.set = setID{space: service, kind: slots}
	if f.Kind == state.NodePort {
		e.set.space = nodePort
	}
	return e.id()
}

// begin begins with the elements of a frontend.
func (r *renderer) begin(a *applied, p *state.Port, f *state.Frontend) frontendRenderer {
	s := service
	if f.Kind == state.NodePort {
		s = nodePort
	} else {
		guard := externalIPs
		if f.Kind == state.ClusterIP {
			guard = clusterIPs
		}
		r.shared = append(r.shared, newSharedKey(guard, f.Addr))
	}
	if f.LastPort != 0 {
		r.shared = append(r.shared, newSharedKey(rangeIPs, f.Addr))
		e := numberElement(p.Family, a.numbers[rangeOwner(p, f)])
		return frontendRenderer{renderer: r, base: e, keyLen: frontendLen(p.Family, ranges), space: ranges}
	}
	base, keyLen := frontendElement(p, f)
	b := frontendRenderer{renderer: r, base: base, keyLen: keyLen, space: s}
	if r.settings.Edge != 0 && p.Edge.Takes(f.Kind) {
		b.edge = p.Edge
	}
	return b
}

// frontendRenderer renders the elements of one frontend, whose key all of them start with.
type frontendRenderer struct {
	*renderer
	base     element
	keyLen   int
	space    space
	affinity *portAffinity // nil if there is none
	edge     *state.Edge   // likewise
	// tableNumbers are the numbers of the tables of the port's routes that are hashed.
	tableNumbers [numRoutes]uint32
	only         *portDiff // nil unless the other port also has the frontend
}

func (b *frontendRenderer) element(v view, k kind, arg uint32) *element {
	e := b.base
	e.set = setID{space: b.space, view: v, kind: k, arg: arg}
	b.own = append(b.own, e)
	return &b.own[len(b.own)-1]
}

func (b *frontendRenderer) add(v view, k kind, arg uint32) { b.element(v, k, arg) }

// number adds an element that gives the frontend a number.
func (b *frontendRenderer) number(k kind, n uint32) {
	data := writer{buf: b.element(common, k, 0).data[:]}
	data.mark(n)
}

func (b *frontendRenderer) frontend(p *state.Port, t *state.Traffic, places [][]state.Endpoint) {
	if b.only != nil {
		b.changes(p, t, places)
		return
	}
	b.masquerade(t.Masquerade)
	at := internalInside
	if t == &p.External {
		at = externalInside
	}
	if isSplit(t) {
		b.add(common, split, 0)
		b.route(inside, p, &t.Inside, places[0])
		b.hash(inside, p, at, &t.Inside)
		b.route(outside, p, &t.Outside, places[1])
		b.hash(outside, p, at+1, &t.Outside)
	} else {
		b.route(common, p, &t.Inside, places[0])
		b.hash(common, p, at, &t.Inside)
	}
	if b.edge != nil {
		if len(b.edge.Shares) > 0 {
			b.add(common, handedOver, 0)
		}
		b.route(edge, p, &b.edge.Local, places[edgeLocal-externalInside])
	}
	if b.settings.Counters {
		b.count()
	}
	if b.space == nodePort && p.Family == state.IPv6 && p.Protocol != state.TCP {
		b.add(common, unserved, 0)
	}
	if b.affinity != nil {
		b.number(sticky, b.affinity.number)
		b.add(common, stickyFor, b.affinity.timeout)
	}
}

// changes adds what may differ of a frontend that is kept, of the port p.
func (b *frontendRenderer) changes(p *state.Port, t *state.Traffic, places [][]state.Endpoint) {
	at := internalInside
	if t == &p.External {
		at = externalInside
	}
	if !b.only.changed[at.traffic()] {
		return
	}
	if isSplit(t) {
		b.changedRoute(inside, p, &t.Inside, at, places[0])
		b.changedRoute(outside, p, &t.Outside, at+1, places[1])
	} else {
		b.changedRoute(common, p, &t.Inside, at, places[0])
	}
	if b.edge != nil {
		b.changedRoute(edge, p, &b.edge.Local, edgeLocal, places[edgeLocal-externalInside])
	}
}

func (b *frontendRenderer) changedRoute(v view, p *state.Port, r *state.Route, at route, placed []state.Endpoint) {
	b.verdict(v, p, r, len(placed))
	if r.Verdict != state.Forward {
		return
	}
	for _, i := range b.only.slots[at] {
		if i < len(placed) {
			b.place(v, i, placed[i])
		}
	}
	if b.affinity == nil {
		return
	}
	for _, ep := range b.only.only(p, int(at)) {
		b.slot(v.numberedSlots()|b.affinity.endpoints[ep.Addr], ep.Addr)
	}
}

// masquerade adds the frontend's masquerade rule, if it is not the usual one.
func (b *frontendRenderer) masquerade(m state.Masquerade) {
	if m != b.settings.usualMasquerade(b.space, b.base.family) {
		b.add(common, masquerade, uint32(m))
	}
}

// count adds the elements that count connections to the frontend.
func (b *frontendRenderer) count() {
	for _, k := range countKinds {
		b.add(common, k, 0)
	}
}

func (b *frontendRenderer) route(v view, p *state.Port, r *state.Route, placed []state.Endpoint) {
	b.verdict(v, p, r, len(placed))
	if r.Verdict != state.Forward {
		return
	}
	for i, ep := range placed {
		b.place(v, i, ep)
	}
	if b.affinity != nil {
		for _, ep := range r.Endpoints {
			b.slot(v.numberedSlots()|b.affinity.endpoints[ep.Addr], ep.Addr)
		}
	}
}

// verdict adds the verdict of a route in a view with a number of slots.
func (b *frontendRenderer) verdict(v view, p *state.Port, r *state.Route, slots int) {
	switch r.Verdict {
	case state.Reject:
		b.add(v, reject, 0)
	case state.Drop:
		b.add(v, drop, 0)
	case state.Forward:
		if slots > 1 { // slot 0 needs no class
			b.add(v, classKind(p, r), uint32(slots))
		}
	}
}

// place adds the slot of a view at an index, unless it is a hole.
func (b *frontendRenderer) place(v view, index int, ep state.Endpoint) {
	if ep.Addr.IsValid() {
		b.slot(v.slotOffset()+uint32(index), ep.Addr)
	}
}

// slot adds an endpoint at an index. The sets of all views are the same map; the view is in the index.
func (b *frontendRenderer) slot(index uint32, ep netip.AddrPort) {
	e := b.element(common, slots, 0)
	key := writer{buf: e.key[:], n: b.keyLen}
	key.mark(index)
	data := writer{buf: e.data[:]}
	data.addr(ep.Addr())
	data.port(ep.Port())
}
