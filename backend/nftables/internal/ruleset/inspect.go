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
	// Draw is how one of them is chosen.
	Draw Draw
	// Objects are the sets that have an element by which the connection goes there.
	Objects []string
}

// Draw is how an endpoint is chosen.
type Draw struct {
	// Slots is how many slots there are, 0 if endpoints are drawn evenly. Shares has how many of them each endpoint has.
	Slots  int
	Shares []int
	// Hashed reports whether a hash chooses the slot. Slot is the one of the client's address, if it is known, and Endpoint the endpoint there.
	// Endpoint is not valid if the slot has none.
	Hashed   bool
	Known    bool
	Slot     int
	Endpoint netip.AddrPort
}

// Client is who makes a connection.
type Client struct {
	// Outside is set if it is neither a pod nor the node, and Edge if a node has handed the connection over, maybe to itself.
	Outside, Edge bool
	// Addr is its address, for frontends that not everybody may connect to. It need not be valid.
	Addr netip.Addr
}

// Inspect reads back what becomes of a new connection to a frontend: by the sets that the rules look it up in, in their order.
func Inspect(key state.FrontendKey, c Client, find Find) (Held, error) {
	in := inspection{family: key.Family, find: find}
	in.frontend, in.space = keyElement(key)
	if key.LastPort != 0 {
		in.frontend, in.space = firstBlock(key), ranges
	}
	in.run(key.Addr, c)
	in.count()
	return in.held, in.err
}

// count puts the endpoints of slots in order, and counts the slots of each.
func (in *inspection) count() {
	drawn := in.held.Endpoints
	slices.SortFunc(drawn, netip.AddrPort.Compare)
	d := &in.held.Draw
	if d.Slots > 0 {
		for i, e := range drawn {
			if i == 0 || e != drawn[i-1] {
				d.Shares = append(d.Shares, 0)
			}
			d.Shares[len(d.Shares)-1]++
		}
	}
	in.held.Endpoints = slices.Compact(drawn)
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

func (in *inspection) run(addr netip.Addr, c Client) {
	if in.space != nodePort && !in.guarded(addr) || in.space == ranges && !in.numbered() {
		return
	}
	if data, ok := in.has(setID{kind: restricted}); ok && in.space != nodePort && !in.admits(numberOf(data), c.Addr) {
		in.held.Verdict = state.Drop
		return
	}
	v := in.view(c)
	if _, ok := in.has(setID{view: v, kind: reject}); ok {
		in.held.Verdict = state.Reject
		return
	}
	if _, ok := in.has(setID{view: v, kind: drop}); ok {
		in.held.Verdict = state.Drop
		return
	}
	if _, ok := in.has(setID{view: v, kind: hashed}); ok && in.hashed(v, c.Addr) {
		return
	}
	class, weighted := in.classOf(v)
	if weighted {
		in.held.Draw.Slots = int(class)
	}
	in.slots(v, class)
}

// view returns the view that a client takes.
func (in *inspection) view(c Client) view {
	if c.Edge {
		return edge
	}
	switch _, isSplit := in.has(setID{kind: split}); {
	case !isSplit:
		return common
	case c.Outside:
		return outside
	}
	return inside
}

// numbered replaces the first block of a range by its number, and reports whether there is one.
func (in *inspection) numbered() (ok bool) {
	block := in.frontend
	in.lookUp(block.set, block.key[:block.set.layout(in.family).key], func(_ int, data []byte) {
		var d [maxData]byte
		copy(d[:], data)
		in.frontend, ok = numberElement(in.family, numberOf(d)), true
	})
	return ok
}

// hashed takes the endpoints in the table that a view leads to, if it leads to one.
func (in *inspection) hashed(v view, src netip.Addr) bool {
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
			in.held.Draw = Draw{Slots: size, Hashed: true}
			slot := -1
			if k == hashClients && state.FamilyOf(src) == in.family {
				slot = consistent.Slot(state.HashClient, netip.AddrPortFrom(src, 0), size)
				in.held.Draw.Known, in.held.Draw.Slot = true, slot
			}
			in.take(id, keys, slot)
			return true
		}
	}
	return false
}

// classOf returns how many slots a connection is drawn from, and whether these have weights.
func (in *inspection) classOf(v view) (class uint32, weighted bool) {
	for _, class := range classes {
		if _, ok := in.has(setID{view: v, kind: endpoints, arg: class}); ok {
			return class, false
		}
	}
	for _, class := range shareClasses {
		if _, ok := in.has(setID{view: v, kind: shares, arg: class}); ok {
			return class, true
		}
	}
	return 1, false
}

// lookUp looks elements of a set up.
func (in *inspection) lookUp(id setID, keys []byte, found func(i int, data []byte)) {
	if in.err != nil {
		return
	}
	there := false
	err := in.find(table(in.family), id.name(), id.layout(in.family).key, keys, func(i int, data []byte) {
		there = true
		found(i, data)
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
	in.lookUp(id, in.frontend.key[:id.layout(in.family).key], func(_ int, d []byte) {
		ok = true
		copy(data[:], d)
	})
	return data, ok
}

// guarded reports whether the rules look the address up at all.
func (in *inspection) guarded(addr netip.Addr) (ok bool) {
	for _, guard := range []kind{clusterIPs, externalIPs} {
		e := newSharedKey(guard, addr).element()
		in.lookUp(e.set, e.key[:e.set.layout(in.family).key], func(int, []byte) { ok = true })
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
		in.lookUp(e.set, e.key[:e.set.layout(in.family).key], func(int, []byte) { ok = true })
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
	in.take(id, keys, -1)
}

// take takes the endpoints of slots. One of them may be the client's.
func (in *inspection) take(id setID, keys []byte, client int) {
	in.lookUp(id, keys, func(i int, data []byte) {
		var d [maxData]byte
		copy(d[:], data)
		in.held.Verdict = state.Forward
		endpoint := decodeEndpoint(in.family, d)
		in.held.Endpoints = append(in.held.Endpoints, endpoint)
		if i == client {
			in.held.Draw.Endpoint = endpoint
		}
	})
}
