package ruleset

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Find looks elements up by their keys. It is the method of an nft.Conn of this name, for which a set that does not exist has none.
type Find func(t nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error

// Held is what the tables hold of a frontend, for one kind of client.
type Held struct {
	// Verdict is Unused if there is nothing by which a connection would go anywhere.
	Verdict state.Verdict
	// Endpoints are those that a connection can get, in order.
	Endpoints []netip.AddrPort
	// Objects are the sets that have an element by which the connection goes there.
	Objects []string
}

// Inspect reads back what becomes of a new connection to a frontend: by the sets that the rules look it up in, in their order. src is the
// client's address, for frontends that not everybody may connect to; it need not be valid.
func Inspect(key state.FrontendKey, isOutside bool, src netip.Addr, find Find) (Held, error) {
	in := inspection{family: key.Family, find: find}
	in.frontend, in.space = keyElement(key)
	if key.LastPort != 0 {
		in.frontend, in.space = firstBlock(key), ranges
	}
	in.run(key.Addr, isOutside, src)
	slices.SortFunc(in.held.Endpoints, netip.AddrPort.Compare)
	in.held.Endpoints = slices.Compact(in.held.Endpoints)
	return in.held, in.err
}

// keyElement returns an element with the key of a frontend, and the space of its sets.
func keyElement(key state.FrontendKey) (element, space) {
	p, f, s := state.Port{Family: key.Family, Protocol: key.Protocol}, state.Frontend{Kind: state.ClusterIP, Addr: key.Addr, Port: key.Port}, service
	if !key.Addr.IsValid() {
		f.Kind, s = state.NodePort, nodePort
	}
	e, _ := frontendElement(&p, &f)
	return e, s
}

type inspection struct {
	family   state.Family
	space    space
	frontend element
	find     Find
	held     Held
	err      error
}

func (in *inspection) run(addr netip.Addr, isOutside bool, src netip.Addr) {
	if in.space != nodePort && !in.guarded(addr) || in.space == ranges && !in.numbered() {
		return
	}
	if data, ok := in.has(setID{kind: restricted}); ok && in.space != nodePort && !in.admits(numberOf(data), src) {
		in.held.Verdict = state.Drop
		return
	}
	v := common
	if _, ok := in.has(setID{kind: split}); ok {
		v = inside
		if isOutside {
			v = outside
		}
	}
	if _, ok := in.has(setID{view: v, kind: reject}); ok {
		in.held.Verdict = state.Reject
		return
	}
	if _, ok := in.has(setID{view: v, kind: drop}); ok {
		in.held.Verdict = state.Drop
		return
	}
	if _, ok := in.has(setID{view: v, kind: hashed}); ok && in.hashed(v) {
		return
	}
	in.slots(v, in.classOf(v))
}

// numbered replaces the first block of a range by its number, and reports whether there is one.
func (in *inspection) numbered() (ok bool) {
	block := in.frontend
	in.lookUp(block.set, block.key[:block.set.layout(in.family).key], func(data []byte) {
		var d [maxData]byte
		copy(d[:], data)
		in.frontend, ok = numberElement(in.family, numberOf(d)), true
	})
	return ok
}

// hashed takes the endpoints in the table that a view leads to, if it leads to one.
func (in *inspection) hashed(v view) bool {
	for _, k := range hashKinds {
		for _, size := range consistent.Sizes {
			data, ok := in.has(setID{view: v, kind: k, arg: uint32(size)})
			if !ok {
				continue
			}
			id := setID{kind: hashSlots}
			var keys []byte
			t := hashTable{family: in.family, number: numberOf(data)}
			for i := range size {
				e := t.element(i, state.Endpoint{})
				keys = append(keys, e.key[:id.layout(in.family).key]...)
			}
			in.take(id, keys)
			return true
		}
	}
	return false
}

// classOf returns how many slots a connection is drawn from.
func (in *inspection) classOf(v view) uint32 {
	for _, class := range classes {
		if _, ok := in.has(setID{view: v, kind: endpoints, arg: class}); ok {
			return class
		}
	}
	for _, class := range shareClasses {
		if _, ok := in.has(setID{view: v, kind: shares, arg: class}); ok {
			return class
		}
	}
	return 1
}

// lookUp looks elements of a set up.
func (in *inspection) lookUp(id setID, keys []byte, found func(data []byte)) {
	if in.err != nil {
		return
	}
	there := false
	err := in.find(table(in.family), id.name(), id.layout(in.family).key, keys, func(_ int, data []byte) {
		there = true
		found(data)
	})
	if err != nil {
		in.err = readFailed(tableSet{in.family, id}, err)
	}
	if there {
		in.held.Objects = append(in.held.Objects, fmt.Sprintf("set %s of table %v", id.name(), table(in.family)))
	}
}

// has returns the element of the frontend in a set of its space, if there is one.
func (in *inspection) has(id setID) (data [maxData]byte, ok bool) {
	id.space = in.space
	in.lookUp(id, in.frontend.key[:id.layout(in.family).key], func(d []byte) {
		ok = true
		copy(data[:], d)
	})
	return data, ok
}

// guarded reports whether the rules look the address up at all.
func (in *inspection) guarded(addr netip.Addr) (ok bool) {
	for _, guard := range []kind{clusterIPs, externalIPs} {
		e := newSharedKey(guard, addr).element()
		in.lookUp(e.set, e.key[:e.set.layout(in.family).key], func([]byte) { ok = true })
	}
	return ok
}

// admits reports whether a list of clients has an address.
func (in *inspection) admits(list uint32, src netip.Addr) (ok bool) {
	if state.FamilyOf(src) != in.family {
		return false
	}
	l := allowedList{family: in.family, number: list}
	for bits := range src.BitLen() + 1 {
		e := l.element(netip.PrefixFrom(src, bits))
		in.lookUp(e.set, e.key[:e.set.layout(in.family).key], func([]byte) { ok = true })
	}
	return ok
}

// slots takes the endpoints that a connection can draw.
func (in *inspection) slots(v view, size uint32) {
	id := setID{space: in.space, kind: slots}
	var keys []byte
	for i := range size {
		k := in.frontend.id()
		k.set = id
		k = k.slot(v.slotOffset() + i)
		keys = append(keys, k.key[:id.layout(in.family).key]...)
	}
	in.take(id, keys)
}

// take takes the endpoints of slots.
func (in *inspection) take(id setID, keys []byte) {
	in.lookUp(id, keys, func(data []byte) {
		var d [maxData]byte
		copy(d[:], data)
		in.held.Verdict = state.Forward
		in.held.Endpoints = append(in.held.Endpoints, decodeEndpoint(in.family, d))
	})
}
