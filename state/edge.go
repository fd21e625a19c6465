package state

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// Edge is how nodes hand connections from outside over to each other (direct server return). The node at which a packet comes in chooses a node by
// Shares, and sends it the packet as it is, in a tunnel. The other node serves the packet by Local, and its answers go to the client directly.
//
// Only connections to External of a port are handed over, and none from nodes and pods.
type Edge struct {
	// Shares are the nodes that serve the port, ordered by [EdgeShare.Compare], each once. If there are none, this node hands nothing over, and only Local counts.
	Shares []EdgeShare
	// Local is where connections go that another node has handed over to this one, and those in this node's own share. All its endpoints are on this
	// node. Its weights are its own, and may differ from the weights in other routes. It is [Drop] if this node has no endpoints. Source ranges count as for all
	// other connections, and no connection is masqueraded.
	Local Route
	// Except are kinds of frontends whose connections are not handed over. Such frontends are as without Edge: see [Edge.Takes]. At least one frontend of
	// the port is of another kind.
	Except FrontendKinds
}

// Takes reports whether connections to frontends of a kind are handed over.
func (e *Edge) Takes(kind FrontendKind) bool {
	return e != nil && kind != ClusterIP && !e.Except.Has(kind)
}

// TakesOneOf reports whether connections to one of some frontends are handed over.
func (e *Edge) TakesOneOf(frontends []Frontend) bool {
	return slices.ContainsFunc(frontends, func(f Frontend) bool { return e.Takes(f.Kind) })
}

// FrontendKinds is a set of kinds of frontends. The zero value is the empty set.
type FrontendKinds uint8

// KindsOf returns the set of some kinds.
func KindsOf(kinds ...FrontendKind) (set FrontendKinds) {
	for _, k := range kinds {
		set |= 1 << k
	}
	return set
}

// Has reports whether a kind is in the set.
func (s FrontendKinds) Has(kind FrontendKind) bool { return s&(1<<kind) != 0 }

// Each yields the kinds in the set, in order.
func (s FrontendKinds) Each(yield func(FrontendKind) bool) {
	for kind := range FrontendKind(8) {
		if s.Has(kind) && !yield(kind) {
			return
		}
	}
}

// String returns the names of the kinds, with commas in between, or "none".
func (s FrontendKinds) String() string {
	var names []string
	for kind := range s.Each {
		names = append(names, kind.String())
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

// EdgeShare is the share of one node in the connections of a port.
type EdgeShare struct {
	// Node is the [Peer.ID] of the node. The peer takes part.
	Node uint32
	// Weight is the sum of the weights of its endpoints, or their number if they have no weights. It is above 0. A larger sum is 4,294,967,295.
	Weight uint32
}

// Compare orders shares by node.
func (s EdgeShare) Compare(o EdgeShare) int { return cmp.Compare(s.Node, o.Node) }

// Equal reports whether two edges are the same in every field.
func (e Edge) Equal(o Edge) bool {
	return e.Except == o.Except && (sameList(e.Shares, o.Shares) || slices.Equal(e.Shares, o.Shares)) && e.Local.Equal(&o.Local)
}

// Peer is a node of the cluster, as the edge of another node sees it.
type Peer struct {
	// ID identifies the node on the wire, and in [EdgeShare.Node]. It is [PeerID] of Name.
	ID   uint32
	Name string
	// Addresses are the node's addresses, the primary address of each family first.
	Addresses []netip.Addr
	// PodCIDRs are the ranges from which the node's pods get addresses, sorted.
	PodCIDRs []netip.Prefix
	// Port is the UDP port at which the node takes packets that others hand over. It is 0 for a node that does not take part.
	Port uint16
}

// PeerID returns the ID of the node of a name: FNV-1a in 32 bits. If several nodes have the same ID, none of them takes part.
func PeerID(name string) uint32 {
	h := uint32(2166136261)
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return h
}

// Compare orders peers by ID, then by name.
func (p *Peer) Compare(o *Peer) int {
	return cmp.Or(cmp.Compare(p.ID, o.ID), cmp.Compare(p.Name, o.Name))
}

// Equal reports whether two peers are the same in every field.
func (p *Peer) Equal(o *Peer) bool {
	return p.ID == o.ID && p.Name == o.Name && p.Port == o.Port && slices.Equal(p.Addresses, o.Addresses) && slices.Equal(p.PodCIDRs, o.PodCIDRs)
}
