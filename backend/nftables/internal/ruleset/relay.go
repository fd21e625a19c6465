package ruleset

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// The rules that lead connections to a relay are here. They ignore packets without the mark, which a table of the relay's process sets.
// When that process ends, its table is gone, and every connection goes to an endpoint by the rules of skeleton.go.
//
// A comment that begins with "nft:" shows a rule, as in skeleton.go.

const (
	chainRelay      = "relay" // and one for each view
	chainRelayGuard = "relay-guard"
)

// listeners returns the listeners of the family.
func (sk *skeleton) listeners() []Listener {
	return slices.DeleteFunc(slices.Clone(sk.settings.Listeners), func(l Listener) bool { return l.Family != sk.f })
}

// relayMarked matches packets that have the mark of the relay, or those that do not.
//
//	nft: … meta mark & 0x00001000 != 0x00000000 …
//	nft: … meta mark & 0x00001000 == 0x00000000 …
func (sk *skeleton) relayMarked(is bool) []nft.Expr {
	if is {
		return sk.hasMark(sk.settings.RelayMark)
	}
	return lacksMark(sk.settings.RelayMark)
}

// lacksMark matches packets that do not carry a bit of the mark.
func lacksMark(bit uint32) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, bit, 0), nft.Equal(nft.Reg0, []byte{0, 0, 0, 0}))
}

// without takes bits out of the packet's mark.
//
//	nft: … meta mark set meta mark & 0xffffafff …
func without(bits uint32) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, ^bits, 0), nft.SetMeta(nft.Reg0, nft.MetaMark))
}

// withoutRelayMark appends to the rules of a chain a rule that clears the relay's mark.
func (sk *skeleton) withoutRelayMark(rules ...rule) []rule {
	if len(sk.listeners()) == 0 {
		return rules
	}
	// nft: meta mark & 0x00001000 != 0x00000000 meta mark set meta mark & 0xffffefff
	return append(rules, join(sk.relayMarked(true), without(sk.settings.RelayMark)))
}

// toRelay returns the rule that leads connections to the relay if the view has endpoints.
func (sk *skeleton) toRelay(s where, v view) []rule {
	if len(sk.listeners()) == 0 || s.space == ranges || v == edge { // which a relay does not serve
		return nil
	}
	key, index := sk.key(s)
	// The nft tool does not show the lookup, because nothing uses its result.
	//
	//	nft: meta mark & 0x00001000 != 0x00000000 jump relay…
	slot0 := join(key, one(nft.Random(index, 1, v.slotOffset()),
		nft.MapLookup(nft.Reg0, index+1, setID{space: s.space, kind: slots}.name())))
	return []rule{join(sk.relayMarked(true), slot0, one(nft.Jump(relayChain(v))))}
}

func relayChain(v view) string {
	if v == common {
		return chainRelay
	}
	return chainRelay + "-" + viewNames[v]
}

// relayChains are the chains that translate the destination to a listener, and the one that keeps others away from these. Without the process whose
// listeners they are, anybody could listen there, and get the packets of flows that the kernel still translates.
func (sk *skeleton) relayChains() []nft.Chain {
	listeners := sk.listeners()
	if len(listeners) == 0 {
		return nil
	}
	guard := nft.Chain{Name: chainRelayGuard, Hook: &nft.Hook{Type: "filter", Number: nft.Input, Priority: priorityFilter}}
	var guarded []netip.Addr
	for _, l := range listeners {
		if addr := l.At.Addr(); !slices.Contains(guarded, addr) {
			guarded = append(guarded, addr)
			for _, proto := range []state.Protocol{state.TCP, state.UDP} { // ICMP errors tell the relay of paths with a smaller MTU
				// nft: meta l4proto … ip daddr 169.254.115.119 meta mark & 0x00001000 == 0x00000000 goto reject
				guard.Rules = append(guard.Rules, join(sk.isProto(proto), sk.load(nft.Reg0, dstAddr), one(nft.Equal(nft.Reg0, addr.AsSlice())),
					sk.relayMarked(false), one(nft.Goto(chainReject))))
			}
		}
	}
	chains := []nft.Chain{guard}
	for v := range view(clientViews) {
		c := nft.Chain{Name: relayChain(v)}
		for _, l := range listeners {
			// Clients of TCP need not be told apart where all have the same endpoints. Flows of UDP end with the endpoints of their class.
			tell := v == common && l.Protocol == state.UDP
			switch {
			case tell && !l.Outside:
				for _, match := range append(sk.pods(), sk.fromNode()) {
					// nft: meta l4proto udp ip saddr 10.244.0.0/16 meta mark set … dnat to 169.254.115.119:61871
					c.Rules = append(c.Rules, join(sk.isProto(l.Protocol), match, sk.toListener(l.At)))
				}
			case tell || l.Outside == (v == outside):
				// nft: meta l4proto … meta mark set … dnat to …
				c.Rules = append(c.Rules, join(sk.isProto(l.Protocol), sk.toListener(l.At)))
			}
		}
		chains = append(chains, c)
	}
	return chains
}

// toListener translates the destination to a listener. Connections to the relay are not masqueraded.
func (sk *skeleton) toListener(at netip.AddrPort) []nft.Expr {
	port := nft.Reg0 + sk.addrRegs()
	return join(without(sk.settings.RelayMark|sk.settings.MasqueradeMark), one(
		nft.Immediate(nft.Reg0, at.Addr().AsSlice()), nft.Immediate(port, binary.BigEndian.AppendUint16(nil, at.Port())),
		nft.DNAT(family(sk.f), nft.Reg0, port),
	))
}
