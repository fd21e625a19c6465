package edge

import (
	"net"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/state"
)

// TestProbesAreCounted: three probes without an answer make a node silent, and three answers end that. Nothing less does.
func TestProbesAreCounted(t *testing.T) {
	for _, c := range []struct{ what, answers, silent string }{
		{"a node that answers", "!!!!!!", "      "},
		{"a node that is dead", "......", "  ssss"},
		{"answers now and then", "..!..!..!.!", "           "},
		{"a node that comes back", "...!!!!", "  sss  "},
		{"a node that comes back and goes", "...!!.!!!.", "  ssssss  "},
		{"a node that is no longer probed", "...-!.", "  s   "},
		{"a node that cannot be probed", "..//..", "    ss"},
	} {
		p := probes{on: true, sent: true}
		silent := ""
		for _, answer := range c.answers {
			was := p.silent
			if changed := p.note(answer == '!', answer != '-'); changed != (p.silent != was) {
				t.Errorf("%s: a change is reported: %v", c.what, changed)
			}
			p.sent = answer != '-'
			if silent += " "; p.silent {
				silent = silent[:len(silent)-1] + "s"
			}
			if next := len(silent); next < len(c.answers) && c.answers[next] == '/' {
				p.sent = false
			}
		}
		if silent != c.silent {
			t.Errorf("%s, %s: silent is %q, want %q", c.what, c.answers, silent, c.silent)
		}
	}
}

// TestProbesAreSpread: the probes of many nodes leave in small bursts, and early enough for an answer before the next ones. Few are sent at once.
func TestProbesAreSpread(t *testing.T) {
	for _, n := range []int{0, 1, burst, burst + 1, 8192, 16384} {
		synctest.Test(t, func(t *testing.T) {
			at := map[time.Duration]int{}
			begin, sent := time.Now(), 0
			spread(make([]due, n), func(due) {
				at[time.Since(begin)]++
				sent++
			})
			for when, probes := range at {
				if probes > burst || when > probeEvery/2 {
					t.Errorf("%d nodes: %d probes after %v", n, probes, when)
				}
			}
			if sent != n || len(at) != (n+burst-1)/burst {
				t.Errorf("%d nodes: %d probes in %d bursts", n, sent, len(at))
			}
		})
	}
}

// TestLostNodesAreProbedAgain: between two rounds, only nodes that have missed three probes are probed, and not too many of them. One that answers is asked for
// connections from then on, and is silent until it has answered three rounds.
func TestLostNodesAreProbedAgain(t *testing.T) {
	own := netip.MustParseAddr("127.0.0.1")
	e := &Edge{node: &state.Node{Name: "self", Addresses: []netip.Addr{own}}, peers: &peers{byID: map[uint32]*peer{}, heldNodes: map[plan.Number]node{}}}
	e.prober.sockets, e.prober.answered = map[netip.Addr]*net.UDPConn{own: {}}, map[uint32]bool{}
	add := func(id uint32, missed int) *peer {
		p := &peer{number: plan.Number(id), port: uint16(id), addrs: []netip.Addr{own}, probes: probes{on: true, missed: missed, silent: missed == mostMissed}}
		n := node{answers: 1} // as after the answer: nothing is written
		n[family] = byte(state.IPv4)
		e.peers.byID[id], e.peers.heldNodes[p.number] = p, n
		return p
	}
	lost := add(1, mostMissed)
	add(2, mostMissed-1)
	if list, _ := e.again(); len(list) != 1 || list[0].to.Port() != 1 {
		t.Errorf("probes go to %v", list)
	}
	e.prober.answered[1] = true
	if list, _ := e.again(); len(list) > 0 || !lost.answers() || !lost.probes.silent {
		t.Errorf("after the answer, probes go to %v, and the node is %+v", list, lost.probes)
	}
	for id := range uint32(1000) {
		add(10+id, mostMissed)
	}
	if list, _ := e.again(); len(list) != burst {
		t.Errorf("%d probes at once", len(list))
	}
}
