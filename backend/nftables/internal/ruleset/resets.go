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

// ResetsName is the name of the table, in each family, whose rules reset connections that are translated to endpoints that are gone. A
// table exists only while there are such endpoints, because without the table, packets pass no further hook. So the rules have a table of
// their own.
const ResetsName = "switchyard-resets"

// ResetTables returns the tables of resets, for IPv4 and for IPv6.
func ResetTables() []nft.Table {
	return []nft.Table{resetTable(state.IPv4), resetTable(state.IPv6)}
}

func resetTable(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: ResetsName} }

// setGone is the set in the tables of resets: address . port of endpoints that are gone.
const setGone = "gone"

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
	serving serving
	// left are endpoints that have left a service, from that which they left last. They are gone if they do not serve another.
	left  map[endpointKey]state.ServiceName
	gone  map[endpointKey]goneEndpoint
	state [2]resetState // by family
	// Dropped counts endpoints that were not reset because there were too many.
	Dropped int
}

// goneEndpoint is an endpoint that is gone, and connections to which are reset.
type goneEndpoint struct {
	from    state.ServiceName
	until   time.Time
	packets uint64 // that were reset, as far as they are counted
}

// resetState is about the table of one family.
type resetState struct {
	exists bool
	gone   int
	// packets is what the rules had counted when the elements were read last.
	packets uint64
}

// NewResets returns one that knows nothing of the kernel yet. Tables get the flags.
func NewResets(flags nft.TableFlags) *Resets {
	return &Resets{flags: flags, serving: serving{}, left: map[endpointKey]state.ServiceName{}, gone: map[endpointKey]goneEndpoint{}}
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
}

// After returns which endpoints serve after a plan. want is what a comparison had to make, nil for a change.
func (r *Resets) After(p *Plan, want *Desired) *Serving {
	s := &Serving{r: r, moves: movesOf(p.Changed())}
	if want != nil {
		s.whole = countServing(want.All())
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
}

type goneElement struct {
	endpointKey
	goneEndpoint
}

func (r *Resets) plan(now time.Time) *ResetPlan {
	return &ResetPlan{r: r, now: now, found: [2]bool{r.state[0].exists, r.state[1].exists}}
}

// Clear plans that connections to endpoints which serve again are no longer reset.
func (r *Resets) Clear(s *Serving, now time.Time) *ResetPlan {
	p := r.plan(now)
	p.del = s.back()
	return p
}

// Expire forgets what has timed out, and plans that tables go in which nothing is left.
func (r *Resets) Expire(now time.Time) *ResetPlan {
	for k, g := range r.gone {
		if !g.until.After(now) {
			r.forget(k)
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
// for which there is no room.
func (r *Resets) Lost(now time.Time) (p *ResetPlan, gone []netip.AddrPort) {
	p = r.plan(now)
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
			r.Dropped++
			continue
		}
		room[i]--
		p.add = append(p.add, goneElement{k, goneEndpoint{from: r.left[k], until: now.Add(GoneTimeout)}})
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
	Gone     []nft.Elem    // of the set of endpoints
}

// HasSets reports whether a table of resets has its set as this version makes it.
func HasSets(f state.Family, sk *nft.Skeleton) bool {
	return !slices.ContainsFunc(resetSets(f), func(s nft.Set) bool { return !sk.HasSet(resetTable(f), &s) })
}

// Compare plans the difference between the kernel's content and the endpoints to reset, given the endpoints that are to
// serve. If inherited is set, it keeps all elements of an earlier process, except the endpoints that are to serve.
func (r *Resets) Compare(s *Serving, found []Found, inherited bool, now time.Time) *ResetPlan {
	p := r.plan(now)
	for i := range found {
		r.compareTable(p, s, &found[i], inherited)
	}
	p.del = append(p.del, s.back()...)
	slices.SortFunc(p.add, func(a, b goneElement) int { return a.compare(b.endpointKey) })
	return p
}

func (r *Resets) compareTable(p *ResetPlan, s *Serving, in *Found, inherited bool) {
	i, of := index(in.Family), r.of(in.Family)
	p.found[i] = in.Skeleton != nil
	there := map[endpointKey]bool{}
	for _, e := range in.Gone {
		k, ok := endpointOf(in.Family, e.Key)
		if !ok || e.Expires == 0 {
			continue
		}
		if inherited && s.count(k) == 0 && of.gone < MaxGone {
			r.gone[k] = goneEndpoint{parseName(e.Comment), p.now.Add(time.Duration(e.Expires) * time.Millisecond), e.Packets}
			of.gone++
		}
		if _, known := r.gone[k]; known {
			there[k] = true
		} else {
			p.del = append(p.del, k)
		}
	}
	if in.Skeleton == nil || !resetsAre(in.Family, in.Skeleton, r.flags) {
		p.replaced[i] = in.Skeleton
		clear(there)
	}
	for k, g := range r.gone {
		// An endpoint that is about to time out may be gone already.
		if k.family() == in.Family && !there[k] && s.count(k) == 0 && g.until.After(p.now.Add(time.Second)) {
			p.add = append(p.add, goneElement{k, g})
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
}

// Back returns the keys in the set of endpoints of a family that the plan deletes, to read their counters before.
func (p *ResetPlan) Back(f state.Family) [][]byte { return keysOf(f, slices.Values(p.del)) }

// Gone returns the keys in the set of endpoints of a family.
func (r *Resets) Gone(f state.Family) [][]byte { return keysOf(f, maps.Keys(r.gone)) }

func keysOf(f state.Family, endpoints iter.Seq[endpointKey]) (keys [][]byte) {
	for k := range endpoints {
		if k.family() == f {
			keys = append(keys, k.key())
		}
	}
	return keys
}

// left returns how many endpoints of a family are gone after the plan.
func (p *ResetPlan) left(i int) int {
	n := p.r.state[i].gone
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
	return n
}

// Write puts the plan into a batch.
func (p *ResetPlan) Write(b *nft.Batch) {
	for i, f := range families {
		t, exists := resetTable(f), p.found[i]
		if exists && (p.replaced[i] != nil || p.left(i) == 0) {
			flags := p.r.flags
			if sk := p.replaced[i]; sk != nil {
				flags = sk.Flags()
			}
			b.AddTableAs(t, flags) // it may be gone by now
			b.DeleteTable(t)
			exists = false
		}
		if p.left(i) == 0 {
			continue
		}
		if !exists {
			p.writeTable(b, f)
		}
		for _, k := range p.del {
			if k.family() == f && exists {
				// The element may have timed out. Adding it first keeps the deletion from failing.
				b.AddElem(t, setGone, nft.Elem{Key: k.key()})
				b.DeleteElem(t, setGone, nft.Elem{Key: k.key()})
			}
		}
		for _, e := range p.add {
			if e.family() == f {
				b.AddElem(t, setGone, nft.Elem{
					Key: e.key(), Timeout: millis(GoneTimeout), Expires: millis(min(e.until.Sub(p.now), GoneTimeout)), Comment: e.from.String(),
				})
			}
		}
	}
}

func millis(d time.Duration) uint64 { return uint64(max(d/time.Millisecond, 1)) }

func (p *ResetPlan) writeTable(b *nft.Batch, f state.Family) {
	t := resetTable(f)
	b.AddTableAs(t, p.r.flags)
	for _, s := range resetSets(f) {
		b.AddSet(t, &s)
	}
	for _, c := range resetChains(f) {
		b.AddChain(t, &c)
		for _, r := range c.Rules {
			b.AddRule(t, c.Name, r)
		}
	}
}

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
		r.gone[e.endpointKey] = e.goneEndpoint
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

// Count takes down the counts of elements of the set of endpoints. It calls fn with each increase, for the service that the endpoint left.
func (r *Resets) Count(f state.Family, elems []nft.Elem, fn func(state.ServiceName, uint64)) {
	for _, e := range elems {
		k, ok := endpointOf(f, e.Key)
		g, is := r.gone[k]
		if !ok || !is || e.Packets <= g.packets {
			continue
		}
		fn(g.from, e.Packets-g.packets)
		g.packets = e.Packets
		r.gone[k] = g
	}
}

// GoneSet is the name of the set of endpoints, for those who read its counters.
func GoneSet() string { return setGone }

func resetSets(f state.Family) []nft.Set {
	addr := addrType(f)
	return []nft.Set{
		{Name: setGone, Key: []nft.Type{addr, nft.TypePort}, Expiring: true, Counted: true},
	}
}

// resetChains returns the chains of a table of resets.
//
// Only translated connections are reset: others know the endpoint by its own address. Replies do not count, whose destination may happen
// to be such an address and port. A reset of the client's own passes, so that the other end gets to know it.
func resetChains(f state.Family) []nft.Chain {
	sk := skeleton{f: f}
	// nft: tcp flags ! rst …
	tcp := join(sk.isProto(state.TCP), one(nft.Payload(nft.Reg0, nft.TransportHeader, 13, 1), nft.MaskBytes(nft.Reg0, []byte{tcpReset}),
		nft.Equal(nft.Reg0, []byte{0})))
	// nft: … counter packets … reject with tcp reset
	reset := one(nft.Counter(), nft.RejectTCP())
	rules := []rule{
		// nft: … ct direction original ct status dnat ip daddr . tcp dport @gone …
		join(tcp, one(nft.Ct(nft.Reg0, nft.CtDirection), nft.Equal(nft.Reg0, nft.OriginalDirection())), dnatted(),
			sk.load(nft.Reg0, dstAddr, dstPort), one(nft.InSet(nft.Reg0, setGone)), reset),
	}
	var chains []nft.Chain
	for _, name := range slices.Sorted(maps.Keys(resetHooks)) {
		hook := &nft.Hook{Type: "filter", Number: resetHooks[name], Priority: priorityFilter}
		chains = append(chains, nft.Chain{Name: name, Hook: hook, Rules: rules})
	}
	return chains
}

// resetsAre reports whether a table of resets is as this version makes it.
func resetsAre(f state.Family, sk *nft.Skeleton, flags nft.TableFlags) bool {
	t, chains := resetTable(f), resetChains(f)
	return HasSets(f, sk) && sk.Fits(t, flags, resetSets(f), chains) && !slices.ContainsFunc(chains, func(c nft.Chain) bool {
		_, same := sk.HasChain(t, &c)
		return !same
	})
}
