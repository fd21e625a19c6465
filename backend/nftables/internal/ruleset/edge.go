package ruleset

import (
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// The edge. Nodes hand connections from outside over to each other, each packet as it came from the client. Programs of this process mark the packets
// that this node is to serve. Marked packets have a view of their own. There they get endpoints of this node by [state.Edge.Local], and keep the address of
// the client. They may be for a NodePort at an address of another node, so that the rules do not look at the address.
//
// All packets of these connections are marked. The rules of type nat see only the first one, and clear its mark. Later packets keep theirs, and the
// kernel translates them by their connection.
//
// A comment that begins with "nft:" shows a rule, as in skeleton.go.

// Names of chains, which exist if there is an edge.
const (
	chainEdge             = "edge" // and one in each space, for its view
	chainEdgeForward      = "edge-forward"
	chainEdgeInput        = "edge-input"
	chainEdgeUntranslated = "edge-untranslated"
	chainEdgeGuard        = "edge-guard"
	chainEdgeUnknown      = "edge-unknown"
)

// hasEdge reports whether there is an edge view in a space. Connections to ranges are never handed over.
func (s *shape) hasEdge(sp space) bool { return s.edge && sp != ranges }

// views returns the views of a space.
func (s *shape) views(sp space) []view {
	if s.hasEdge(sp) {
		return []view{common, outside, inside, edge}
	}
	return []view{common, outside, inside}
}

// toEdge returns the rule that leads marked packets to the edge view. They do not come back to the other views.
func (sk *skeleton) toEdge() []rule {
	if !sk.shape.edge {
		return nil
	}
	// nft: meta mark & 0x00000800 != 0x00000000 goto edge
	return []rule{join(sk.hasMark(sk.settings.Edge), one(nft.Goto(chainEdge)))}
}

// edgeView returns the chains that decide about connections to the frontends of a space in the edge view. Nothing is masqueraded: the clients are outside.
func (sk *skeleton) edgeView(s where) []nft.Chain {
	if !sk.shape.hasEdge(s.space) {
		return nil
	}
	picks, chains := sk.picks(s, edge)
	return append([]nft.Chain{{Name: s.chain(chainEdge), Rules: append(sk.admits(s), picks...)}}, chains...)
}

// edgeChains returns the chains of the edge that are not in a space.
func (sk *skeleton) edgeChains() []nft.Chain {
	if !sk.shape.edge {
		return nil
	}
	bit := sk.settings.Edge
	used := bit | sk.settings.MasqueradeMark
	if len(sk.listeners()) > 0 {
		used |= sk.settings.RelayMark
	}
	filter := func(name string, hook uint32) nft.Chain {
		// nft: meta mark & 0x00000800 != 0x00000000 jump edge-untranslated
		marked := join(sk.hasMark(bit), one(nft.Jump(chainEdgeUntranslated)))
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: "filter", Number: hook, Priority: priorityFilter}, Rules: []rule{marked}}
	}
	return []nft.Chain{
		{Name: chainEdge, Rules: []rule{
			// nft: meta mark set meta mark & 0xffffb7ff
			without(used),
			// nft: ip daddr @external-ips jump service-edge
			join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: externalIPs}.name()), nft.Jump(inSpace(service).chain(chainEdge)))),
			// nft: jump node-port-edge
			one(nft.Jump(inSpace(nodePort).chain(chainEdge))),
			// Nothing has translated the packet.
			//
			//	nft: meta mark set meta mark | 0x00000800
			one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, ^bit, bit), nft.SetMeta(nft.Reg0, nft.MetaMark)),
		}},
		filter(chainEdgeForward, nft.Forward), filter(chainEdgeInput, nft.Input),
		// Without this, the node would forward a packet that nothing has translated along its route to the frontend's address. The packet might come back to
		// the node that has sent it here. A packet without a connection does not match the first rule.
		{Name: chainEdgeUntranslated, Rules: []rule{
			// nft: ct status dnat return
			join(dnatted(), one(nft.Return())),
			// nft: drop
			one(nft.Drop()),
		}},
		sk.edgeGuard(), sk.edgeUnknown(),
	}
}

// edgeGuard is the chain for packets of connections that this node has handed over, while the programs that hand them over are gone. It keeps them from
// the rules of other connections. An endpoint that does not know the connection would reset it. This node knows no connection that it has handed over. New
// connections begin with a SYN.
func (sk *skeleton) edgeGuard() nft.Chain {
	const unknown = nft.CtStateInvalid | nft.CtStateNew
	// nft: ct state invalid,new tcp flags ! syn meta mark & 0x00000800 == 0x00000000 jump edge-unknown
	return nft.Chain{
		Name: chainEdgeGuard, Hook: &nft.Hook{Type: "filter", Number: nft.Prerouting, Priority: priorityMangle},
		Rules: []rule{join(
			one(nft.Ct(nft.Reg0, nft.CtState), nft.Mask(nft.Reg0, unknown, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0})),
			sk.isProto(state.TCP), lacksFlags(tcpSyn), lacksMark(sk.settings.Edge), one(nft.Jump(chainEdgeUnknown)),
		)},
	}
}

// edgeUnknown is the chain for packets of unknown TCP connections. It drops those to frontends whose connections this node hands over. Connections of
// pods and of the node are never handed over.
func (sk *skeleton) edgeUnknown() nft.Chain {
	c := nft.Chain{Name: chainEdgeUnknown}
	for _, match := range append(sk.pods(), sk.fromNode()) {
		// nft: ip saddr 10.244.0.0/16 return
		// nft: fib saddr type local return
		c.Rules = append(c.Rules, join(match, one(nft.Return())))
	}
	c.Rules = append(c.Rules,
		// nft: ip daddr . meta l4proto . th dport @service-handed-over drop
		join(sk.in(inSpace(service), setID{kind: handedOver}), one(nft.Drop())),
		// nft: ip daddr @node-port-ips meta l4proto . th dport @node-port-handed-over drop
		join(sk.load(nft.Reg0, dstAddr), one(nft.InSet(nft.Reg0, setID{kind: nodePortIPs}.name())),
			sk.in(inSpace(nodePort), setID{kind: handedOver}), one(nft.Drop())),
	)
	return c
}
