package edge_test

import (
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// TestFlooded: a switch that does not know where a node is sends its packets to all nodes. The others leave them alone.
func TestFlooded(t *testing.T) {
	t.Run("tcx", func(t *testing.T) { testFlooded(t, false) })
	t.Run("xdp", func(t *testing.T) { testFlooded(t, true) })
}

func testFlooded(t *testing.T, xdp bool) {
	l := newLab(t, state.IPv4, "pb1", "pc1")
	if xdp {
		l.checksums("client", "eth0", true)
		for _, node := range nodeNames {
			l.passXDP("switch", node)
		}
	}
	l.on(map[string]uint32{"b": 1, "c": 1}, func(s *edge.Settings) { s.XDP = xdp })
	for _, node := range nodeNames {
		if s := l.edges[node].Status(); xdp && len(s.Driver) == 0 {
			t.Skipf("the driver does not take programs: %+v", s)
		}
	}
	before := map[string]edge.Stats{}
	for _, node := range slices.Backward(nodeNames) { // so that drivers know the hardware addresses of other nodes
		l.via(node)
		for range 8 {
			for _, vip := range vips {
				if _, err := l.ask("client", "udp", at(vip, webPort)); err != nil {
					t.Errorf("by %s: %v", node, err)
				}
			}
		}
		before[node] = l.stats(node)
	}
	first := func(hardware net.HardwareAddr) {
		t.Helper()
		for i, addr := range nodeIPs("a") {
			must(t, l.hosts["router"].nl.NeighSet(&netlink.Neigh{
				LinkIndex: l.device("router", "eth0").Attrs().Index, Family: []int{unix.AF_INET, unix.AF_INET6}[i], State: netlink.NUD_PERMANENT,
				IP: addr.AsSlice(), HardwareAddr: hardware,
			}))
		}
	}
	first(net.HardwareAddr{2, 0x53, 0x59, 9, 9, 9})
	var conns []net.Conn
	for _, vip := range vips {
		for range 8 {
			conn, err := l.dial("client", "udp", at(vip, webPort))
			must(t, err)
			defer conn.Close()
			_, err = conn.Write([]byte("hello\n"))
			must(t, err)
			conns = append(conns, conn)
		}
	}
	first(l.device("a", "eth0").Attrs().HardwareAddr)
	for _, to := range []netip.AddrPort{at(vips[0], webPort), at(vips[1], webPort)} {
		if r, err := l.ask("client", "udp", to); err != nil || !r.kept() {
			t.Errorf("%v: %+v, %v", to, r, err)
		}
	}
	for _, conn := range conns {
		must(t, conn.SetReadDeadline(time.Now().Add(time.Millisecond)))
		if n, err := conn.Read(make([]byte, 64)); err == nil {
			t.Errorf("a datagram for a node that is not there was answered, by %d bytes", n)
		}
	}
	for _, node := range []string{"b", "c", "d"} {
		if s, b := l.stats(node), before[node]; s[programs.HandedOver]+s[programs.OwnShare] > b[programs.HandedOver]+b[programs.OwnShare] {
			t.Errorf("node %s: %v, before %v", node, s, b)
		}
	}
}
