package edge_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// families are the tests' families between nodes. The packets inside are of both.
var families = []state.Family{state.IPv4, state.IPv6}

// each runs a test once for each family between nodes, at the same time.
func each(t *testing.T, test func(t *testing.T, between state.Family)) {
	t.Parallel()
	for _, between := range families {
		t.Run("between nodes "+between.String(), func(t *testing.T) {
			t.Parallel()
			test(t, between)
		})
	}
}

// at returns a virtual address with a port, and a node's with one.
func at(vip netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(vip, port) }

// TestHandOver: whatever comes in at a node is served by the node that has the slot. The server sees the client, and the first node tracks nothing.
func TestHandOver(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pb1", "pb2", "pc1")
		l.on(map[string]uint32{"b": 2, "c": 1})
		servers := map[string]int{}
		for _, c := range []struct{ from, to string }{
			{"client", vips[0].String()}, {"client", vips[1].String()}, {"neighbour", vips[0].String()}, {"neighbour", vips[1].String()},
			{"client", nodeIPs("a")[0].String()}, {"client", nodeIPs("a")[1].String()}, {"neighbour", nodeIPs("d")[0].String()}, {"client", nodeIPs("b")[0].String()},
		} {
			for _, network := range []string{"tcp", "udp"} {
				addr := netip.MustParseAddr(c.to)
				to := at(addr, webPort)
				if !slices.Contains(vips, addr) {
					to = at(addr, nodePort)
				}
				for range 12 {
					r, err := l.ask(c.from, network, to)
					if err != nil || !r.kept() {
						t.Fatalf("%s to %s %v: %+v, %v", c.from, network, to, r, err)
					}
					protocol := state.TCP
					if network == "udp" {
						protocol = state.UDP
					}
					// All nodes agree on the slot, and programs on what this process computes.
					slot, ok := l.edges["a"].Slot(protocol, r.local, to)
					if !ok || slot.Owner != podNodes[r.server] {
						t.Errorf("%s from %v to %v was served by %s, and its slot is %+v", network, r.local, to, r.server, slot)
					}
					servers[r.server]++
				}
			}
		}
		for _, pod := range l.pods {
			if servers[pod] < 20 {
				t.Errorf("servers %v: too few at %s", servers, pod)
			}
		}
		if n := l.tracked("a") + l.tracked("d"); n > 0 {
			t.Errorf("nodes without endpoints track %d connections", n)
		}
		a := l.stats("a")
		if a[programs.HandedOver] == 0 || a[programs.Known]+a[programs.Asked]+a[programs.Failed]+a[programs.NoRoute]+a[programs.NoNode] > 0 {
			t.Errorf("node a: %v", a)
		}
		t.Run("processes in the node's own network", func(t *testing.T) {
			l.serve("b", hostEndpointPort)
			for _, vip := range vips {
				for _, network := range []string{"tcp", "udp"} {
					for range 4 {
						if r, err := l.ask("client", network, at(vip, hostPort)); err != nil || r.server != "b" || !r.kept() {
							t.Errorf("%s %v: %+v, %v", network, vip, r, err)
						}
					}
				}
			}
		})
		t.Run("clients within the cluster", func(t *testing.T) {
			before := l.stats("a")
			for _, from := range []string{"pb1", "b"} {
				for _, to := range []netip.AddrPort{at(nodeIPs("a")[0], nodePort), at(nodeIPs("a")[1], nodePort)} {
					for range 3 {
						if r, err := l.ask(from, "tcp", to); err != nil || r.kept() { // node a masquerades it, as without the edge
							t.Errorf("%s to %v: %+v, %v", from, to, r, err)
						}
					}
				}
			}
			if after := l.stats("a"); after[programs.Inside] == before[programs.Inside] {
				t.Errorf("node a: %v, before %v", after, before)
			}
		})
	})
}

// TestSizes: packets of all sizes arrive, or the sender learns what fits.
func TestSizes(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		overhead := map[state.Family]int{state.IPv4: 36, state.IPv6: 56}[between]
		l := newLab(t, between, "pb1", "pc1")
		l.on(map[string]uint32{"b": 1, "c": 1})
		l.checksums("client", "eth0", true)
		for i, vip := range vips {
			headers := []int{28, 48}[i]
			fits := 1500 - overhead - headers
			t.Run(fmt.Sprintf("IPv%d datagrams that must not be split", []int{4, 6}[i]), func(t *testing.T) {
				for range 6 {
					conn, err := l.dial("client", "udp", at(vip, webPort))
					must(t, err)
					defer conn.Close()
					setDiscovery(t, conn, unix.IP_PMTUDISC_DO)
					if r, err := exchange(conn, bytes.Repeat([]byte("x"), fits)); err != nil || r.bytes != fits || !r.kept() {
						t.Errorf("%d bytes: %+v, %v", fits, r, err)
					}
					// The socket learns of it by the error, and each socket to the address knows it from then on.
					for range 10 {
						if _, err = exchangeFor(conn, bytes.Repeat([]byte("x"), fits+1), 300*time.Millisecond); errors.Is(err, unix.EMSGSIZE) {
							break
						}
					}
					if !errors.Is(err, unix.EMSGSIZE) {
						t.Errorf("%d bytes: %v, want that they are too many", fits+1, err)
					}
				}
			})
		}
		if l.stats("a")[programs.TooBig] == 0 {
			t.Errorf("node a: %v", l.stats("a"))
		}
		t.Run("datagrams that may be split", func(t *testing.T) {
			for _, size := range []int{1400, 1430, 1445, 1472, 2950, 4000, 20000} {
				for range 5 {
					conn, err := l.dial("client", "udp", at(vips[0], webPort))
					must(t, err)
					defer conn.Close()
					setDiscovery(t, conn, unix.IP_PMTUDISC_OMIT) // DF is not set, whatever the client has learned
					if r, err := exchange(conn, bytes.Repeat([]byte("x"), size)); err != nil || r.bytes != size || !r.kept() {
						t.Errorf("%d bytes: %+v, %v", size, r, err)
					}
				}
			}
			if s := l.stats("a"); s[programs.Split] == 0 || s[programs.Fragment] == 0 {
				t.Errorf("node a: %v", s)
			}
		})
		t.Run("IPv6 fragments, and large answers", func(t *testing.T) {
			for _, vip := range vips {
				for _, size := range []int{4000, 20000} {
					l.inFragments(vip, append([]byte("BIG"), bytes.Repeat([]byte("x"), size-3)...))
				}
			}
		})
		l.checksums("client", "eth0", false)
		t.Run("streams", func(t *testing.T) {
			line := append(bytes.Repeat([]byte("x"), 300000), '\n')
			for i, vip := range vips {
				for range 4 {
					conn, err := l.dial("client", "tcp", at(vip, webPort))
					must(t, err)
					defer conn.Close()
					if r, err := exchange(conn, line); err != nil || r.bytes != len(line) || !r.kept() {
						t.Errorf("%v: %+v, %v", vip, r, err)
					}
					if got, want := sendSize(t, conn), 1500-overhead-[]int{20, 40}[i]-20-12; got != want { // 12: timestamps
						t.Errorf("%v: segments of %d bytes, want %d", vip, got, want)
					}
				}
			}
			if s := l.stats("b"); s[programs.Clamped] == 0 {
				t.Errorf("node b: %v", s)
			}
		})
		t.Run("a narrow way to the client", func(t *testing.T) {
			l.setMTU("router", "eth1", 1300)
			line := append([]byte("BIG"), bytes.Repeat([]byte("x"), 100000)...)
			before := l.stats("a")
			for _, vip := range vips {
				for range 4 {
					conn, err := l.dial("client", "tcp", at(vip, webPort))
					must(t, err)
					defer conn.Close()
					if r, err := exchange(conn, append(slices.Clone(line), '\n')); err != nil || r.bytes != len(line)+1 {
						t.Errorf("%v: %+v, %v", vip, r, err)
					}
				}
			}
			if after := l.stats("a"); after[programs.ICMPError] == before[programs.ICMPError] {
				t.Errorf("no ICMP error came by node a: %v", after)
			}
		})
	})
}

// inFragments sends a datagram that needs fragments, and waits for the answer.
func (l *lab) inFragments(vip netip.Addr, message []byte) {
	l.t.Helper()
	conn, err := l.dial("client", "udp", at(vip, webPort))
	must(l.t, err)
	defer conn.Close()
	setDiscovery(l.t, conn, unix.IP_PMTUDISC_WANT)
	var r reply
	for range 3 { // the first fragments may be too large for the path
		if r, err = exchangeFor(conn, message, time.Second); err == nil {
			break
		}
	}
	if err != nil || r.bytes != len(message) || !r.kept() {
		l.t.Errorf("%v, %d bytes: %+v, %v", vip, len(message), r, err)
	}
}

// exchangeFor is exchange with another timeout.
func exchangeFor(conn net.Conn, message []byte, timeout time.Duration) (r reply, err error) {
	sooner := time.AfterFunc(timeout, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer sooner.Stop()
	return exchange(conn, message)
}

// sendSize returns how many bytes the segments of a connection have.
func sendSize(t *testing.T, conn net.Conn) (size int) {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	must(t, err, raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		must(t, err)
		size = int(info.Snd_mss)
	}))
	return size
}

// TestChanges: open connections stay with their servers through changes of shares, deaths of nodes and restarts.
func TestChanges(t *testing.T) {
	const n = 60
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pa1", "pb1", "pb2", "pc1")
		start := map[string]uint32{"b": 2, "c": 1}
		l.on(start)
		vip := vips[0]
		if between == state.IPv6 {
			vip = vips[1]
		}
		for _, network := range []string{"tcp", "udp"} {
			t.Run("shares change, "+network, func(t *testing.T) {
				f := l.open(network, at(vip, webPort), n)
				for _, shares := range []map[string]uint32{{"b": 1, "c": 2}, {"b": 1, "c": 3}, {"b": 1, "c": 1}, {"c": 1}, {"b": 3, "c": 1}} {
					f.turn(2)
					l.apply(shares)
				}
				f.turn(3)
				f.end("five changes")
				if s := l.stats("c"); s[programs.Asked] == 0 {
					t.Errorf("node c has asked nobody: %v", s)
				}
				l.apply(start)
			})
		}
		t.Run("another node", func(t *testing.T) {
			f := l.open("tcp", at(vip, webPort), n)
			f.turn(2)
			l.via("d")
			f.turn(2)
			l.apply(map[string]uint32{"b": 1, "c": 1})
			f.turn(3)
			l.via("a")
			f.turn(3)
			f.end("packets come in at d, then at a again")
			l.apply(start)
		})
		t.Run("an old table", func(t *testing.T) {
			l.apply(map[string]uint32{"c": 1}, "b", "c", "d") // a has b still
			f := l.open("tcp", at(vip, webPort), n)
			f.turn(2)
			l.apply(map[string]uint32{"c": 1}, "a")
			f.turn(2)
			if f.servers["pc1"] != n {
				t.Errorf("servers %v, and b has no share", f.servers)
			}
			f.end("b has lost its share, which a does not know at first")
			if s := l.stats("b"); s[programs.Returned] == 0 {
				t.Errorf("node b: %v", s)
			}
			l.apply(start)
		})
		t.Run("a node without a history", func(t *testing.T) {
			l.apply(map[string]uint32{"b": 4, "c": 1})
			f := l.open("tcp", at(vip, webPort), n)
			for _, shares := range []map[string]uint32{{"b": 1, "c": 1}, {"b": 1, "c": 4}} {
				f.turn(1)
				l.apply(shares)
			}
			must(t, l.edges["a"].Close())
			l.edge("a")
			f.turn(3)
			f.end("node a has started again, and b and c ask by their own histories")
			l.apply(start)
		})
		t.Run("own share", func(t *testing.T) {
			l.flush("a")
			for _, network := range []string{"tcp", "udp"} {
				f := l.open(network, at(vip, webPort), n)
				f.turn(1)
				for _, shares := range []map[string]uint32{{"a": 2, "b": 1, "c": 1}, {"b": 1, "c": 1}, {"a": 1, "c": 1}} {
					l.apply(shares)
					f.turn(3)
					more := l.open(network, at(vip, webPort), 20)
					more.turn(2)
					if (more.servers["pa1"] > 0) != (shares["a"] > 0) {
						t.Errorf("shares %v: servers %v", shares, more.servers)
					}
					more.end("while node a has a share or has none")
				}
				f.end(network + ": node a gets a share, loses it and gets it again")
				l.apply(start)
			}
		})
		t.Run("killed", func(t *testing.T) {
			l.flush("a")
			f := l.open("tcp", at(vip, webPort), n)
			f.turn(2)
			must(t, l.edges["a"].Close())
			time.Sleep(300 * time.Millisecond)
			l.edge("a")
			f.turn(3)
			f.end("the edge of node a is gone for a moment, and its guard drops what it does not know")
		})
		t.Run("dead", func(t *testing.T) {
			f := l.open("tcp", at(vip, webPort), n)
			f.turn(2)
			must(t, l.hosts["a"].nl.LinkSetDown(l.device("a", "eth0")))
			time.Sleep(300 * time.Millisecond)
			l.via("d")
			f.turn(3)
			f.end("node a is dead, and packets come in at d")
		})
	})
}

// askFrom connects from an address and port to the first virtual address, and resets the connection after an answer.
func (l *lab) askFrom(from netip.AddrPort) {
	l.t.Helper()
	must(l.t, l.hosts["client"].Do(func() error {
		dialer := net.Dialer{Timeout: 5 * time.Second, LocalAddr: net.TCPAddrFromAddrPort(from)}
		conn, err := dialer.Dial("tcp", at(vips[0], webPort).String())
		if err != nil {
			return err
		}
		_, err = exchange(conn, []byte("hello\n"))
		return errors.Join(err, conn.(*net.TCPConn).SetLinger(0), conn.Close())
	}))
}

// TestDeadNode: a node that is gone is asked for nothing soon, so that new flows are not lost with it. When it is there again, it is asked.
func TestDeadNode(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pb1", "pc1")
		l.on(map[string]uint32{"c": 1})
		l.apply(map[string]uint32{"b": 1}) // c was the owner of all slots
		const patient, hasty = 5 * time.Second, 200 * time.Millisecond
		ask := func(patience time.Duration) (lost int) {
			for range 5 {
				conn, err := l.dial("client", "udp", at(vips[0], webPort))
				must(t, err)
				if _, err := exchangeFor(conn, []byte("hello\n"), patience); err != nil {
					lost++
				}
				conn.Close()
			}
			return lost
		}
		if lost := ask(patient); lost > 0 {
			t.Errorf("%d flows are lost while node c is there", lost)
		}
		c := l.device("switch", "c")
		must(t, l.hosts["switch"].nl.LinkSetDown(c))
		await.Until(t, "flows are served without node c", func() bool { return ask(hasty) == 0 }, func() any { return l.stats("b") })
		before := l.stats("b")[programs.Asked]
		if lost := ask(patient); lost > 0 || l.stats("b")[programs.Asked] != before {
			t.Errorf("%d flows are lost, and node b asks others: %v", lost, l.stats("b"))
		}
		must(t, l.hosts["switch"].nl.LinkSetUp(c))
		await.Until(t, "node c is asked again", func() bool { ask(hasty); return l.stats("b")[programs.Asked] > before }, func() any { return l.stats("b") })
		if lost := ask(patient); lost > 0 {
			t.Errorf("%d flows are lost when node c is there again", lost)
		}
	})
}

// TestOnAndOff: connections of before the edge go on with it, and connections of the edge go on without it.
func TestOnAndOff(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.shares = map[string]uint32{"b": 1, "c": 1}
	for _, network := range []string{"tcp", "udp"} {
		for _, node := range []string{"b", "c", "d"} {
			l.edge(node)
		}
		before := l.open(network, at(vips[0], webPort), 30)
		before.turn(1)
		again := at(clientIPs[0], 9999)
		l.askFrom(again)
		a := l.edge("a")
		// The client uses a port again of a connection that node a still tracks.
		l.askFrom(again)
		before.turn(2)
		if s := l.stats("a"); s[programs.Known] == 0 || s[programs.HandedOver] > 0 {
			t.Errorf("node a: %v", s)
		}
		during := l.open(network, at(vips[0], webPort), 30)
		during.turn(1)

		// The shares are withdrawn: today's path serves new connections.
		for _, node := range nodeNames {
			without := service(l.shares)
			for i := range without.Ports {
				without.Ports[i].Edge.Shares = nil
			}
			must(t, l.edges[node].Apply(&state.Update{Node: l.node(node, nodeNames...), Changed: []*state.Service{without}}, nil))
		}
		if s := a.Status(); s.Ports != 0 || s.Draining == 0 {
			t.Errorf("without shares: %+v", s)
		}
		during.turn(2)
		after := l.open(network, at(vips[0], webPort), 30)
		after.turn(2)
		for what, f := range map[string]*flows{"before the edge": before, "of the edge": during, "after the edge": after} {
			f.end(network + " connections of " + what)
		}
		if r, err := l.ask("client", network, at(vips[0], webPort)); err != nil || r.kept() {
			t.Errorf("after the edge, a new connection has %+v, %v", r, err)
		}
		for _, node := range nodeNames {
			must(t, l.edges[node].Close())
			l.flush(node)
		}
	}
}

// TestNodePortsAreBehindOwnFrontends: a frontend with the address of a node goes before a NodePort, and connections of the NodePort go on.
func TestNodePortsAreBehindOwnFrontends(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.on(map[string]uint32{"b": 1, "c": 1})
	to := at(nodeIPs("a")[0], nodePort)
	for _, network := range []string{"tcp", "udp"} {
		f := l.open(network, to, 20)
		f.turn(1)
		owner := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "owner"}, Ports: []state.Port{{
			Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{{Kind: state.LoadBalancer, Addr: to.Addr(), Port: to.Port()}},
		}}}
		for _, node := range nodeNames {
			must(t, l.edges[node].Apply(&state.Update{Node: l.node(node), Changed: []*state.Service{owner}}, nil))
		}
		// In this lab, netfilter leads both to the same pods.
		for range 4 {
			if r, err := l.ask("client", network, to); err != nil || r.kept() {
				t.Errorf("%s to the frontend: %+v, %v", network, r, err)
			}
			if r, err := l.ask("client", network, at(nodeIPs("a")[1], nodePort)); err != nil || !r.kept() {
				t.Errorf("%s to the other address: %+v, %v", network, r, err)
			}
		}
		f.turn(2)
		f.end(network + " connections of the NodePort")
		for _, node := range nodeNames {
			must(t, l.edges[node].Apply(&state.Update{Node: l.node(node), Removed: []state.ServiceName{owner.Name}}, nil))
		}
		l.flush("a")
		if r, err := l.ask("client", network, to); err != nil || !r.kept() {
			t.Errorf("%s to the NodePort again: %+v, %v", network, r, err)
		}
	}
}
