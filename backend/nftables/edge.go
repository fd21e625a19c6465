package nftables

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// peerAddrs are the addresses of the nodes that may hand flows over to this one, of a node's record.
type peerAddrs struct {
	node  *state.Node
	addrs []netip.Addr
}

// peerAddrs returns the addresses of the nodes that may hand flows over, sorted. There are none without an edge.
func (b *Backend) peerAddrs(node *state.Node) []netip.Addr {
	if b.o.Edge == 0 {
		return nil
	}
	if b.peers.node != node {
		b.peers = peerAddrs{node: node}
		for i := range node.Peers {
			b.peers.addrs = append(b.peers.addrs, node.Peers[i].Addresses...)
		}
		slices.SortFunc(b.peers.addrs, netip.Addr.Compare)
	}
	return b.peers.addrs
}
