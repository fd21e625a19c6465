package edge_test

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// newcomers opens connections one after the other, in a hurry. The error is why one is not served, or not with the address that its server is to see.
func (l *lab) newcomers(kept bool) (servers map[string]int, err error) {
	const hurry = 400 * time.Millisecond // before the first packet of TCP is sent again
	servers = map[string]int{}
	for _, vip := range vips {
		for _, network := range []string{"tcp", "udp"} {
			for range 6 {
				var r reply
				err := l.hosts["client"].Do(func() error {
					conn, err := net.DialTimeout(network, at(vip, webPort).String(), hurry)
					if err != nil {
						return err
					}
					defer conn.Close()
					r, err = exchangeFor(conn, []byte("hello\n"), hurry)
					return err
				})
				if err != nil || r.kept() != kept {
					return servers, fmt.Errorf("%s to %v: %+v, %w", network, vip, r, err)
				}
				servers[r.server]++
			}
		}
	}
	return servers, nil
}

// served waits until connections are served whose servers see the client, or do not.
func (l *lab) served(what string, kept bool) {
	l.t.Helper()
	begin := time.Now()
	var servers map[string]int
	var err error
	await.Until(l.t, what, func() bool { servers, err = l.newcomers(kept); return err == nil }, func() any { return err })
	l.t.Logf("%s after %v: %v", what, time.Since(begin).Round(time.Millisecond), servers)
}

// TestKilledOwner: a process that is killed leaves the annotation of its node. Soon, netfilter serves new connections of the ports with endpoints there, on all nodes.
// Connections of other nodes go on, and connections of the dead node wait. When it answers again, all is as before.
func TestKilledOwner(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pb1", "pc1")
		l.on(toBC)
		open := map[string][]net.Conn{}
		for i := range 40 {
			conn, err := l.dial("client", []string{"tcp", "udp"}[i%2], at(vips[i/2%2], webPort))
			must(t, err)
			defer conn.Close()
			r, err := exchange(conn, []byte("hello\n"))
			must(t, err)
			open[r.server] = append(open[r.server], conn)
		}
		goOn := func(when string, conns []net.Conn, kept bool) {
			t.Helper()
			for _, conn := range conns {
				if r, err := exchange(conn, []byte("hello\n")); err != nil || r.kept() != kept {
					t.Errorf("%s, an open connection of %s: %+v, %v", when, conn.LocalAddr().Network(), r, err)
				}
			}
		}
		client := netip.AddrPortFrom(clientIPs[0], 5000)
		if _, ok := l.edges["a"].Slot(state.TCP, client, at(vips[0], webPort)); !ok {
			t.Error("there is no slot")
		}

		must(t, l.edges["b"].Close())
		l.served("new connections are served without node b", false)
		for _, node := range []string{"a", "c", "d"} {
			e := l.edges[node]
			await.Until(t, "node "+node+" knows", func() bool { return slices.Equal(e.Silent(), []string{"b"}) }, func() any { return e.Silent() })
			s := e.Status()
			if s.Ports != 0 || s.Draining != 0 || s.Reason != nil || len(s.Left) != 8 {
				t.Errorf("node %s: %+v", node, s)
			}
			for id, err := range s.Left {
				if !strings.Contains(err.Error(), "node b does not answer: see whether") {
					t.Errorf("node %s, %v: %v", node, id, err)
				}
			}
			if slot, ok := e.Slot(state.TCP, client, at(vips[0], webPort)); ok {
				t.Errorf("node %s has slot %+v", node, slot)
			}
		}
		goOn("at node a", open["pc1"], true)
		l.via("d")
		goOn("at node d", open["pc1"], true)
		l.via("a")
		var late []net.Conn
		for range 6 {
			conn, err := l.dial("client", "tcp", at(vips[0], webPort))
			must(t, err)
			defer conn.Close()
			late = append(late, conn)
		}
		goOn("without node b", late, false)

		// Ports without a share of node b are served, and those that get one again are not.
		change := func(shares map[string]uint32) {
			t.Helper()
			for _, node := range []string{"a", "c", "d"} {
				must(t, l.edges[node].Apply(&state.Update{Node: l.node(node), Changed: []*state.Service{service(shares)}}, nil))
			}
		}
		change(map[string]uint32{"c": 1})
		if _, err := l.newcomers(true); err != nil {
			t.Errorf("when node b has no share: %v", err)
		}
		change(toBC)
		if _, err := l.newcomers(false); err != nil {
			t.Errorf("when node b has a share again: %v", err)
		}
		goOn("after changes", late, false)

		before := l.stats("a")[programs.HandedOver]
		l.edge("b")
		l.served("new connections are handed over again", true)
		l.settle()
		for _, node := range []string{"a", "c", "d"} {
			if silent := l.edges[node].Silent(); len(silent) > 0 {
				t.Errorf("node %s takes %v for silent", node, silent)
			}
			slot, ok := l.edges[node].Slot(state.TCP, client, at(vips[0], webPort))
			if want, _ := l.edges["b"].Slot(state.TCP, client, at(vips[0], webPort)); !ok || slot.Owner != want.Owner {
				t.Errorf("node %s has slot %+v, and node b %+v", node, slot, want)
			}
		}
		if n := l.stats("a")[programs.HandedOver] - before; n == 0 {
			t.Error("node a has handed nothing over")
		}
		goOn("with node b again", open["pc1"], true)
		for _, conn := range open["pb1"] {
			if _, isTCP := conn.(*net.TCPConn); isTCP {
				goOn("with node b again", []net.Conn{conn}, true)
			}
		}
		goOn("with node b again", late, false)
	})
}
