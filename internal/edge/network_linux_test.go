package edge_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// guarded has the switch drop what a node sends from other addresses than its own and its pods', as networks with IP source guard do.
func (l *lab) guarded(node string) {
	l.nft("switch", fmt.Sprintf(`table bridge guard {
	chain forward {
		type filter hook forward priority 0
		iifname %q ip saddr != { %v, %v } drop
		iifname %q ip6 saddr != { %v, %v, fe80::/10 } drop
	}
}
`, node, nodeIPs(node)[0], podCIDRs(node)[0], node, nodeIPs(node)[1], podCIDRs(node)[1]))
}

// TestNetworkIsChecked: a node sees whether the network takes packets from the addresses of Services. Nodes that do not answer at all say nothing about that.
func TestNetworkIsChecked(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pb1", "pc1")
		l.on(toBC)
		heard := func() uint64 {
			return l.stats("a")[programs.Probe] + l.stats("c")[programs.Probe] + l.stats("d")[programs.Probe]
		}
		check := func(what, want string) {
			t.Helper()
			err := l.edges["b"].CheckNetwork()
			if got := fmt.Sprint(err); want == "" && err != nil || !strings.HasPrefix(got, want) {
				t.Errorf("%s: %v, want %q", what, err, want)
			}
		}
		again := func(change ...func(*edge.Settings)) {
			t.Helper()
			must(t, l.edges["b"].Close())
			l.edge("b", change...)
		}
		before := heard()
		check("a network that takes all", "")
		if heard() < before+4 { // claims and controls, of both families
			t.Error("no node was asked")
		}

		l.guarded("b")
		check("not yet checked again", "")
		again()
		refused := fmt.Sprintf("edge: the network drops packets that this node sends from %v", vips)
		check("a network with a guard", refused)
		check("the same, remembered", refused)
		again(func(s *edge.Settings) { s.TrustNetwork = true })
		check("the same, trusted", "")
		again()
		check("the same again", refused)
		must(t, l.edges["b"].Apply(&state.Update{Node: l.node("b"), Full: true}, nil))
		check("without Services", "")

		l.nft("switch", "delete table bridge guard\n")
		again()
		check("a network without the guard", "")

		for _, node := range []string{"a", "c", "d"} {
			must(t, l.edges[node].Close())
		}
		l.guarded("b")
		again()
		begin := time.Now()
		check("no node that answers", "")
		if took := time.Since(begin); took < 500*time.Millisecond {
			t.Errorf("nodes had %v to answer", took)
		}
	})
}

// TestForgedClaims: anybody may send a claim. The answer has its size, and goes to the program of a node and nowhere else. Answers of strangers count for nothing.
func TestForgedClaims(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.on(toBC)
	b := nodeIPs("b")[0]
	var listening net.PacketConn
	must(t, l.hosts["a"].Do(func() (err error) {
		listening, err = net.ListenPacket("udp", at(nodeIPs("a")[0], edge.DefaultPort).String())
		return err
	}))
	defer listening.Close()
	send := func(from string, size int, hop byte, id uint32) {
		t.Helper()
		must(t, l.hosts[from].Do(func() error {
			conn, err := net.Dial("udp", at(b, edge.DefaultPort).String())
			if err != nil {
				return err
			}
			defer conn.Close()
			text := make([]byte, size)
			copy(text, header(1, hop, id))
			_, err = conn.Write(text)
			return err
		}))
	}
	counts := func(node string, action programs.Action, n uint64, do func()) {
		t.Helper()
		before := l.stats(node)[action]
		do()
		deadline := time.Now().Add(5 * time.Second)
		for l.stats(node)[action]-before < n && time.Now().Before(deadline) {
			time.Sleep(time.Millisecond)
		}
		if got := l.stats(node)[action] - before; got < n { // nodes probe each other all the time
			t.Errorf("%d packets count as %v at node %s, want %d", got, action, node, n)
		}
	}
	counts("a", programs.Probe, 1, func() { send("client", programs.ProbeSize, programs.HopClaim, state.PeerID("a")) })
	counts("b", programs.Malformed, 2, func() {
		send("client", programs.ProbeSize+1, programs.HopClaim, state.PeerID("a"))
		send("client", 1000, programs.HopClaim, state.PeerID("a"))
	})
	counts("b", programs.NoNode, 2, func() {
		send("client", programs.ProbeSize, programs.HopClaim, state.PeerID("b"))
		send("client", programs.ProbeSize, programs.HopClaim, 12345)
	})
	counts("b", programs.Foreign, 1, func() { send("client", programs.ProbeSize, programs.HopHeard, state.PeerID("a")) })
	must(t, listening.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
	if n, from, err := listening.ReadFrom(make([]byte, 100)); err == nil {
		t.Errorf("%d bytes from %v came out of the program", n, from)
	}
}
