package ruleset

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// The skeleton is all that a table holds apart from elements. Rules look only at the first packet of a connection: base chains
// are of type nat, which later packets do not enter.
//
//	output ── [upstream] ── cluster-ip
//	prerouting ── [edge]
//	prerouting, output ── services ─┬─ service ── [firewall] [service-split] service-masquerade … pick a slot, reject, drop
//	                                │                  └─ service-masquerade, [service-outside] ─ [service-inside] … pick a slot, reject, drop
//	                                ├─ [cluster-ip] ── service, node-port, reject
//	                                ├─ node-port ── the same as service with keys that have no address
//	                                ├─ [ranges] ── range-… ── the same as service with keys that are numbers, if there are ranges (ranges.go)
//	                                └─ strays
//	postrouting, input ── translated ─ [firewall-again-…] [learn-…] (affinity); masquerade
//
// Before connections to frontends with affinity pick a slot, they pass service-…recall.
//
// A comment that begins with "nft:" shows a rule or a part of one, as in the output of "nft list ruleset". It is from the table of family
// ip, and … stands for the parts that differ. testdata/skeleton.nft has all of the rules in order, and tests compare both with the code.
//
// A commit may happen between the evaluation of two rules. No packet may see half of a commit. So a decision that depends on an earlier
// one is either made by a single lookup or checked again. That is why some rules below repeat.
type skeleton struct {
	settings *Settings
	f        state.Family
	shape    *shape
	node     *state.Node
}

// Names of chains.
const (
	chainServices      = "services"
	chainClusterIP     = "cluster-ip"
	chainFirewall      = "firewall"
	chainFirewallAgain = "firewall-again" // and one for each protocol
	chainReject        = "reject"
	chainTranslated    = "translated"
	chainStrays        = "strays"
	chainUpstream      = "upstream" // if there is a mark
	chainLearn         = "learn"    // likewise, in each space
	chainRecall        = "recall"   // in each space and view
	chainLoopback      = "loopback"
	chainPing          = "ping"         // and in the views of clients, if an address answers echo requests
	chainCountReject   = "count-reject" // in each space, if connections are counted
	chainCountDrop     = "count-drop"   // likewise
)

// Priorities of hooks: before connection tracking, and where addresses are translated (NF_IP_PRI_RAW, NF_IP_PRI_NAT_DST and
// NF_IP_PRI_NAT_SRC).
const (
	priorityRaw = -300
	priorityDst = -100
	prioritySrc = 100
)

type rule = []nft.Expr

// join makes one rule of parts.
func join(parts ...[]nft.Expr) rule {
	var r rule
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

func one(e ...nft.Expr) []nft.Expr { return e }

// chains returns all chains with their rules.
func (sk *skeleton) chains() []nft.Chain {
	nat := func(name string, hook uint32, priority int32, rules ...rule) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: "nat", Number: hook, Priority: priority}, Rules: rules}
	}
	// nft: ct status dnat jump translated
	translated := join(dnatted(), one(nft.Jump(chainTranslated)))
	chains := []nft.Chain{
		// nft: jump services
		nat("prerouting", nft.Prerouting, priorityDst, sk.withoutRelayMark(append(sk.toEdge(), one(nft.Jump(chainServices)))...)...),
		nat("output", nft.Output, priorityDst, sk.withoutRelayMark(append(sk.toUpstream(), one(nft.Jump(chainServices)))...)...),
		// Connections to endpoints on the node itself end here, without passing postrouting.
		nat("input", nft.Input, prioritySrc, translated),
		nat("postrouting", nft.Postrouting, prioritySrc,
			translated,
			// nft: meta mark & 0x00004000 != 0x00000000 ct status dnat meta mark set meta mark & 0xffffbfff masquerade fully-random
			join(sk.marked(), dnatted(), sk.setMark(0), one(nft.Masquerade())),
			// nft: ct status dnat ip saddr . ip daddr @hairpin masquerade fully-random
			join(dnatted(), sk.load(nft.Reg0, srcAddr, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: hairpin}.name()),
				nft.Masquerade())),
		),
		{Name: chainServices, Rules: slices.Concat(sk.refuseOnLoopback(), []rule{
			// nft: ip daddr @external-ips jump service
			// nft: ip daddr @external-ips jump external-ip
			join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: externalIPs}.name()),
				nft.Jump(sk.externalChain()))),
			// nft: ip daddr @cluster-ips goto cluster-ip
			join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: clusterIPs}.name()),
				nft.Goto(chainClusterIP))),
			sk.toNodePorts(),
		}, sk.toPing(), []rule{
			// nft: goto strays
			one(nft.Goto(chainStrays)),
		})},
		// A connection to a service's address that no frontend took lacks the port, if the address is still a service's. To ask only
		// here would refuse connections to a service that has just appeared, whose frontends were not there yet.
		{Name: chainClusterIP, Rules: slices.Concat([]rule{
			// nft: jump service
			one(nft.Jump(sk.spaceChain(inSpace(service)))),
			sk.toNodePorts(),
		}, sk.toPing(), sk.toRanges(), []rule{
			// nft: ip daddr @cluster-ips fib daddr type != local goto reject
			join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: clusterIPs}.name())), sk.notLocal(),
				one(nft.Goto(chainReject))),
			one(nft.Goto(chainStrays)),
		})},
		sk.firewall(inSpace(service)),
		sk.translated(),
		{Name: chainReject, Rules: append(sk.countOnLoopback(), []rule{
			// nft: reject with tcp reset
			join(sk.load(nft.Reg0, proto), one(nft.Equal(nft.Reg0, []byte{byte(state.TCP)}), nft.RejectTCP())),
			// nft: reject
			one(nft.RejectPort(family(sk.f))),
		}...)},
		sk.strays(),
	}
	for _, p := range protocols {
		chains = append(chains, sk.firewallAgain(p))
		if len(sk.shape.timeouts) > 0 {
			for _, s := range sk.shape.places() {
				chains = append(chains, sk.learn(s, p))
			}
		}
	}
	if sk.shape.loopback && sk.f == state.IPv4 {
		chains = append(chains, sk.loopback())
	}
	chains = append(append(chains, sk.upstream()...), sk.ping()...)
	for m := range masqueradeNames {
		if m != int(state.MasqueradeNever) {
			chains = append(chains, sk.markChain(state.Masquerade(m)))
		}
	}
	for _, s := range sk.shape.places() {
		chains = append(chains, sk.spaceChains(s)...)
	}
	return slices.Concat(chains, sk.rangeChains(), sk.relayChains(), sk.edgeChains())
}

// toUpstream lets a proxy reach the source of its state with any set of Services. These connections bypass all frontends except cluster
// IPs. The source may have a cluster IP, and no other Service can claim that address.
func (sk *skeleton) toUpstream() []rule {
	if sk.settings.UpstreamMark == 0 {
		return nil
	}
	// nft: meta mark & 0x00002000 != 0x00000000 goto upstream
	return []rule{join(sk.hasMark(sk.settings.UpstreamMark), one(nft.Goto(chainUpstream)))}
}

// upstream is the chain of marked connections.
func (sk *skeleton) upstream() []nft.Chain {
	if sk.settings.UpstreamMark == 0 {
		return nil
	}
	// nft: ip daddr @cluster-ips goto cluster-ip
	return []nft.Chain{{Name: chainUpstream, Rules: []rule{join(sk.load(nft.Reg0, dstAddr),
		one(nft.InSet(nft.Reg0, setID{kind: clusterIPs}.name()), nft.Goto(chainClusterIP)))}}}
}

// dnatted matches packets of connections whose destination is translated.
//
//	nft: … ct status dnat …
func dnatted() []nft.Expr {
	return one(nft.Ct(nft.Reg0, nft.CtStatus), nft.Mask(nft.Reg0, nft.CtStatusDNAT, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0}))
}

func family(f state.Family) nft.Family {
	if f == state.IPv6 {
		return nft.IPv6
	}
	return nft.IPv4
}

// field is a part of a packet that keys are made of.
type field uint8

const (
	srcAddr field = iota
	dstAddr
	proto
	dstPort
	srcPort
	origSrcAddr // of the connection, before translation
	origDstAddr
	origDstPort
)

func (sk *skeleton) addrRegs() uint32 {
	if sk.f == state.IPv6 {
		return 4
	}
	return 1
}

// load puts fields into consecutive registers.
func (sk *skeleton) load(reg uint32, fields ...field) []nft.Expr {
	size, srcOffset := uint32(4), uint32(12)
	ctSrc, ctDst := nft.CtSrcIP, nft.CtDstIP
	if sk.f == state.IPv6 {
		size, srcOffset = 16, 8
		ctSrc, ctDst = nft.CtSrcIP6, nft.CtDstIP6
	}
	var exprs []nft.Expr
	for _, f := range fields {
		width := uint32(1)
		switch f {
		case srcAddr:
			exprs, width = append(exprs, nft.Payload(reg, nft.NetworkHeader, srcOffset, size)), sk.addrRegs()
		case dstAddr:
			exprs, width = append(exprs, nft.Payload(reg, nft.NetworkHeader, srcOffset+size, size)), sk.addrRegs()
		case origSrcAddr:
			exprs, width = append(exprs, nft.CtOriginal(reg, ctSrc)), sk.addrRegs()
		case origDstAddr:
			exprs, width = append(exprs, nft.CtOriginal(reg, ctDst)), sk.addrRegs()
		case proto:
			exprs = append(exprs, nft.Meta(reg, nft.MetaL4Proto))
		case dstPort:
			exprs = append(exprs, nft.Payload(reg, nft.TransportHeader, 2, 2))
		case srcPort:
			exprs = append(exprs, nft.Payload(reg, nft.TransportHeader, 0, 2))
		case origDstPort:
			exprs = append(exprs, nft.CtOriginal(reg, nft.CtProtoDst))
		}
		reg += width
	}
	return exprs
}

// key loads a frontend's key, and returns the register behind it.
func (sk *skeleton) key(s where) (load []nft.Expr, next uint32) {
	switch s.space {
	case service:
		return sk.load(nft.Reg0, dstAddr, proto, dstPort), nft.Reg0 + sk.addrRegs() + 2
	case nodePort:
		return sk.load(nft.Reg0, proto, dstPort), nft.Reg0 + 2
	}
	return sk.rangeNumber(s.length, dstAddr, proto, dstPort), nft.Reg0 + 1
}

// origKey loads the key of the frontend of a connection that is translated already.
func (sk *skeleton) origKey(s where) []nft.Expr {
	switch s.space {
	case service:
		return sk.load(nft.Reg0, origDstAddr, proto, origDstPort)
	case nodePort:
		return sk.load(nft.Reg0, proto, origDstPort)
	}
	return sk.rangeNumber(s.length, origDstAddr, proto, origDstPort)
}

// in matches packets whose key is in a set of the space.
//
//	nft: … ip daddr . meta l4proto . th dport @service-… …
//	nft: … meta l4proto . th dport @node-port-… …
//	nft: … meta mark @range-… …
func (sk *skeleton) in(s where, id setID) []nft.Expr {
	id.space = s.space
	key, _ := sk.key(s)
	return join(key, one(nft.InSet(nft.Reg0, id.name())))
}

// savedMark holds the packet's mark for the moment in which a number passes through it.
const savedMark = nft.Reg0 + 15

// numbered matches packets whose key is in a map, and puts the number that it has there into dst. lookup ends with the number in dst.
// The nft tool cannot show a key that contains the result of a map, but one that contains the packet's mark. So the number
// passes through the mark, which is as it was before anything else happens to the packet.
//
//	nft: … meta mark set … map @… meta mark set meta mark …
func (sk *skeleton) numbered(dst uint32, lookup ...[]nft.Expr) []nft.Expr {
	return join(one(nft.Meta(savedMark, nft.MetaMark)), join(lookup...),
		one(nft.SetMeta(dst, nft.MetaMark), nft.Meta(dst, nft.MetaMark), nft.SetMeta(savedMark, nft.MetaMark)))
}

// hasNumber is numbered for the number of a frontend whose key was loaded, into the first register.
//
//	nft: … meta mark set ip daddr . meta l4proto . th dport map @service-restricted meta mark set meta mark …
//	nft: … meta mark set ct original ip daddr . meta l4proto . ct original proto-dst map @service-sticky meta mark set meta mark …
func (sk *skeleton) hasNumber(s where, k kind, key []nft.Expr) []nft.Expr {
	return sk.numbered(nft.Reg0, key, one(nft.MapLookup(nft.Reg0, nft.Reg0, setID{space: s.space, kind: k}.name())))
}

// pick translates the destination to that in a random one of mod slots.
//
//	nft: … dnat ip to ip daddr . meta l4proto . th dport . numgen random mod 3 offset 65536 map @service-slots
//	nft: … dnat ip to meta l4proto . th dport . numgen random mod 3 map @node-port-slots
//	nft: … dnat to meta mark . numgen random mod … map @range-slots
func (sk *skeleton) pick(s where, v view, mod uint32) []nft.Expr {
	key, index := sk.key(s)
	result := index + 1
	return join(key, one(
		nft.Random(index, mod, v.slotOffset()),
		nft.MapLookup(nft.Reg0, result, setID{space: s.space, kind: slots}.name()),
		sk.dnat(s, result),
	))
}

// dnat translates the destination to the endpoint in a register and those behind it. Connections to ranges keep their port.
func (sk *skeleton) dnat(s where, endpoint uint32) nft.Expr {
	if s.space == ranges {
		return nft.DNATAddr(family(sk.f), endpoint)
	}
	return nft.DNAT(family(sk.f), endpoint, endpoint+sk.addrRegs())
}

func (sk *skeleton) spaceChain(s where) string { return strings.TrimSuffix(s.chain(""), "-") }

func (sk *skeleton) splitChain(s where) string      { return s.chain("split") }
func (sk *skeleton) outsideChain(s where) string    { return s.chain("outside") }
func (sk *skeleton) insideChain(s where) string     { return s.chain("inside") }
func (sk *skeleton) masqueradeChain(s where) string { return s.chain("masquerade") }
func (sk *skeleton) firewallChain(s where) string {
	if s.space == ranges {
		return s.chain(chainFirewall)
	}
	return chainFirewall
}

// spaceChains returns the chains that decide about connections to the frontends of a space.
func (sk *skeleton) spaceChains(s where) []nft.Chain {
	// nft: … @…-split jump …-split
	toSplit := join(sk.in(s, setID{kind: split}), one(nft.Jump(sk.splitChain(s))))
	// nft: jump …-masquerade
	mark := one(nft.Jump(sk.masqueradeChain(s)))
	var rules []rule
	if s.space == ranges {
		// The packet may have the mark of another space.
		//
		//	nft: meta mark set meta mark & 0xffffbfff
		rules = append(rules, sk.setMark(0))
	}
	rules = append(rules, sk.admits(s)...)
	// A frontend may become split, or cease to be, together with its masquerade rule. Looking twice makes sure that a client from
	// outside never gets an endpoint elsewhere with the masquerade rule that is meant for local ones. If a commit changes a view before
	// the packet looks at it, the packet finds nothing there and comes to the other view.
	picks, big := sk.picks(s, common)
	rules = append(append(rules, toSplit, mark, toSplit), picks...)
	rules = append(rules, toSplit, sk.pick(s, common, 1))

	// The packet may carry the mark of the rule for frontends that are not split.
	//
	//	nft: meta mark set meta mark & 0xffffbfff
	//	nft: jump …-masquerade
	//	nft: … @…-split goto …-outside
	splitChain := nft.Chain{Name: sk.splitChain(s), Rules: []rule{sk.setMark(0), mark,
		join(sk.in(s, setID{kind: split}), one(nft.Goto(sk.outsideChain(s))))}}
	outsideChain := nft.Chain{Name: sk.outsideChain(s), Rules: sk.insideGoto(sk.insideChain(s))}
	outsidePicks, outsideBig := sk.picks(s, outside)
	outsideChain.Rules = append(outsideChain.Rules, outsidePicks...)
	insidePicks, insideBig := sk.picks(s, inside)

	m := nft.Chain{Name: sk.masqueradeChain(s)}
	usual := sk.settings.usualMasquerade(s.space, sk.f)
	for kind := range masqueradeNames {
		if k := state.Masquerade(kind); k != usual {
			// nft: … @…-masquerade-… goto mark-…
			// nft: … @…-masquerade-never return
			m.Rules = append(m.Rules, join(sk.in(s, setID{kind: masquerade, arg: uint32(kind)}), sk.markOrReturn(k)))
		}
	}
	if usual != state.MasqueradeNever {
		// nft: goto mark-…
		m.Rules = append(m.Rules, sk.markOrReturn(usual))
	}
	chains := []nft.Chain{{Name: sk.spaceChain(s), Rules: rules}, splitChain, outsideChain,
		{Name: sk.insideChain(s), Rules: insidePicks}, m}
	return slices.Concat(chains, big, outsideBig, insideBig, sk.countChains(s), sk.edgeView(s))
}

// admits returns the rules that every connection to a frontend passes first.
func (sk *skeleton) admits(s where) (rules []rule) {
	if sk.shape.counted {
		// Counts if the frontend is there, and goes on.
		//
		//	nft: … @…-counts
		rules = append(rules, sk.in(s, setID{kind: counts}))
	}
	key, _ := sk.key(s)
	if s.space != nodePort {
		// nft: meta mark set ip daddr . meta l4proto . th dport map @service-restricted meta mark set meta mark jump firewall
		// nft: meta mark set … map @range-restricted meta mark set meta mark jump range-…firewall
		rules = append(rules, join(sk.hasNumber(s, restricted, key), one(nft.Jump(sk.firewallChain(s)))))
	}
	return rules
}

// countChains are the chains that count connections before they end.
func (sk *skeleton) countChains(s where) []nft.Chain {
	if !sk.shape.counted {
		return nil
	}
	return []nft.Chain{
		// nft: … @…-reject-counts
		// nft: goto reject
		{Name: s.chain(chainCountReject), Rules: []rule{sk.in(s, setID{kind: rejectCounts}), one(nft.Goto(chainReject))}},
		// nft: … @…-drop-counts
		// nft: drop
		{Name: s.chain(chainCountDrop), Rules: []rule{sk.in(s, setID{kind: dropCounts}), one(nft.Drop())}},
	}
}

// rejects ends a rule whose connections to a frontend are rejected.
func (sk *skeleton) rejects(s where) []nft.Expr {
	if sk.shape.counted {
		return one(nft.Goto(s.chain(chainCountReject)))
	}
	return one(nft.Goto(chainReject))
}

// drops ends a rule whose connections to a frontend are dropped.
func (sk *skeleton) drops(s where) []nft.Expr {
	if sk.shape.counted {
		return one(nft.Goto(s.chain(chainCountDrop)))
	}
	return one(nft.Drop())
}

// picks returns the rules that choose an endpoint, or the verdict where there is none, and the chains that they need.
func (sk *skeleton) picks(s where, v view) (rules []rule, chains []nft.Chain) {
	rules = sk.toRelay(s, v)
	if len(sk.shape.timeouts) > 0 && v != edge { // no port of the edge has affinity
		chain := sk.recall(s, v)
		chains = append(chains, chain)
		key, _ := sk.key(s)
		// nft: meta mark set … map @…-sticky meta mark set meta mark jump …recall
		rules = append(rules, join(sk.hasNumber(s, sticky, key), one(nft.Jump(chain.Name))))
	}
	hashRules, hashChains := sk.hashing(s, v)
	rules, chains = append(rules, hashRules...), append(chains, hashChains...)
	for _, k := range classes {
		if k > sk.shape.class[s.space][v] {
			break
		}
		class := sk.in(s, setID{view: v, kind: endpoints, arg: k})
		if k <= exactClass {
			// nft: … @…endpoints-… dnat ip to … . numgen random mod … map @…-slots
			rules = append(rules, join(class, sk.pick(s, v, k)))
			continue
		}
		chain := nft.Chain{Name: s.chain(fmt.Sprintf("%spick-%d", v.infix(), k))}
		for range tries {
			// nft: dnat ip to … . numgen random mod 24 … @…-slots
			chain.Rules = append(chain.Rules, sk.pick(s, v, k))
		}
		chains = append(chains, chain)
		// nft: … @…endpoints-24 jump …pick-24
		rules = append(rules, join(class, one(nft.Jump(chain.Name))))
	}
	for _, k := range shareClasses {
		if k > sk.shape.share[s.space][v] {
			break
		}
		weighted := sk.in(s, setID{view: v, kind: shares, arg: k})
		// All slots are filled, except for the slots of a share that is refused. If a commit has come in between, slot 0 is right.
		//
		//	nft: dnat ip to … . numgen random mod 64 … @…-slots
		//	nft: … @…shares-64 goto …count-reject
		chain := nft.Chain{Name: s.chain(fmt.Sprintf("%sshare-%d", v.infix(), k)), Rules: []rule{sk.pick(s, v, k), join(weighted, sk.rejects(s))}}
		chains = append(chains, chain)
		// nft: … @…shares-64 jump …share-64
		rules = append(rules, join(weighted, one(nft.Jump(chain.Name))))
	}
	// Slot 0 is filled for every frontend that has endpoints. It serves frontends with one endpoint, and packets that found no slot above,
	// perhaps because a commit came in between. The rules look at the slot again in case the frontend has just got its first endpoint. They
	// also look at the reject verdict again, which may have replaced drop.
	//
	//	nft: dnat ip to … . numgen random mod 1 … @…-slots
	//	nft: … @…reject goto …count-reject
	//	nft: … @…drop goto …count-drop
	slot0 := sk.pick(s, v, 1)
	rejected := join(sk.in(s, setID{view: v, kind: reject}), sk.rejects(s))
	dropped := join(sk.in(s, setID{view: v, kind: drop}), sk.drops(s))
	return append(rules, slot0, rejected, dropped, slot0, rejected), chains
}

// recall makes the chain that translates the destination to the client's remembered endpoint, if the frontend still has the endpoint. The
// number of the endpoint leads to one of the frontend's own slots. Otherwise the rules forget the endpoint, so that they can learn the new
// one, because learning changes no existing element. They keep it if the client gets no endpoint. They also keep it if the frontend has
// just become split or unsplit, because the other view may have the endpoint.
func (sk *skeleton) recall(s where, v view) nft.Chain {
	key, index := sk.key(s)
	result := index + 1
	// nft: … map @…-sticky … . ip saddr map @affinity … dnat ip to … . meta mark & 0x8fffffff | 0x80000000 map @…-slots
	// nft: … map @…-sticky … . ip saddr map @affinity … dnat ip to … . meta mark & … | … map @…-slots
	// nft: … map @range-sticky … . ip saddr map @affinity … dnat to … . meta mark & … | … map @range-slots
	remembered := join(
		sk.hasNumber(s, sticky, key),
		sk.numbered(index, sk.load(nft.Reg0+1, srcAddr), one(nft.MapLookup(nft.Reg0, index, setID{kind: affinity}.name()))),
		one(nft.Mask(index, 1<<endpointNumberBits-1, v.numberedSlots())), key,
		one(nft.MapLookup(nft.Reg0, result, setID{space: s.space, kind: slots}.name()), sk.dnat(s, result)),
	)
	// nft: … @…-sticky meta mark set meta mark delete @affinity { meta mark . ip saddr : meta mark }
	forget := join(sk.hasNumber(s, sticky, key), sk.load(nft.Reg0+1, srcAddr),
		one(nft.DeleteFromMap(setID{kind: affinity}.name(), nft.Reg0, nft.Reg0)))
	rules := []rule{remembered}
	for _, k := range []kind{reject, drop} {
		// nft: … @…reject return
		// nft: … @…drop return
		rules = append(rules, join(sk.in(s, setID{view: v, kind: k}), one(nft.Return())))
	}
	inSplit := sk.in(s, setID{kind: split})
	if v == common {
		// nft: … @…-split return
		rules = append(rules, join(inSplit, one(nft.Return())), forget)
	} else {
		// nft: … @…-split meta mark set … delete @affinity …
		rules = append(rules, join(inSplit, forget))
	}
	return nft.Chain{Name: s.chain(v.infix() + chainRecall), Rules: rules}
}

// insideGoto sends connections of all clients but those outside to a chain.
func (sk *skeleton) insideGoto(chain string) []rule {
	var rules []rule
	for _, match := range append(sk.pods(), sk.fromNode()) {
		// nft: ip saddr 10.244.0.0/16 goto …inside…
		// nft: fib saddr type local goto …inside…
		rules = append(rules, join(match, one(nft.Goto(chain))))
	}
	return rules
}

// markOrReturn ends a masquerade chain with a rule carried out.
func (sk *skeleton) markOrReturn(m state.Masquerade) []nft.Expr {
	if m == state.MasqueradeNever {
		return one(nft.Return())
	}
	return one(nft.Goto(markChainName(m)))
}

func markChainName(m state.Masquerade) string { return "mark-" + masqueradeNames[m] }

// markChain marks connections that are to be masqueraded in postrouting.
func (sk *skeleton) markChain(m state.Masquerade) nft.Chain {
	c := nft.Chain{Name: markChainName(m)}
	if m != state.MasqueradeAlways {
		c.Rules = sk.podRules()
	}
	if m == state.MasqueradeNode {
		// nft: fib saddr type local meta mark set meta mark | 0x00004000
		c.Rules = append(c.Rules, join(sk.fromNode(), sk.setMark(sk.settings.MasqueradeMark)))
	} else {
		// nft: meta mark set meta mark | 0x00004000
		c.Rules = append(c.Rules, sk.setMark(sk.settings.MasqueradeMark))
	}
	return c
}

// setMark sets our bit of the packet's mark to that in bit, and leaves the others alone.
//
//	nft: … meta mark set meta mark | 0x00004000
//	nft: … meta mark set meta mark & 0xffffbfff …
func (sk *skeleton) setMark(bit uint32) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, ^sk.settings.MasqueradeMark, bit), nft.SetMeta(nft.Reg0, nft.MetaMark))
}

// marked matches packets that carry our mark.
//
//	nft: meta mark & 0x00004000 != 0x00000000 …
func (sk *skeleton) marked() []nft.Expr { return sk.hasMark(sk.settings.MasqueradeMark) }

// hasMark matches packets that carry a bit of the mark.
func (sk *skeleton) hasMark(bit uint32) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, bit, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0}))
}

// fromNode matches packets with a source address of this node.
//
//	nft: fib saddr type local …
func (sk *skeleton) fromNode() []nft.Expr {
	return one(nft.AddressType(nft.Reg0, nft.SourceType), nft.Equal(nft.Reg0, nft.LocalType()))
}

// podRules return from the chain for packets of pods.
func (sk *skeleton) podRules() []rule {
	var rules []rule
	for _, match := range sk.pods() {
		// nft: ip saddr 10.244.0.0/16 return
		rules = append(rules, join(match, one(nft.Return())))
	}
	return rules
}

// pods returns matches that together cover connections from pods.
func (sk *skeleton) pods() [][]nft.Expr {
	d := &sk.settings.LocalDetector
	switch {
	case len(d.ClusterCIDRs) > 0:
		return sk.prefixes(srcAddr, d.ClusterCIDRs)
	case d.NodeCIDR:
		return sk.prefixes(srcAddr, sk.node.PodCIDRs)
	case d.BridgeInterface != "":
		return [][]nft.Expr{one(nft.Meta(nft.Reg0, nft.MetaIIFName), nft.Equal(nft.Reg0, interfaceName(d.BridgeInterface)))}
	case d.InterfacePrefix != "":
		return [][]nft.Expr{one(nft.Meta(nft.Reg0, nft.MetaIIFName), nft.Equal(nft.Reg0, []byte(d.InterfacePrefix)))}
	}
	return nil
}

// loopback keeps packets from other hosts away from loopback addresses, which the kernel no longer does itself once
// route_localnet is set (CVE-2020-8558). Replies to connections that were translated have another destination here, ahead of
// connection tracking.
func (sk *skeleton) loopback() nft.Chain {
	c := nft.Chain{Name: chainLoopback, Hook: &nft.Hook{Type: "filter", Number: nft.Prerouting, Priority: priorityRaw}}
	fromElsewhere := one(nft.Meta(nft.Reg0, nft.MetaIIFName), nft.NotEqual(nft.Reg0, interfaceName("lo")))
	for _, f := range []field{srcAddr, dstAddr} {
		for _, match := range sk.prefixes(f, []netip.Prefix{loopbackRange}) {
			// nft: iifname != "lo" ip saddr 127.0.0.0/8 drop
			// nft: iifname != "lo" ip daddr 127.0.0.0/8 drop
			c.Rules = append(c.Rules, join(fromElsewhere, match, one(nft.Drop())))
		}
	}
	return c
}

// refuseOnLoopback refuses connections to unserved NodePorts on ::1, if NodePorts of TCP are served on ::1. Rules
// translate nothing on ::1, and the relay takes TCP only, to Services with endpoints. The last lookup counts, and finds
// nothing if NodePorts are not served on ::1.
func (sk *skeleton) refuseOnLoopback() (rules []rule) {
	if sk.f != state.IPv6 {
		return nil
	}
	for _, id := range []setID{{kind: unserved}, {kind: reject}, {view: inside, kind: reject}} {
		// In family ip6: ip6 daddr ::1 meta l4proto . th dport @node-port-… meta l4proto @localhost-rejects goto reject
		rules = append(rules, join(sk.loopbackOnly(), sk.in(inSpace(nodePort), id), sk.countsLocally(), one(nft.Goto(chainReject))))
	}
	return rules
}

// countOnLoopback counts packets to NodePorts on 127.0.0.0/8 that are refused.
func (sk *skeleton) countOnLoopback() []rule {
	if sk.f != state.IPv4 {
		return nil
	}
	// nft: ip daddr 127.0.0.0/8 meta l4proto @localhost-rejects
	return []rule{join(sk.loopbackOnly(), sk.countsLocally())}
}

// loopbackOnly matches packets to loopback addresses.
func (sk *skeleton) loopbackOnly() []nft.Expr {
	return sk.prefixes(dstAddr, []netip.Prefix{loopbackRange, netip.PrefixFrom(netip.IPv6Loopback(), 128)})[0]
}

// countsLocally counts a packet as refused, and matches, if NodePorts are served on loopback addresses.
func (sk *skeleton) countsLocally() []nft.Expr {
	return join(sk.load(nft.Reg0, proto), one(nft.InSet(nft.Reg0, setID{kind: localRejects}.name())))
}

// ServesLoopback reports whether a table serves NodePorts on loopback addresses: it has the guard that this takes.
func ServesLoopback(sk *nft.Skeleton) bool { return sk.HasChainNamed(chainLoopback) }

var loopbackRange = netip.MustParsePrefix("127.0.0.0/8")

func interfaceName(name string) []byte {
	const size = 16 // IFNAMSIZ
	b := make([]byte, size)
	copy(b, name)
	return b
}

// prefixes returns a match for each prefix of the family.
func (sk *skeleton) prefixes(f field, prefixes []netip.Prefix) [][]nft.Expr {
	var matches [][]nft.Expr
	for _, p := range prefixes {
		if state.FamilyOf(p.Addr()) != sk.f {
			continue
		}
		match := sk.load(nft.Reg0, f)
		if p.Bits() < p.Addr().BitLen() {
			match = append(match, nft.MaskBytes(nft.Reg0, lengthMask(p.Bits(), p.Addr().BitLen())))
		}
		matches = append(matches, append(match, nft.Equal(nft.Reg0, p.Masked().Addr().AsSlice())))
	}
	return matches
}

// lengthMask returns a mask of so many of an address's bits.
func lengthMask(n, bits int) []byte {
	mask := make([]byte, bits/8)
	for i := range n {
		mask[i/8] |= 0x80 >> (i % 8)
	}
	return mask
}

// strays drops connections to addresses of the cluster that no service has. Else the packet would leave for the default route and come
// back (semantics.md, after kube-proxy's cluster-ips-check). Addresses that are also local, as node-local caches have them, are left
// alone.
func (sk *skeleton) strays() nft.Chain {
	c := nft.Chain{Name: chainStrays}
	for _, match := range sk.prefixes(dstAddr, sk.node.ServiceCIDRs) {
		// nft: ip daddr 10.96.0.0/16 fib daddr type != local drop
		c.Rules = append(c.Rules, join(match, sk.notLocal(), one(nft.Drop())))
	}
	return c
}

// notLocal matches packets to addresses that are not the node's.
//
//	nft: … fib daddr type != local …
func (sk *skeleton) notLocal() []nft.Expr {
	return one(nft.AddressType(nft.Reg0, nft.DestinationType), nft.NotEqual(nft.Reg0, nft.LocalType()))
}

func (sk *skeleton) toNodePorts() rule {
	// nft: ip daddr @node-port-ips jump node-port
	return join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: nodePortIPs}.name()),
		nft.Jump(sk.spaceChain(inSpace(nodePort)))))
}

// nft can only show a connection's port if the rule has matched the protocol.
var protocols = []state.Protocol{state.TCP, state.UDP, state.SCTP}

func (sk *skeleton) isProto(p state.Protocol) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaL4Proto), nft.Equal(nft.Reg0, []byte{byte(p)}))
}

func protocolChain(name string, p state.Protocol) string {
	return name + "-" + strings.ToLower(p.String())
}

// firewall returns if the client may connect to a frontend that is restricted.
func (sk *skeleton) firewall(s where) nft.Chain {
	key, _ := sk.key(s)
	return nft.Chain{Name: sk.firewallChain(s), Rules: sk.onlyAllowed(sk.hasNumber(s, restricted, key), srcAddr, sk.drops(s))}
}

// firewallAgain is the firewall for connections that are translated already.
func (sk *skeleton) firewallAgain(p state.Protocol) nft.Chain {
	s := inSpace(service)
	number := join(sk.isProto(p), sk.hasNumber(s, restricted, sk.origKey(s)))
	return nft.Chain{Name: protocolChain(chainFirewallAgain, p), Rules: sk.onlyAllowed(number, origSrcAddr, one(nft.Drop()))}
}

// onlyAllowed returns rules that return for clients in a frontend's list, whose number is loaded, and end with drops for all other clients. A list has
// its ranges in one set for each prefix length.
func (sk *skeleton) onlyAllowed(number []nft.Expr, client field, drops []nft.Expr) []rule {
	var rules []rule
	bits := 8 * addrLen(sk.f)
	for n, used := range sk.shape.of(sk.f) {
		if !used {
			continue
		}
		// nft: … map @service-restricted … . ip saddr & 255.255.0.0 @allowed-16 return
		// nft: … map @service-restricted … . ip saddr @allowed-32 return
		// nft: … map @range-restricted … . ip saddr @allowed-32 return
		// nft: meta l4proto … map @service-restricted … . ct original ip saddr & 255.255.0.0 @allowed-16 return
		// nft: meta l4proto … map @service-restricted … . ct original ip saddr @allowed-32 return
		masked := sk.load(nft.Reg0+1, client)
		if n < bits {
			masked = append(masked, nft.MaskBytes(nft.Reg0+1, lengthMask(n, bits)))
		}
		rules = append(rules, join(number, masked,
			one(nft.InSet(nft.Reg0, setID{kind: allowed, arg: uint32(n)}.name()), nft.Return())))
	}
	// A commit may replace a range by one of a length that has been asked for already. So all are asked again before the drop; and the
	// frontend may be open to everybody by now, with no list.
	//
	//	nft: … map @service-restricted meta mark set meta mark goto service-count-drop
	//	nft: … map @service-restricted meta mark set meta mark drop
	//	nft: … map @range-restricted meta mark set meta mark goto range-…count-drop
	rules = append(rules, rules...)
	return append(rules, join(number, drops))
}

// translated looks at connections whose endpoint has been picked. The frontend may have become restricted after the connection found it
// open. Then the client may be denied the picked endpoint.
func (sk *skeleton) translated() nft.Chain {
	c := nft.Chain{Name: chainTranslated}
	s, node := inSpace(service), inSpace(nodePort)
	for _, p := range protocols {
		// nft: meta l4proto … map @service-restricted meta mark set meta mark jump firewall-again-…
		c.Rules = append(c.Rules, join(sk.isProto(p), sk.hasNumber(s, restricted, sk.origKey(s)),
			one(nft.Jump(protocolChain(chainFirewallAgain, p)))))
	}
	if len(sk.shape.timeouts) == 0 {
		return c
	}
	for _, p := range protocols {
		// nft: meta l4proto … map @service-sticky meta mark set meta mark goto service-learn-…
		c.Rules = append(c.Rules, join(sk.isProto(p), sk.hasNumber(s, sticky, sk.origKey(s)), one(nft.Goto(sk.learnChain(s, p)))))
	}
	for _, p := range protocols {
		// nft: meta l4proto … ct original ip daddr @node-port-ips … map @node-port-sticky … goto node-port-learn-…
		c.Rules = append(c.Rules, join(sk.isProto(p), sk.load(nft.Reg0, origDstAddr), one(nft.InSet(nft.Reg0, setID{kind: nodePortIPs}.name())),
			sk.hasNumber(node, sticky, sk.origKey(node)), one(nft.Goto(sk.learnChain(node, p)))))
	}
	c.Rules = append(c.Rules, sk.learnRanges()...)
	return c
}

func (sk *skeleton) learnChain(s where, p state.Protocol) string {
	return protocolChain(s.chain(chainLearn), p)
}

// learn remembers which endpoint a client of a port with affinity got, from the connection's translation, or goes on remembering it.
// An endpoint that has just left the port has no number, and is not remembered.
func (sk *skeleton) learn(s where, p state.Protocol) nft.Chain {
	c := nft.Chain{Name: sk.learnChain(s, p)}
	key := sk.origKey(s)
	endpoint := sk.load(nft.Reg0+1, dstAddr, dstPort)
	if s.space == ranges { // whose endpoints have port 0
		endpoint = append(endpoint, nft.MaskBytes(nft.Reg0+1+sk.addrRegs(), []byte{0, 0}))
	}
	number := nft.Reg0 + sk.addrRegs() + 2
	for _, t := range sk.shape.timeouts {
		// nft: … @…-sticky-10800 … map @…-sticky … map @endpoint-numbers … update @affinity { … timeout 3h : meta mark } return
		c.Rules = append(c.Rules, join(
			sk.isProto(p), key, one(nft.InSet(nft.Reg0, setID{space: s.space, kind: stickyFor, arg: t}.name())),
			sk.hasNumber(s, sticky, key),
			sk.numbered(number, endpoint,
				one(nft.MapLookup(nft.Reg0, number, setID{kind: endpointNumbers}.name()))),
			sk.load(nft.Reg0+1, origSrcAddr),
			one(nft.UpdateMap(setID{kind: affinity}.name(), nft.Reg0, number, uint64(t)*1000), nft.Return()),
		))
	}
	return c
}
