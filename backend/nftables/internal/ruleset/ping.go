package ruleset

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Addresses that answer echo requests of ICMP. An address answers a client if one of its frontends with [state.Frontend.Ping] admits the client and
// forwards its connections. Several frontends, also of different Services, may have an address in common, and so their elements are counted.
//
// A comment that begins with "nft:" shows a rule, as in skeleton.go.

// pingShape is what the rules about echo requests in a table depend on.
type pingShape struct {
	// used is set if an address answers, or would if it had endpoints.
	used bool
	// lengths are the prefix lengths of clients in use.
	lengths lengths
}

func (s *pingShape) needs(id setID) (isNew bool) {
	isNew = !s.used
	s.used = true
	if id.kind == pingAllowed {
		isNew = s.lengths.needs(id.arg)
	}
	return isNew
}

func (s *pingShape) merge(o *pingShape) {
	s.used = s.used || o.used
	for n, used := range o.lengths {
		s.lengths[n] = s.lengths[n] || used
	}
}

// read takes into account that a table has a set of this name.
func (s *pingShape) read(f state.Family, name string) {
	if id := (setID{kind: pingIPs}); name == id.name() {
		s.needs(id)
	}
	if n, ok := suffixNumber(name, kindNames[pingAllowed]+"-"); ok && int(n) <= 8*addrLen(f) {
		s.needs(setID{kind: pingAllowed, arg: n})
	}
}

// sets returns the sets of the shape.
func (s *pingShape) sets() (ids []setID) {
	if !s.used {
		return nil
	}
	ids = append(ids, setID{kind: pingDropIPs})
	for v := range view(clientViews) {
		ids = append(append(ids, setID{view: v, kind: pingIPs}), s.allowed(v)...)
	}
	return ids
}

// allowed returns the sets of clients in a view.
func (s *pingShape) allowed(v view) (ids []setID) {
	for n, used := range s.lengths {
		if used {
			ids = append(ids, setID{view: v, kind: pingAllowed, arg: uint32(n)})
		}
	}
	return ids
}

// isPing reports whether such sets are about echo requests.
func (k kind) isPing() bool { return k == pingIPs || k == pingAllowed || k == pingDropIPs }

// answerer returns the address of the node that answers echo requests, the zero Addr if the node has none of the family. The expression redirect
// would choose an address of the interface, and drop the packet if that has none. Interfaces of pods often have none.
func (sk *skeleton) answerer() netip.Addr {
	i := slices.IndexFunc(sk.node.Addresses, func(a netip.Addr) bool { return state.FamilyOf(a) == sk.f })
	if i < 0 {
		return netip.Addr{}
	}
	return sk.node.Addresses[i]
}

// toPing leads echo requests to the chain that answers them. Errors of ICMP belong to a connection, and never come here.
func (sk *skeleton) toPing() []rule {
	if !sk.shape.ping[index(sk.f)].used {
		return nil
	}
	protocol, echo := icmpEcho(sk.f)
	// nft: icmp type echo-request jump ping
	return []rule{join(sk.load(nft.Reg0, proto), one(nft.Equal(nft.Reg0, []byte{protocol}),
		nft.Payload(nft.Reg0, nft.TransportHeader, 0, 1), nft.Equal(nft.Reg0, []byte{echo}), nft.Jump(chainPing)))}
}

// icmpEcho returns the number of ICMP in a family, and the type of its echo requests (RFC 792, RFC 4443).
func icmpEcho(f state.Family) (protocol, echo byte) {
	if f == state.IPv6 {
		return 58, 128
	}
	return 1, 8
}

// ping returns the chains that answer echo requests, or drop them. A commit may move an address from one set to another that was asked before. So all
// are asked again before the drop. The node answers at its own addresses anyway. Without an address that could answer, the chains are empty.
func (sk *skeleton) ping() []nft.Chain {
	if !sk.shape.ping[index(sk.f)].used {
		return nil
	}
	first, insideChain := nft.Chain{Name: chainPing}, nft.Chain{Name: inside.infix() + chainPing}
	if sk.answerer().IsValid() {
		first.Rules = slices.Concat(sk.answers(common), sk.insideGoto(insideChain.Name), sk.unanswered(outside))
		insideChain.Rules = sk.unanswered(inside)
	}
	return []nft.Chain{first, insideChain}
}

// unanswered returns the rules after the first rules of the common view.
func (sk *skeleton) unanswered(v view) []rule {
	again := sk.answers(v)
	// nft: ip daddr @ping-drop-ips fib daddr type != local drop
	drop := join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: pingDropIPs}.name())), sk.notLocal(), one(nft.Drop()))
	return slices.Concat(again, sk.answers(common), again, []rule{drop})
}

// answers returns the rules that answer clients of a view.
func (sk *skeleton) answers(v view) []rule {
	to := sk.answerer()
	answer := one(nft.Immediate(nft.Reg0, to.AsSlice()), nft.DNATAddr(family(sk.f), nft.Reg0))
	// nft: ip daddr @…ping-ips dnat to 192.0.2.1
	rules := []rule{join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{view: v, kind: pingIPs}.name())), answer)}
	for _, id := range sk.shape.ping[index(sk.f)].allowed(v) {
		// nft: ip daddr . ip saddr & 255.255.0.0 @…ping-allowed-16 dnat to 192.0.2.1
		// nft: ip daddr . ip saddr @…ping-allowed-32 dnat to 192.0.2.1
		key := sk.load(nft.Reg0, dstAddr, srcAddr)
		if n, bits := int(id.arg), 8*addrLen(sk.f); n < bits {
			key = append(key, nft.MaskBytes(nft.Reg0+sk.addrRegs(), lengthMask(n, bits)))
		}
		rules = append(rules, join(key, one(nft.InSet(nft.Reg0, id.name())), answer))
	}
	return rules
}

// pingPort appends the elements about echo requests of the frontends of a port.
func (r *renderer) pingPort(p *state.Port) {
	for i := range p.Frontends {
		if f := &p.Frontends[i]; f.Ping && f.Kind != state.NodePort {
			r.ping(p, f)
		}
	}
}

func (r *renderer) ping(p *state.Port, f *state.Frontend) {
	add := func(v view, k kind, arg uint32, client netip.Addr) {
		e := elementKey{family: p.Family, set: setID{view: v, kind: k, arg: arg}}
		key := writer{buf: e.key[:]}
		key.addr(f.Addr)
		if client.IsValid() {
			key.addr(client)
		}
		r.pings = append(r.pings, e)
	}
	insideForwards, outsideForwards := forwards(p, f)
	v := common
	switch {
	case insideForwards && !outsideForwards:
		v = inside
	case outsideForwards && !insideForwards:
		v = outside
	}
	if f.Restricted || !insideForwards || !outsideForwards {
		add(common, pingDropIPs, 0, netip.Addr{})
	}
	switch {
	case !insideForwards && !outsideForwards:
	case f.Restricted:
		for _, src := range f.Sources {
			add(v, pingAllowed, uint32(src.Bits()), src.Masked().Addr())
		}
	default:
		add(v, pingIPs, 0, netip.Addr{})
	}
}

// forwards reports whether a frontend forwards connections of clients inside, and of those outside.
func forwards(p *state.Port, f *state.Frontend) (inside, outside bool) {
	t := p.Traffic(f.Kind)
	return t.Inside.Verdict == state.Forward, t.Outside.Verdict == state.Forward
}

// pingChange appends the elements about echo requests of two versions of a port, unless they are the same.
func (p *Plan) pingChange(was, is *state.Port) {
	if samePings(was, is) {
		return
	}
	p.old.pingPort(was)
	p.new.pingPort(is)
}

func samePings(a, b *state.Port) bool {
	if len(a.Frontends) != len(b.Frontends) {
		return false
	}
	same := len(a.Frontends) == 0 || &a.Frontends[0] == &b.Frontends[0]
	for i := range a.Frontends {
		f, g := &a.Frontends[i], &b.Frontends[i]
		if !f.Ping && !g.Ping {
			continue
		}
		inside, outside := forwards(a, f)
		if i, o := forwards(b, g); i != inside || o != outside || !same && !f.Equal(*g) {
			return false
		}
	}
	return true
}

// countPings counts what needs elements about echo requests, n times each. It returns the elements that are needed for the first time, and the others.
func (p *Plan) countPings(keys []elementKey, n int32) (first, again []elementKey) {
	for _, k := range keys {
		if p.pings == nil {
			p.pings = map[elementKey]int32{}
		}
		if p.pings[k] += n; p.pings[k] == n {
			first = append(first, k)
		} else {
			again = append(again, k)
		}
	}
	return first, again
}

// preservePings keeps the elements about echo requests of the addresses of services that are preserved.
func (p *Plan) preservePings(ks *kernelState, want Desired) {
	addresses := map[string]bool{}
	for _, s := range want.Preserved.Services {
		for _, f := range s.Frontends() {
			if f.Kind != state.NodePort {
				addresses[string(f.Addr.AsSlice())] = true
			}
		}
	}
	isTheirs := func(k elementKey) bool { return k.set.kind.isPing() && addresses[string(k.key[:addrLen(k.family)])] }
	for k := range p.pings {
		if isTheirs(k) {
			p.pings[k]++ // so that it stays when no other service needs it
		}
	}
	for k := range ks.elements {
		if isTheirs(k) {
			p.keep(ks, k.element())
			p.countPings([]elementKey{k}, 1)
		}
	}
}

// element returns the element, without data.
func (k elementKey) element() element { return element{family: k.family, set: k.set, key: k.key} }
