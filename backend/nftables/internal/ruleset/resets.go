package ruleset

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// ResetsName is the name of the table, in each family, whose rules reset translated connections. These are connections to endpoints that are
// gone, or whose deadline has passed. A table exists only while there are such endpoints, because without the table, packets pass no further hook. So the
// rules have a table of their own.
const ResetsName = "switchyard-resets"

// ResetTables returns the tables of resets, for IPv4 and for IPv6.
func ResetTables() []nft.Table {
	return []nft.Table{resetTable(state.IPv4), resetTable(state.IPv6)}
}

func resetTable(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: ResetsName} }

// SetGone is the set in the tables of resets of endpoints that are gone: address . port.
const SetGone = "gone"

// resetHooks are the hooks of packets to an endpoint after their translation. An endpoint elsewhere is in forward, one at an address of the
// node in input. Connections of the node itself pass output.
var resetHooks = map[string]uint32{"forward": nft.Forward, "input": nft.Input, "output": nft.Output}

// priorityFilter is where packets are filtered (NF_IP_PRI_FILTER).
const priorityFilter = 0

const (
	// GoneTimeout is how long connections to an endpoint are reset after it is gone. The kernel waits as long before it sends the first
	// keepalive on an idle connection (net.ipv4.tcp_keepalive_time). A client that sends nothing at all waits for no answer.
	GoneTimeout = 2 * time.Hour
	// MaxGone is how many endpoints of a family are reset at a time. A dump of a set takes time that grows with the square of its elements:
	// 0.1 s for so many endpoints.
	MaxGone = 1 << 14
)

// Resets has this process's content of the tables of resets, and the state that tells which endpoints are gone. It is for one goroutine at
// a time.
type Resets struct {
	flags   nft.TableFlags
	rules   resetRules
	serving serving
	// left are endpoints that have left a service, from that which they left last. They are gone if they do not serve another.
	left  map[endpointKey]state.ServiceName
	gone  map[endpointKey]reset
	state [2]resetState // by family
	// drains are the endpoints with a deadline.
	drains drains
	// Dropped counts what had no room.
	Dropped Dropped
}

// Dropped is how many endpoints, and how many endpoints with a deadline, had no room: MaxGone, MaxDrained and MaxDrainedOf. The latter count once for
// each frontend.
type Dropped struct{ Gone, Deadlines int }

// reset is about an element of SetGone or SetDrained, whose connections are reset.
type reset struct {
	from    state.ServiceName // the service that the endpoint left
	until   time.Time         // when connections are no longer reset
	packets uint64            // that were reset, as far as they are counted
}

// isOver reports whether connections are no longer reset.
func (r *reset) isOver(now time.Time) bool { return !r.until.After(now) }

// count takes down what an element has counted, and reports whether that is more than before. It calls fn with the increase.
func (r *reset) count(e nft.Elem, fn func(state.ServiceName, uint64)) (more bool) {
	if e.Packets <= r.packets {
		return false
	}
	fn(r.from, e.Packets-r.packets)
	r.packets = e.Packets
	return true
}

// resetState is about the table of one family.
type resetState struct {
	exists bool
	gone   int
	// packets is what the rules had counted when the elements were read last.
	packets uint64
}

// resetRules are what the tables of resets have rules for.
type resetRules struct {
	gone   bool // endpoints that are gone
	drains bool // endpoints with a deadline
}

// NewResets returns one that resets nothing, and knows nothing of the kernel yet. Tables get the flags.
func NewResets(flags nft.TableFlags) *Resets {
	return &Resets{
		flags: flags, serving: serving{}, left: map[endpointKey]state.ServiceName{}, gone: map[endpointKey]reset{}, drains: newDrains(),
	}
}

// ResetGone sets whether connections to all endpoints that are gone are reset. The next plan has to be a comparison.
func (r *Resets) ResetGone(on bool) {
	if r.rules.gone = on; !on {
		clear(r.serving)
		clear(r.left)
	}
}

// UseDeadlines has connections reset whose service sets a deadline. It reports whether they were not before. The next plan then has to be a
// comparison.
func (r *Resets) UseDeadlines() (isNew bool) {
	isNew = !r.rules.drains
	r.rules.drains = true
	return isNew
}

func (r *Resets) of(f state.Family) *resetState {
	if f == state.IPv6 {
		return &r.state[1]
	}
	return &r.state[0]
}

// Serving are the endpoints that serve once a plan is carried out.
type Serving struct {
	r     *Resets
	moves moves
	whole serving // in place of moves, if it is not nil
	// drains is what changes of the ways to endpoints, and services are what a comparison had to make.
	drains   drainMoves
	services []*state.Service
}

// After returns which endpoints serve after a plan. want is what a comparison had to make, nil for a change.
func (r *Resets) After(p *Plan, want *Desired) *Serving {
	s := &Serving{r: r, drains: r.drains.movesAfter(p)}
	if want != nil {
		s.services = want.All()
	}
	if r.rules.gone {
		s.moves = movesOf(p.Changed())
		if want != nil {
			s.whole = countServing(s.services)
		}
	}
	return s
}

func (s *Serving) count(k endpointKey) int32 {
	if s.whole != nil {
		return s.whole[k]
	}
	return s.r.serving[k] + s.moves[k].by
}

// back returns the endpoints that are back: connections to them must not be reset when the plan is carried out.
func (s *Serving) back() (list []endpointKey) {
	if len(s.r.gone) == 0 {
		return nil
	}
	if s.whole != nil {
		for k := range s.r.gone {
			if s.whole[k] > 0 {
				list = append(list, k)
			}
		}
	} else {
		for k := range s.moves {
			if _, ok := s.r.gone[k]; ok && s.count(k) > 0 {
				list = append(list, k)
			}
		}
	}
	slices.SortFunc(list, endpointKey.compare)
	return list
}

// Commit notes that the plan was carried out.
func (s *Serving) Commit() {
	s.drains.commit()
	for k, m := range s.moves {
		if m.by < 0 {
			s.r.left[k] = m.from
		}
		if s.whole != nil {
			continue
		}
		if n := s.r.serving[k] + m.by; n == 0 {
			delete(s.r.serving, k)
		} else {
			s.r.serving[k] = n
		}
	}
	if s.whole != nil {
		s.r.serving = s.whole
	}
}

func (k endpointKey) compare(o endpointKey) int { return k.addrPort().Compare(o.addrPort()) }

// key returns the key in the set of endpoints.
func (k endpointKey) key() []byte { return appendAddrPort(nil, k.addrPort()) }

func endpointOf(f state.Family, key []byte) (k endpointKey, ok bool) {
	n := addrLen(f)
	if len(key) != n+4 {
		return endpointKey{}, false
	}
	addr, ok := netip.AddrFromSlice(key[:n])
	return endpointKeyOf(netip.AddrPortFrom(addr, binary.BigEndian.Uint16(key[n:]))), ok
}

// appendAddrPort appends an address and a port as keys have them.
func appendAddrPort(key []byte, a netip.AddrPort) []byte {
	return append(binary.BigEndian.AppendUint16(append(key, a.Addr().AsSlice()...), a.Port()), 0, 0)
}

// ResetPlan is a change of the tables of resets. It is written into one batch, and becomes part of the Resets once that is carried out.
type ResetPlan struct {
	r   *Resets
	now time.Time
	// replaced are tables that are deleted first, as they were found.
	replaced [2]*nft.Skeleton
	// found is set for tables that exist, replaced or not.
	found [2]bool
	del   []endpointKey
	add   []goneElement
	// delDraining are ways whose connections no longer wait for a deadline.
	delDrained, delDraining []way
	addDrained              []drainedElement
}

type goneElement struct {
	endpointKey
	reset
}

func (r *Resets) plan(now time.Time) *ResetPlan {
	return &ResetPlan{r: r, now: now, found: [2]bool{r.state[0].exists, r.state[1].exists}}
}

// Clear plans that connections to endpoints which serve again are no longer reset.
func (r *Resets) Clear(s *Serving, now time.Time) *ResetPlan {
	p := r.plan(now)
	p.del, p.delDrained = s.back(), s.drains.back.sorted()
	return p
}

// Expire forgets what has timed out, and plans that tables go in which nothing is left.
func (r *Resets) Expire(now time.Time) *ResetPlan {
	for k, g := range r.gone {
		if g.isOver(now) {
			r.forget(k)
		}
	}
	for w, v := range r.drains.held.all() {
		if v.isOver(now) {
			r.drains.forget(w, v)
		}
	}
	return r.plan(now)
}

func (r *Resets) forget(k endpointKey) {
	if _, ok := r.gone[k]; ok {
		delete(r.gone, k)
		r.of(k.family()).gone--
	}
}

// Lost plans that connections to the endpoints are reset that have left a service and serve no other. It returns those endpoints, also those
// for which there is no room. It also plans the deadlines of endpoints that have left a service with a deadline.
func (r *Resets) Lost(now time.Time) (p *ResetPlan, gone []netip.AddrPort) {
	p = r.plan(now)
	r.drains.set(p)
	if len(r.left) == 0 {
		return p, nil
	}
	room := [2]int{MaxGone - r.state[0].gone, MaxGone - r.state[1].gone}
	for _, k := range slices.SortedFunc(maps.Keys(r.left), endpointKey.compare) {
		if _, is := r.gone[k]; is || r.serving[k] > 0 {
			continue
		}
		gone = append(gone, k.addrPort())
		i := index(k.family())
		if room[i] == 0 {
			r.Dropped.Gone++
			continue
		}
		room[i]--
		p.add = append(p.add, goneElement{k, reset{from: r.left[k], until: now.Add(GoneTimeout)}})
	}
	clear(r.left)
	return p, gone
}

func index(f state.Family) int {
	if f == state.IPv6 {
		return 1
	}
	return 0
}

// Found is what the kernel holds of a table of resets.
type Found struct {
	Family   state.Family
	Skeleton *nft.Skeleton // nil if there is no table
	// Elems are the elements of the sets that [SetsIn] names.
	Elems map[string][]nft.Elem
}

// SetsIn names the sets of a table of resets that are as this version makes them.
func SetsIn(f state.Family, sk *nft.Skeleton) (names []string) {
	for _, s := range resetSets(f, resetRules{gone: true, drains: true}) {
		if sk.HasSet(resetTable(f), &s) {
			names = append(names, s.Name)
		}
	}
	return names
}

// Compare plans the difference between the kernel's content and the endpoints to reset, given the endpoints that are to
// serve. If inherited is set, it keeps all elements of an earlier process that it has rules for, except the endpoints that are to serve. Deadlines
// are kept as they are.
func (r *Resets) Compare(s *Serving, found []Found, inherited bool, now time.Time) *ResetPlan {
	p := r.plan(now)
	for i := range found { // the rules of both tables depend on the deadlines of either
		if inherited && r.drains.inherit(p, &found[i]) {
			r.rules.drains = true
		}
	}
	for i := range found {
		r.compareTable(p, s, &found[i], inherited)
	}
	if r.rules.gone {
		p.del = append(p.del, s.back()...)
	} else {
		p.del = append(p.del, slices.Collect(maps.Keys(r.gone))...)
	}
	p.delDrained = append(p.delDrained, s.drains.back.sorted()...)
	slices.SortFunc(p.add, func(a, b goneElement) int { return a.compare(b.endpointKey) })
	slices.SortFunc(p.addDrained, func(a, b drainedElement) int { return a.compare(b.way) })
	return p
}

func (r *Resets) compareTable(p *ResetPlan, s *Serving, in *Found, inherited bool) {
	i, of := index(in.Family), r.of(in.Family)
	p.found[i] = in.Skeleton != nil
	there := map[endpointKey]bool{}
	for _, e := range in.Elems[SetGone] {
		k, ok := endpointOf(in.Family, e.Key)
		if !ok || e.Expires == 0 {
			continue
		}
		if inherited && r.rules.gone && s.count(k) == 0 && of.gone < MaxGone {
			r.gone[k] = reset{parseName(e.Comment), p.now.Add(time.Duration(e.Expires) * time.Millisecond), e.Packets}
			of.gone++
		}
		if _, known := r.gone[k]; known {
			there[k] = true
		} else {
			p.del = append(p.del, k)
		}
	}
	isThere := r.drains.compare(p, in)
	for _, w := range openWays(r.drains.held, s.services) {
		if w.family() == in.Family {
			s.drains.back.put(w, true)
		}
	}
	if t := resetPlan(in.Family, r.rules); in.Skeleton == nil || !t.isIn(in.Skeleton, r.flags) {
		p.replaced[i] = in.Skeleton
		clear(there)
		isThere = func(way, drained) bool { return false }
	}
	for k, g := range r.gone {
		// An endpoint that is about to time out may be gone already.
		if r.rules.gone && k.family() == in.Family && !there[k] && s.count(k) == 0 && g.until.After(p.now.Add(time.Second)) {
			p.add = append(p.add, goneElement{k, g})
		}
	}
	for w, v := range r.drains.held.all() {
		if w.family() == in.Family && !isThere(w, v) && !s.drains.back.has(w) && v.until.After(p.now.Add(time.Second)) {
			p.addDrained = append(p.addDrained, drainedElement{w, v})
		}
	}
}

// parseName is the reverse of ServiceName.String.
func parseName(s string) state.ServiceName {
	namespace, name, _ := strings.Cut(s, "/")
	return state.ServiceName{Namespace: namespace, Name: name}
}

// GiveUp makes it a plan after which nothing is reset.
func (p *ResetPlan) GiveUp() {
	p.del, p.add = slices.Collect(maps.Keys(p.r.gone)), nil
	p.delDrained, p.delDraining, p.addDrained = p.r.drains.held.sorted(), nil, nil
}

// Back returns the keys in the sets of endpoints of a family that the plan deletes, to read their counters before.
func (p *ResetPlan) Back(f state.Family) map[string][][]byte {
	return map[string][][]byte{SetGone: keysOf(f, slices.Values(p.del)), SetDrained: keysOf(f, slices.Values(p.delDrained))}
}

// Keys returns the keys in the sets of endpoints of a family.
func (r *Resets) Keys(f state.Family) map[string][][]byte {
	return map[string][][]byte{SetGone: keysOf(f, maps.Keys(r.gone)), SetDrained: keysOf(f, slices.Values(r.drains.held.sorted()))}
}

func keysOf[K interface {
	family() state.Family
	key() []byte
}](f state.Family, of iter.Seq[K]) (keys [][]byte) {
	for k := range of {
		if k.family() == f {
			keys = append(keys, k.key())
		}
	}
	return keys
}

// left returns how many endpoints and ways of a family are held after the plan.
func (p *ResetPlan) left(i int) int {
	n := p.r.state[i].gone + p.r.drains.state[i].count
	for _, k := range p.del {
		if _, is := p.r.gone[k]; is && index(k.family()) == i {
			n--
		}
	}
	for _, e := range p.add {
		if _, is := p.r.gone[e.endpointKey]; !is && index(e.family()) == i {
			n++
		}
	}
	deleted := ways[bool]{} // a plan may name one twice
	for _, w := range p.delDrained {
		if p.r.drains.held.has(w) && !deleted.has(w) && index(w.family()) == i {
			n--
			deleted.put(w, true)
		}
	}
	for _, e := range p.addDrained {
		if !p.r.drains.held.has(e.way) && index(e.family()) == i {
			n++
		}
	}
	return n
}

// Write puts the plan into a batch.
func (p *ResetPlan) Write(b *nft.Batch) {
	for i, f := range families {
		t, exists := resetPlan(f, p.r.rules), p.found[i]
		switch replaced := p.replaced[i]; {
		case p.left(i) == 0:
			flags := p.r.flags
			if replaced != nil {
				flags = replaced.Flags()
			}
			if exists {
				DeleteTable(b, t.table, flags)
			}
			continue
		case !exists || replaced != nil:
			t.replace, exists = replaced, false
			t.write(b, p.r.flags)
		}
		for _, k := range p.del {
			if k.family() == f && exists {
				deleteElem(b, t.table, SetGone, k.key())
			}
		}
		for _, e := range p.add {
			if e.family() == f {
				b.AddElem(t.table, SetGone, nft.Elem{
					Key: e.key(), Timeout: millis(GoneTimeout), Expires: millis(min(e.until.Sub(p.now), GoneTimeout)), Comment: e.from.String(),
				})
			}
		}
		if p.r.rules.drains {
			p.writeDrained(b, f, exists)
		}
	}
}

// deleteElem puts the deletion of an element into a batch. The element may have timed out. Adding it first keeps the deletion from failing.
func deleteElem(b *nft.Batch, t nft.Table, set string, key []byte) {
	b.AddElem(t, set, nft.Elem{Key: key})
	b.DeleteElem(t, set, nft.Elem{Key: key})
}

func millis(d time.Duration) uint64 { return uint64(max(d/time.Millisecond, 1)) }

// Commit notes that the plan was carried out.
func (p *ResetPlan) Commit() {
	r := p.r
	for i := range r.state {
		made := p.replaced[i] != nil || !p.found[i]
		r.state[i].exists = p.left(i) > 0
		if made || !r.state[i].exists {
			r.state[i].packets = 0
		}
	}
	for _, k := range p.del {
		r.forget(k)
	}
	for _, e := range p.add {
		if _, is := r.gone[e.endpointKey]; !is {
			r.of(e.family()).gone++
		}
		e.packets = 0
		r.gone[e.endpointKey] = e.reset
	}
	for _, w := range p.delDrained {
		r.drains.remove(w)
	}
	for _, e := range p.addDrained {
		e.packets = 0
		r.drains.hold(e.way, e.drained)
	}
}

// Exists returns the families whose tables exist.
func (r *Resets) Exists() (list []state.Family) {
	for i, f := range families {
		if r.state[i].exists {
			list = append(list, f)
		}
	}
	return list
}

// Counted takes down the counts of the rules of a table, and reports whether they have grown. Only then are the elements worth reading.
func (r *Resets) Counted(f state.Family, sk *nft.Skeleton) (more bool) {
	var n uint64
	for chain := range resetHooks {
		n += sk.Packets(chain)
	}
	more = n != r.of(f).packets
	r.of(f).packets = n
	return more
}

// Count takes down the counts of elements of a set of endpoints. It calls fn with each increase, for the service that the endpoint left.
func (r *Resets) Count(f state.Family, set string, elems []nft.Elem, fn func(state.ServiceName, uint64)) {
	for _, e := range elems {
		if set == SetDrained {
			w, ok := wayOf(f, e.Key)
			if v, is := r.drains.held[w.endpoint][w.frontend]; ok && is && v.count(e, fn) {
				r.drains.held.put(w, v)
			}
			continue
		}
		k, ok := endpointOf(f, e.Key)
		if g, is := r.gone[k]; ok && is && g.count(e, fn) {
			r.gone[k] = g
		}
	}
}

// CountedSets are the names of the sets of endpoints that count.
func CountedSets() []string { return []string{SetGone, SetDrained} }

// resetPlan returns the table of resets of a family.
func resetPlan(f state.Family, rules resetRules) tablePlan {
	return tablePlan{table: resetTable(f), sets: resetSets(f, rules), chains: resetChains(f, rules)}
}

func resetSets(f state.Family, rules resetRules) (sets []nft.Set) {
	endpoint := []nft.Type{addrType(f), nft.TypePort}
	if rules.gone {
		sets = append(sets, nft.Set{Name: SetGone, Key: endpoint, Expiring: true, Counted: true})
	}
	if rules.drains {
		way := slices.Concat(endpoint, endpoint)
		sets = append(sets, nft.Set{Name: SetDrained, Key: way, Expiring: true, Counted: true}, nft.Set{Name: SetDraining, Key: way, Expiring: true})
	}
	return sets
}

// resetChains returns the chains of a table of resets.
//
// Only translated connections are reset: others know the endpoint by its own address. Replies do not count, whose destination may happen
// to be such an address and port. A reset of the client's own passes, so that the other end gets to know it.
func resetChains(f state.Family, rules resetRules) []nft.Chain {
	sk := skeleton{f: f}
	// nft: tcp flags ! rst ct direction original ct status dnat …
	forth := join(sk.isProto(state.TCP), lacksFlags(tcpReset), one(nft.Ct(nft.Reg0, nft.CtDirection), nft.Equal(nft.Reg0, nft.OriginalDirection())), dnatted())
	// nft: … counter packets … reject with tcp reset
	reset := one(nft.Counter(), nft.RejectTCP())
	var list []rule
	if rules.gone {
		// nft: … ip daddr . tcp dport @gone …
		list = append(list, join(forth, sk.load(nft.Reg0, dstAddr, dstPort), one(nft.InSet(nft.Reg0, SetGone)), reset))
	}
	if rules.drains {
		way := sk.load(nft.Reg0, dstAddr, dstPort, origDstAddr, origDstPort)
		// nft: … ip daddr . tcp dport . ct original ip daddr . ct original proto-dst @drained …
		// nft: … ip daddr . tcp dport . ct original ip daddr . ct original proto-dst != @draining …
		list = append(list, join(forth, way, one(nft.InSet(nft.Reg0, SetDrained)), way, one(nft.NotInSet(nft.Reg0, SetDraining)), reset))
	}
	var chains []nft.Chain
	for _, name := range slices.Sorted(maps.Keys(resetHooks)) {
		hook := &nft.Hook{Type: "filter", Number: resetHooks[name], Priority: priorityFilter}
		chains = append(chains, nft.Chain{Name: name, Hook: hook, Rules: list})
	}
	return chains
}
