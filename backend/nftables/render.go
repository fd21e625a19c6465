package nftables

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// element is an element of a set of one family. It is comparable and holds no pointers, because there are many.
type element struct {
	family state.Family
	set    setID
	key    [maxKey]byte
	data   [maxData]byte
}

// The longest key is IPv6 address . protocol . port . IPv6 address (. port), the longest data an IPv6 address and a port. Sets
// are read and written with the lengths that their types have.
const (
	maxKey  = 16 + 4 + 4 + 16 + 4
	maxData = 16 + 4
)

// keyOf identifies the element within its table; two elements with the same keyOf cannot both exist.
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

// isSplit says whether outside clients are treated differently from those inside: if they take another route, or could, because
// only the node's own connections are masqueraded. So the masquerade rule of frontends that are not split does not change with
// their policies.
func isSplit(t *state.Traffic) bool {
	return t.Masquerade == state.MasqueradeNode || !t.Inside.Equal(&t.Outside)
}

// checkService returns why a record cannot be programmed, or nil.
func checkService(s *state.Service) error {
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
	o *Options
	// own receives elements that belong to one service alone.
	own []element
	// shared receives those that services may have in common.
	shared []sharedKey
}

func (r *renderer) reset() { r.own, r.shared = r.own[:0], r.shared[:0] }

// service appends the elements of a record.
func (r *renderer) service(s *state.Service, places []placement) {
	for i := range s.Ports {
		r.port(&s.Ports[i], &places[i])
	}
}

func (r *renderer) port(p *state.Port, place *placement) {
	for i := range p.Frontends {
		f := &p.Frontends[i]
		t, places := &p.Internal, place[internalInside:externalInside]
		if f.Kind != state.ClusterIP {
			t, places = &p.External, place[externalInside:]
		}
		r.frontend(p, f, t, places)
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

func (r *renderer) frontend(p *state.Port, f *state.Frontend, t *state.Traffic, places [][]state.Endpoint) {
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
	b := frontendRenderer{renderer: r, base: base, keyLen: keyLen, space: s}

	if f.Restricted {
		b.add(common, restricted, 0)
		var last netip.Prefix
		for _, src := range f.Sources {
			// The kernel refuses ranges that overlap. Prefixes either nest or are disjoint, and the wider sorts first.
			if !last.IsValid() || !last.Overlaps(src) {
				b.allow(src)
				last = src
			}
		}
	}
	if t.Masquerade != r.o.usualMasquerade(s, p.Family) {
		b.add(common, masquerade, uint32(t.Masquerade))
	}
	if isSplit(t) {
		b.add(common, split, 0)
		b.route(inside, &t.Inside, places[0])
		b.route(outside, &t.Outside, places[1])
	} else {
		b.route(common, &t.Inside, places[0])
	}
	if p.Affinity > 0 {
		b.add(common, sticky, uint32(p.Affinity/time.Second))
		b.alive(inside, &t.Inside)
		b.alive(outside, &t.Outside)
	}
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
	n := 8
	if k.set.space == service {
		n += addrLen(k.family)
	}
	k.set = setID{space: k.set.space, kind: slots}
	clear(k.key[n:])
	return k
}

// aliveKeys returns the elements of which one has to exist if a client's endpoint, remembered by a view, is alive: in the space
// of addresses, or in that of NodePorts.
func aliveKeys(f state.Family, v view, client nft.Elem) (byAddr, byPort elementKey) {
	n := addrLen(f)
	byAddr = elementKey{family: f, set: setID{space: service, view: v, kind: alive}}
	copy(byAddr.key[copy(byAddr.key[:], client.Key[n:]):], client.Data)
	byPort = elementKey{family: f, set: setID{space: nodePort, view: v, kind: alive}}
	copy(byPort.key[copy(byPort.key[:], client.Key[2*n:]):], client.Data)
	return byAddr, byPort
}

// frontendRenderer renders the elements of one frontend, whose key all of them start with.
type frontendRenderer struct {
	*renderer
	base   element
	keyLen int
	space  space
}

func (b *frontendRenderer) element(v view, k kind, arg uint32) *element {
	e := b.base
	e.set = setID{space: b.space, view: v, kind: k, arg: arg}
	b.own = append(b.own, e)
	return &b.own[len(b.own)-1]
}

func (b *frontendRenderer) add(v view, k kind, arg uint32) { b.element(v, k, arg) }

// allow adds a range of clients. The range's last address stands in the data, from where it goes into the interval's end.
func (b *frontendRenderer) allow(src netip.Prefix) {
	e := b.element(common, allowed, 0)
	key := writer{buf: e.key[:], n: b.keyLen}
	key.addr(src.Masked().Addr())
	end := writer{buf: e.data[:]}
	end.addr(lastAddr(src))
}

func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Masked().Addr().AsSlice()
	for i, m := range prefixMask(p) {
		b[i] |= ^m
	}
	last, _ := netip.AddrFromSlice(b)
	return last
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
			if !ep.Addr.IsValid() {
				continue
			}
			// The sets of all views are the same map; the view is in the index.
			e := b.element(common, slots, 0)
			key := writer{buf: e.key[:], n: b.keyLen}
			key.mark(v.slotOffset() + uint32(i))
			data := writer{buf: e.data[:]}
			data.addr(ep.Addr.Addr())
			data.port(ep.Addr.Port())
		}
	}
}

// alive adds the endpoints that clients may be remembered with.
func (b *frontendRenderer) alive(v view, r *state.Route) {
	for _, ep := range r.Endpoints {
		e := b.element(v, alive, 0)
		key := writer{buf: e.key[:], n: b.keyLen}
		key.addr(ep.Addr.Addr())
		key.port(ep.Addr.Port())
	}
}

// splitSlotKey takes the index off the key of a slot, and leaves what is the frontend's key, in the common view.
func splitSlotKey(k elementKey) (frontend elementKey, index uint32) {
	n := setID{space: k.set.space, kind: slots}.layout(k.family).key - 4
	index = binary.NativeEndian.Uint32(k.key[n:])
	clear(k.key[n:])
	return k, index
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
	switch {
	case e.set.kind == allowed:
		n := addrLen(e.family)
		out.KeyEnd = append(append(make([]byte, 0, l.key), e.key[:l.key-n]...), e.data[:n]...)
	case l.data > 0:
		out.Data = e.data[:l.data]
	}
	return out
}

// decode is the reverse of encode.
func decode(f state.Family, id setID, in nft.Elem) element {
	e := element{family: f, set: id}
	copy(e.key[:], in.Key)
	copy(e.data[:], in.Data)
	if id.kind == allowed {
		n := addrLen(f)
		copy(e.data[:], in.KeyEnd[max(len(in.KeyEnd)-n, 0):])
	}
	return e
}

func addrLen(f state.Family) int {
	if f == state.IPv6 {
		return 16
	}
	return 4
}
