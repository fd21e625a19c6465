package ruleset

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"net/netip"

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

// frontend returns what frontendKeys yields for the frontend that the element belongs to. The set is not global, and its key does not begin with a
// number.
func (k elementKey) frontend() elementKey {
	if k.set.kind == blocks {
		return k
	}
	clear(k.key[frontendLen(k.family, k.set.space):])
	k.set = setID{space: k.set.space, kind: slots}
	return k
}

// frontendLen returns how long the keys of frontends are.
func frontendLen(f state.Family, s space) int {
	const number, protoAndPort = 4, 8
	switch s {
	case service:
		return addrLen(f) + protoAndPort
	case ranges:
		return number
	}
	return protoAndPort
}

// isNumbered reports whether the keys of the set begin with the number of a list, a table, a port or a range.
func (id setID) isNumbered() bool {
	return id.space == ranges || id.kind == allowed || id.kind == endpointNumbers || id.kind == hashSlots
}

// givesNumber reports whether the data of such sets are these numbers.
func (k kind) givesNumber() bool {
	return k == restricted || k == sticky || k == hashClients || k == hashConnections || k == blocks
}

// numberIn returns the number that the key of an element of such a set begins with.
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

func (l layout) size() int { return l.key + l.data }

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

// writer fills the fields of a key or of data, each aligned to four bytes.
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

func addrLen(f state.Family) int {
	if f == state.IPv6 {
		return 16
	}
	return 4
}

// sharedKey is an element of a set whose keys consist of one address (twice, in the hairpin set).
type sharedKey struct {
	family state.Family
	kind   kind
	addr   [16]byte
}

// isShared reports whether the elements of such sets are shared keys of services.
func (k kind) isShared() bool {
	return k == clusterIPs || k == externalIPs || k == hairpin || k == rangeIPs
}

func (s sharedKey) compare(o sharedKey) int {
	return cmp.Or(cmp.Compare(s.family, o.family), cmp.Compare(s.kind, o.kind), bytes.Compare(s.addr[:], o.addr[:]))
}

func newSharedKey(k kind, addr netip.Addr) sharedKey {
	s := sharedKey{family: state.FamilyOf(addr), kind: k}
	copy(s.addr[:], addr.AsSlice())
	return s
}

// sharedOf is the reverse of sharedKey.element.
func sharedOf(e *element) sharedKey {
	s := sharedKey{family: e.family, kind: e.set.kind}
	copy(s.addr[:], e.key[:addrLen(e.family)])
	return s
}

func (s sharedKey) element() element {
	e := element{family: s.family, set: setID{kind: s.kind}}
	n := copy(e.key[:], s.addr[:addrLen(s.family)])
	if s.kind == hairpin {
		copy(e.key[n:], s.addr[:n])
	}
	return e
}
