package protoconv_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// TestPeersOfOneID: peers with the same ID take no part, and are ordered by name.
func TestPeersOfOneID(t *testing.T) {
	const a, b = "n-cd0200255", "n-fc845fb54"
	if state.PeerID(a) != state.PeerID(b) {
		t.Fatal("the names have no common ID")
	}
	n := &state.Node{Name: a, Peers: []state.Peer{{ID: state.PeerID(a), Name: a, Addresses: addrs("192.0.2.1")}, {ID: state.PeerID(b), Name: b, Addresses: addrs("192.0.2.2")}}}
	if got, err := protoconv.ParseNode(transmit(t, protoconv.Node(n))); err != nil || !got.Equal(n) {
		t.Errorf("got %+v, %v", got, err)
	}
	n.Peers[0].Port = 7635
	got, err := protoconv.ParseNode(transmit(t, protoconv.Node(n)))
	expect(t, err, []string{`node "n-cd0200255": peers[1].port is 0, and 7635 in peers[0]`, "the same id"})
	if got == nil || len(got.Peers) > 0 || got.Name != a {
		t.Errorf("without the peers, the node is %+v", got)
	}
}

// manyPeers are the nodes of a cluster, with addresses and ranges of both families.
func manyPeers(n int) []state.Peer {
	peers := make([]state.Peer, n)
	for i := range peers {
		name := fmt.Sprintf("ip-10-%d-%d-%d.eu-central-1.compute.internal", i>>16, i>>8&255, i&255)
		v6 := netip.MustParseAddr("2001:db8::").As16()
		v6[13], v6[14], v6[15] = byte(i>>16), byte(i>>8), byte(i)
		peers[i] = state.Peer{
			ID: state.PeerID(name), Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom16(v6)},
			PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64 + byte(i>>8), byte(i), 0}), 24)}, Port: 7635,
		}
	}
	slices.SortFunc(peers, func(a, b state.Peer) int { return a.Compare(&b) })
	return peers
}

// TestPeersAreMarshalledOnce: nodes that share their peers get them in messages that share their bytes. A client finds them in one node.
func TestPeersAreMarshalledOnce(t *testing.T) {
	var e protoconv.Encoder
	peers := manyPeers(100)
	send := func(n *state.Node) *localnetv1.WatchResponse {
		t.Helper()
		var got *localnetv1.WatchResponse
		for part := range protoconv.Parts(&e, &state.Update{Full: true, Node: n}, n, protoconv.Position{Instance: 1, Revision: 1}, 1<<20) {
			got = new(localnetv1.WatchResponse)
			if err := proto.Unmarshal(part.Bytes(), got); err != nil {
				t.Fatal(err)
			}
		}
		return got
	}
	for _, name := range []string{"a", "b", "c"} {
		n := fullNode()
		n.Name, n.Peers = name, peers
		if name == "c" {
			n.Peers = peers[:50]
		}
		if got, err := protoconv.ParseNode(send(n).Node); err != nil || !got.Equal(n) {
			t.Errorf("node %s: got %+v, %v", name, got, err)
		}
	}
	without := fullNode()
	without.Peers = nil
	if got, err := protoconv.ParseNode(send(without).Node); err != nil || !got.Equal(without) {
		t.Errorf("without peers: got %+v, %v", got, err)
	}
	parts := func(n *state.Node) func() {
		return func() {
			for range protoconv.Parts(&e, &state.Update{Node: n}, n, protoconv.Position{Instance: 1, Revision: 1}, 1<<20) {
			}
		}
	}
	few, many := parts(&state.Node{Peers: manyPeers(2)}), parts(&state.Node{Peers: manyPeers(1000)})
	if a, b := testing.AllocsPerRun(10, few), testing.AllocsPerRun(10, many); b > a+2 {
		t.Errorf("1000 peers take %.0f allocations for another client, 2 take %.0f", b, a)
	}
}

// TestSizeOfPeers pins what docs/adr/0053-edge-record.md says about the size of peers.
func TestSizeOfPeers(t *testing.T) {
	const nodes = 5000
	size := proto.Size(protoconv.Node(&state.Node{Peers: manyPeers(nodes)}))
	t.Logf("%d peers take %d bytes, %d each", nodes, size, size/nodes)
	if each := size / nodes; each < 80 || each > 100 {
		t.Errorf("a peer takes %d bytes; the ADR and store.peerPause say about 90", each)
	}
}

// BenchmarkPeers sends the peers of a large cluster to one more client.
func BenchmarkPeers(b *testing.B) {
	var e protoconv.Encoder
	n := &state.Node{Name: "n", Peers: manyPeers(5000)}
	b.ReportAllocs()
	for b.Loop() {
		for range protoconv.Parts(&e, &state.Update{Node: n}, n, protoconv.Position{Instance: 1, Revision: 1}, 64<<10) {
		}
	}
}
