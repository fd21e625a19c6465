package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// element is an element of a set of one family. It is comparable and holds no pointers, because there are many.
type element struct {
	family state.Family
	set    setID
	key    [maxKey]byte
	data   [maxData]byte
}

// The longest key is two IPv6 addresses, the longest data an IPv6 address and a port. Sets are read and written with the lengths
// that their types have.
const (
	maxKey  = 16 + 16
	maxData = 16 + 4
)

// elementKey identifies an element; two elements with the same elementKey cannot both exist.
type elementKey struct {
	family state.Family
	set    setID
	key    [maxKey]byte
}

func (e *element) id() elementKey { return elementKey{e.family, e.set, e.key} }

// compare orders elements, so that what comes from a map is planned in the same order each time.
func (k elementKey) compare(o elementKey) int {
	return cmp.Or(cmp.Compare(k.family, o.family), cmp.Compare(k.set.space, o.set.space), cmp.Compare(k.set.view, o.set.view),
		cmp.Compare(k.set.kind, o.set.kind), cmp.Compare(k.set.arg, o.set.arg), bytes.Compare(k.key[:], o.key[:]))
}

// writer fills the fields of a key or of data, each of which starts at a multiple of four bytes.
type writer struct {
	buf []byte
	n   int
}

func (w *writer) addr(a netip.Addr) {
	if a.Is4() {
		b := a.As4()
		w.n += copy(w.buf[w.n:], b[:])
		return
	}
	b := a.As16()
	w.n += copy(w.buf[w.n:], b[:])
}

func (w *writer) proto(p state.Protocol) {
	w.buf[w.n] = byte(p)
	w.n += 4
}

func (w *writer) port(p uint16) {
	binary.BigEndian.PutUint16(w.buf[w.n:], p)
	w.n += 4
}

func (w *writer) mark(m uint32) {
	binary.NativeEndian.PutUint32(w.buf[w.n:], m)
	w.n += 4
}

// route names one of the routes of a port, for slot placements.
type route uint8

const (
	internalInside route = iota
	internalOutside
	externalInside
	externalOutside
	numRoutes
)

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
	return rs
}

// isSplit reports whether outside clients are treated differently from those inside: if they take another route, or could, because
// only the node's own connections are masqueraded. So the masquerade rule of frontends that are not split does not change with
// their policies.
func isSplit(t *state.Traffic) bool {
	return t.Masquerade == state.MasqueradeNode || !t.Inside.Equal(&t.Outside)
}

// Check returns why a record cannot be programmed, with the remedy, or nil.
func Check(s *state.Service) error {
	for i := range s.Ports {
		for _, r := range routes(&s.Ports[i]) {
			if r != nil && len(r.Endpoints) > maxEndpoints {
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
	// shape decides which time-outs there are.
	shape *shape
	// own receives elements that belong to one service alone, but for those of lists.
	own []element
	// lists receives the service's lists of allowed clients, which may be long and are compared in their own way.
	lists []allowedList
	// shared receives elements that services may have in common.
	shared []sharedKey
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

func (r *renderer) reset() { r.own, r.lists, r.shared = r.own[:0], r.lists[:0], r.shared[:0] }

// service appends the elements of a record.
func (r *renderer) service(a *applied) {
	var lists sourceLists
	for i := range a.record.Ports {
		r.port(a, &a.record.Ports[i], &a.places[i], &lists)
	}
}

// whole is service with the elements of lists among the others.
func (r *renderer) whole(a *applied) {
	r.service(a)
	for i := range r.lists {
		for _, src := range r.lists[i].sources {
			r.own = append(r.own, r.lists[i].element(src))
		}
	}
}

func (r *renderer) port(a *applied, p *state.Port, place *placement, lists *sourceLists) {
	affinity := r.affinity(a, p)
	for i := range p.Frontends {
		f := &p.Frontends[i]
		b := r.begin(p, f)
		b.affinity = affinity
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
	for _, rt := range routes(p) {
		if rt == nil {
			continue
		}
		for _, e := range rt.Endpoints {
			r.shared = append(r.shared, newSharedKey(hairpin, e.Addr.Addr()))
		}
	}
}

// portAffinity is what the frontends of a port with affinity have in common.
type portAffinity struct {
	number, timeout uint32
	endpoints       map[netip.AddrPort]uint32
}

// affinity appends the numbers of a port's endpoints. It returns nil for a port without affinity.
func (r *renderer) affinity(a *applied, p *state.Port) *portAffinity {
	if p.Affinity == 0 {
		return nil
	}
	timeout := r.shape.timeout(uint32(p.Affinity / time.Second))
	r.shape.needs(p.Family, setID{kind: stickyFor, arg: timeout}) // for what is rendered next
	of := &portAffinity{number: a.numbers[portOwner(p)], timeout: timeout, endpoints: map[netip.AddrPort]uint32{}}
	taken := map[uint32]bool{}
	for _, rt := range routes(p) {
		if rt == nil {
			continue
		}
		for _, ep := range rt.Endpoints {
			if _, ok := of.endpoints[ep.Addr]; ok {
				continue
			}
			n := endpointNumber(ep.Addr, taken)
			of.endpoints[ep.Addr] = n
			e := element{family: p.Family, set: setID{kind: endpointNumbers}}
			key := writer{buf: e.key[:]}
			key.mark(of.number)
			key.addr(ep.Addr.Addr())
			key.port(ep.Addr.Port())
			data := writer{buf: e.data[:]}
			data.mark(n)
			r.own = append(r.own, e)
		}
	}
	return of
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

// frontendKey is the key under which placements read from the kernel are found.
func frontendKey(p *state.Port, f *state.Frontend) elementKey {
	e, _ := frontendElement(p, f)
	e.set = setID{space: service, kind: slots}
	if f.Kind == state.NodePort {
		e.set.space = nodePort
	}
	return e.id()
}

// frontend returns what frontendKey returns for the frontend that the element belongs to, if its set is not global.
func (k elementKey) frontend() elementKey {
	clear(k.key[frontendLen(k.family, k.set.space):])
	k.set = setID{space: k.set.space, kind: slots}
	return k
}

// frontendLen returns how long the keys of frontends are.
func frontendLen(f state.Family, s space) int {
	const protoAndPort = 8
	if s == service {
		return addrLen(f) + protoAndPort
	}
	return protoAndPort
}

// begin begins with the elements of a frontend.
func (r *renderer) begin(p *state.Port, f *state.Frontend) frontendRenderer {
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
	base, keyLen := frontendElement(p, f)
	return frontendRenderer{renderer: r, base: base, keyLen: keyLen, space: s}
}

// frontendRenderer renders the elements of one frontend, whose key all of them start with.
type frontendRenderer struct {
	*renderer
	base     element
	keyLen   int
	space    space
	affinity *portAffinity // nil if there is none
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
	if t.Masquerade != b.settings.usualMasquerade(b.space, p.Family) {
		b.add(common, masquerade, uint32(t.Masquerade))
	}
	if isSplit(t) {
		b.add(common, split, 0)
		b.route(inside, &t.Inside, places[0])
		b.route(outside, &t.Outside, places[1])
	} else {
		b.route(common, &t.Inside, places[0])
	}
	if b.affinity != nil {
		b.number(sticky, b.affinity.number)
		b.add(common, stickyFor, b.affinity.timeout)
	}
}

func (b *frontendRenderer) route(v view, r *state.Route, placed []state.Endpoint) {
	switch r.Verdict {
	case state.Reject:
		b.add(v, reject, 0)
	case state.Drop:
		b.add(v, drop, 0)
	case state.Forward:
		if class := classOf(len(r.Endpoints)); class != 0 {
			b.add(v, endpoints, class)
		}
		for i, ep := range placed {
			if ep.Addr.IsValid() {
				b.slot(v.slotOffset()+uint32(i), ep.Addr)
			}
		}
		if b.affinity != nil {
			for _, ep := range r.Endpoints {
				b.slot(v.numberedSlots()|b.affinity.endpoints[ep.Addr], ep.Addr)
			}
		}
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

// numberIn returns the number that the key of an element of a list or of endpoint-numbers begins with.
func (k *elementKey) numberIn() uint32 { return binary.NativeEndian.Uint32(k.key[:]) }

// numberOf returns the number that is an element's data.
func numberOf(data [maxData]byte) uint32 { return binary.NativeEndian.Uint32(data[:]) }

// slot returns the key of the slot with an index of the frontend that k is the key of.
func (k elementKey) slot(index uint32) elementKey {
	key := writer{buf: k.key[:], n: frontendLen(k.family, k.set.space)}
	key.mark(index)
	return k
}

func decodeEndpoint(f state.Family, data [maxData]byte) netip.AddrPort {
	n := addrLen(f)
	addr, _ := netip.AddrFromSlice(data[:n])
	return netip.AddrPortFrom(addr, binary.BigEndian.Uint16(data[n:]))
}

// layout holds the lengths of a set's keys and data.
type layout struct{ key, data int }

func (id setID) layout(f state.Family) layout {
	s := id.set(f)
	var l layout
	l.key, l.data = nft.Width(s.Key), nft.Width(s.Data)
	return l
}

// encode returns the element as it goes to the kernel. The result refers to e.
func (e *element) encode(l layout) nft.Elem {
	out := nft.Elem{Key: e.key[:l.key]}
	if l.data > 0 {
		out.Data = e.data[:l.data]
	}
	return out
}

// decode is the reverse of encode.
func decode(f state.Family, id setID, in nft.Elem) element {
	e := element{family: f, set: id}
	copy(e.key[:], in.Key)
	copy(e.data[:], in.Data)
	return e
}

func addrLen(f state.Family) int {
	if f == state.IPv6 {
		return 16
	}
	return 4
}
