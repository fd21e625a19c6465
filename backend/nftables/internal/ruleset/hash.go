package ruleset

import (
	"iter"
	"slices"

	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Connections whose slot follows from a hash. A route that hashes has a table of slots under a number. The number stands for a port and for the views
// that have the table, and all frontends of the port lead to it. So a table is there once, not once for each frontend and view. Slot 0 of a frontend
// is for a packet with a commit between two of its lookups.
//
// A comment that begins with "nft:" shows a rule, as in skeleton.go.

// hashRules is a set of rules that hash: one for each kind and size of tables, and one that refuses.
type hashRules uint8

const refusesRule = len(hashKinds) * len(consistent.Sizes)

const allHashRules hashRules = 1<<(refusesRule+1) - 1

var hashKinds = [...]kind{hashClients, hashConnections}

// hashRule returns the rule that a set is for.
func hashRule(id setID) hashRules {
	if id.kind == hashRefuses {
		return 1 << refusesRule
	}
	at := slices.Index(consistent.Sizes[:], int(id.arg))
	return 1 << (slices.Index(hashKinds[:], id.kind)*len(consistent.Sizes) + at)
}

// sets returns the sets of the rules.
func (h hashRules) sets(s space, v view) (ids []setID) {
	for _, k := range hashKinds {
		for _, size := range consistent.Sizes {
			if id := (setID{space: s, view: v, kind: k, arg: uint32(size)}); h&hashRule(id) != 0 {
				ids = append(ids, id)
			}
		}
	}
	if id := (setID{space: s, view: v, kind: hashRefuses}); h&hashRule(id) != 0 {
		ids = append(ids, id)
	}
	return ids
}

// hashes reports whether any rule hashes.
func (s *shape) hashes() bool {
	for sp := range s.hash {
		for v := range s.hash[sp] {
			if s.hash[sp][v] != 0 {
				return true
			}
		}
	}
	return false
}

// hashing returns the rule that leads to those that hash, and their chain, if there are any. A packet to a frontend that does not hash
// takes one lookup.
func (sk *skeleton) hashing(s where, v view) (rules []rule, chains []nft.Chain) {
	in := sk.shape.hash[s.space][v]
	if in == 0 {
		return nil, nil
	}
	c := nft.Chain{Name: s.chain(v.infix() + "hash")}
	key, _ := sk.key(s)
	for _, id := range in.sets(s.space, v) {
		if id.kind == hashRefuses {
			// nft: … @…hash-refuses goto …count-reject
			c.Rules = append(c.Rules, join(sk.in(s, id), sk.rejects(s)))
			continue
		}
		// nft: … map @…hash-… meta mark set meta mark dnat ip to meta mark . jhash ip saddr mod … seed 0x53770001 map @hash-slots
		// nft: … map @…hash-ports-… meta mark set meta mark dnat ip to meta mark . jhash ip saddr . th sport mod … seed 0x53770001 map @hash-slots
		const index, rest = nft.Reg0 + 1, nft.Reg0 + 2
		of, length := []field{srcAddr}, 4*sk.addrRegs()
		if id.kind == hashConnections {
			of, length = append(of, srcPort), length+4
		}
		c.Rules = append(c.Rules, join(
			sk.numbered(nft.Reg0, key, one(nft.MapLookup(nft.Reg0, nft.Reg0, id.name()))),
			sk.load(rest, of...), one(nft.Hash(rest, length, index, id.arg, consistent.Seed),
				nft.MapLookup(nft.Reg0, rest, setID{kind: hashSlots}.name()), sk.dnat(s, rest)),
		))
	}
	// nft: … @…hashed jump …hash
	return []rule{join(sk.in(s, setID{view: v, kind: hashed}), one(nft.Jump(c.Name)))}, []nft.Chain{c}
}

// hashKind returns the kind of tables by which the connections of a port are hashed, 0 if they are not. Session affinity wins.
func hashKind(p *state.Port) kind {
	switch {
	case p.Affinity > 0:
	case p.Balance == state.HashClient:
		return hashClients
	case p.Balance == state.HashConnection:
		return hashConnections
	}
	return 0
}

// placeNet places one endpoint of a route, in slot 0.
func placeNet(old []state.Endpoint, r *state.Route) []state.Endpoint {
	if len(old) > 0 && slices.ContainsFunc(r.Endpoints, func(e state.Endpoint) bool { return withoutWeight(e) == old[0] }) {
		return old[:1:1]
	}
	return []state.Endpoint{withoutWeight(r.Endpoints[0])}
}

// hashedRoutes has an item for each route of a port: the first route with the same table, and the views that the table is for. Internal and external
// traffic have a bit for each view. A route without views is not hashed.
type hashedRoutes [numRoutes]struct {
	first route
	views uint8
}

// hashedRoutesOf finds the tables of a port. A number stands for the views of a table, not only for its port. So a packet that has found the number
// in one view does not find the table of another view, when a commit makes them differ.
func hashedRoutesOf(p *state.Port) (hashed hashedRoutes) {
	if hashKind(p) == 0 {
		return hashed
	}
	rs := routes(p)
	for i, r := range rs[:edgeLocal] { // no port of the edge is hashed
		if r == nil || !consistent.Serves(p, r) {
			continue
		}
		v := common
		switch {
		case route(i)%internalRoutes > 0:
			v = outside
		case rs[i+1] != nil:
			v = inside
		}
		h := &hashed[i]
		h.first, h.views = route(i), 1<<(int(v)+route(i).traffic()*clientViews)
		for j, other := range rs[:i] {
			if o := &hashed[j]; o.views != 0 && o.first == route(j) && other.Equal(r) {
				h.first = o.first
				o.views |= h.views
			}
		}
	}
	for i := range hashed {
		if h := &hashed[i]; h.views != 0 {
			h.views = hashed[h.first].views
		}
	}
	return hashed
}

// hashTables yields the routes of a port that have a table of their own, with its owner.
func hashTables(p *state.Port) iter.Seq2[*state.Route, owner] {
	return func(yield func(*state.Route, owner) bool) {
		hashed, rs := hashedRoutesOf(p), routes(p)
		for i, h := range hashed {
			if h.views != 0 && h.first == route(i) && !yield(rs[i], hashed.owner(p, route(i))) {
				return
			}
		}
	}
}

// owner returns the owner of the table of a route that is hashed.
func (h *hashedRoutes) owner(p *state.Port, of route) owner {
	return owner{kind: hashSlots, family: p.Family, port: p.Name, protocol: p.Protocol, list: int(h[of].views)}
}

// hashTable is a table of slots under a number.
type hashTable struct {
	family state.Family
	number uint32
	route  *state.Route
}

// hashTables appends the tables of a port, and returns the numbers of the tables of its routes.
func (r *renderer) hashTables(a *applied, p *state.Port) (numbers [numRoutes]uint32) {
	hashed, rs := hashedRoutesOf(p), routes(p)
	for i, h := range hashed {
		if h.views == 0 {
			continue
		}
		numbers[i] = a.numbers[hashed.owner(p, route(i))]
		if h.first == route(i) {
			r.tables = append(r.tables, hashTable{p.Family, numbers[i], rs[i]})
		}
	}
	return numbers
}

// slots returns the endpoints in the slots of a table, nil for none. A share that is refused has slots without an address.
func (t *hashTable) slots() []state.Endpoint {
	if t == nil {
		return nil
	}
	table := consistent.Table(t.route)
	slots := make([]state.Endpoint, len(table))
	for i, at := range table {
		if at != consistent.Refused {
			slots[i] = t.route.Endpoints[at]
		}
	}
	return slots
}

// element returns the element of a slot.
func (t *hashTable) element(index int, ep state.Endpoint) element {
	e := element{family: t.family, set: setID{kind: hashSlots}}
	key, data := writer{buf: e.key[:]}, writer{buf: e.data[:]}
	key.mark(t.number)
	key.mark(uint32(index))
	data.addr(ep.Addr.Addr())
	data.port(ep.Addr.Port())
	return e
}

// diffTables plans the way from the tables in p.old to those in p.new.
func (p *Plan) diffTables() {
	if len(p.old.tables)+len(p.new.tables) == 0 {
		return
	}
	previous := map[uint32]*hashTable{}
	for i := range p.old.tables {
		previous[p.old.tables[i].number] = &p.old.tables[i]
	}
	for i := range p.new.tables {
		t := &p.new.tables[i]
		was := previous[t.number]
		delete(previous, t.number)
		p.diffTable(was, t)
	}
	for i := range p.old.tables { // in order, so that the same change makes the same batch
		if t := &p.old.tables[i]; previous[t.number] == t {
			p.diffTable(t, nil)
		}
	}
}

// sameTable reports whether two routes have all that a table follows from in common.
func sameTable(a, b *state.Route) bool {
	return a.Refused == b.Refused && slices.EqualFunc(a.Endpoints, b.Endpoints, func(x, y state.Endpoint) bool { return x.Addr == y.Addr && x.Weight == y.Weight })
}

func (p *Plan) diffTable(was, is *hashTable) {
	if was != nil && is != nil && sameTable(was.route, is.route) {
		return
	}
	from, to := was.slots(), is.slots()
	for i := range max(len(from), len(to)) {
		var a, b state.Endpoint
		if i < len(from) {
			a = from[i]
		}
		if i < len(to) {
			b = to[i]
		}
		if a.Addr == b.Addr {
			continue
		}
		if a.Addr.IsValid() {
			p.del(was.element(i, a))
		}
		if b.Addr.IsValid() {
			p.add(is.element(i, b))
		}
	}
}

// hash adds what leads to the table of a route in a view, of a frontend of the port p.
func (b *frontendRenderer) hash(v view, p *state.Port, of route, r *state.Route) {
	if !consistent.Serves(p, r) {
		return
	}
	b.add(v, hashed, 0)
	data := writer{buf: b.element(v, hashKind(p), uint32(consistent.SizeFor(len(r.Endpoints)))).data[:]}
	data.mark(b.tableNumbers[of])
	if r.Refused > 0 {
		b.add(v, hashRefuses, 0)
	}
}
