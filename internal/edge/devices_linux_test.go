package edge_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/edge"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netns"
)

// TestSeveralDevices: packets come in by another device, a VLAN where the kernel has them, and are handed over by the first one.
func TestSeveralDevices(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.add("vlan", false)
	l.plug("vlan", "eth0")
	second := ""
	for i, name := range []string{"a", "b", "c", "vlan"} {
		second = l.vlan(name, 7)
		n := i + 1
		l.address(name, second, []netip.Addr{netip.MustParseAddr(fmt.Sprintf("198.51.101.%d", n)), netip.MustParseAddr(fmt.Sprintf("2001:db8:0:7::%d", n))}, 24, 64)
	}
	for _, name := range []string{"b", "c"} { // they have a way of their own to the client, and see its packets come in by the other device
		must(t, l.hosts[name].SetSysctls(netns.Sysctl{Path: "net/ipv4/conf/all/rp_filter", Value: "2"}))
	}
	for i, vip := range vips {
		l.route("vlan", second, netip.PrefixFrom(vip, vip.BitLen()).String(), []string{"198.51.101.1", "2001:db8:0:7::1"}[i])
	}
	l.on(map[string]uint32{"b": 1, "c": 1}, func(s *edge.Settings) {
		if len(l.edges) < 3 { // d is not in the second network
			s.Interfaces = []string{"eth0", second}
		}
	})
	for range 10 {
		for _, vip := range vips {
			for _, network := range []string{"tcp", "udp"} {
				if r, err := l.ask("vlan", network, at(vip, webPort)); err != nil || !r.kept() {
					t.Errorf("%s to %v by the VLAN: %+v, %v", network, vip, r, err)
				}
				if r, err := l.ask("client", network, at(vip, webPort)); err != nil || !r.kept() {
					t.Errorf("%s to %v: %+v, %v", network, vip, r, err)
				}
			}
		}
	}
	if s := l.edges["a"].Status(); !slices.Equal(s.Attached, []string{"eth0", second}) {
		t.Errorf("%+v", s)
	}
	if got := l.stats("a"); got[programs.HandedOver] < 80 {
		t.Errorf("node a: %v", got)
	}
	t.Run("a device that goes and comes", func(t *testing.T) {
		must(t, l.hosts["a"].nl.LinkDel(l.device("a", second)))
		if _, err := l.edges["a"].Verify(); err == nil || !strings.Contains(err.Error(), second+": set edge.interfaces") {
			t.Errorf("without the device: %v", err)
		}
		if r, err := l.ask("client", "tcp", at(vips[0], webPort)); err != nil || !r.kept() {
			t.Errorf("by the other device: %+v, %v", r, err)
		}
		l.vlan("a", 7)
		l.address("a", second, []netip.Addr{netip.MustParseAddr("198.51.101.1")}, 24, 64)
		if repaired, err := l.edges["a"].Verify(); repaired != 1 || err != nil {
			t.Errorf("with the device again: %d repaired, %v", repaired, err)
		}
		must(t, l.hosts["vlan"].nl.NeighDel(&netlink.Neigh{ // the new device may have another hardware address
			LinkIndex: l.device("vlan", second).Attrs().Index, Family: unix.AF_INET, IP: net.ParseIP("198.51.101.1"),
		}))
		if r, err := l.ask("vlan", "tcp", at(vips[0], webPort)); err != nil || !r.kept() {
			t.Errorf("by the VLAN again: %+v, %v", r, err)
		}
	})
}

// vlan connects a host with a VLAN, and returns the name of its device. Without VLANs in the kernel, that is a device of its own.
func (l *lab) vlan(name string, id int) string {
	l.t.Helper()
	dev := &netlink.Vlan{
		LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprintf("eth0.%d", id), ParentIndex: l.device(name, "eth0").Attrs().Index}, VlanId: id,
		VlanProtocol: netlink.VLAN_PROTOCOL_8021Q,
	}
	if err := l.hosts[name].nl.LinkAdd(dev); errors.Is(err, unix.EOPNOTSUPP) {
		dev.Name = fmt.Sprintf("eth%d", id)
		l.plug(name, dev.Name)
	} else {
		must(l.t, err)
	}
	must(l.t, l.hosts[name].nl.LinkSetUp(l.device(name, dev.Name)))
	return dev.Name
}

// TestTaggedFrames: the device of a VLAN sees packets of the VLAN, and the device below leaves them alone.
func TestTaggedFrames(t *testing.T) {
	t.Parallel()
	l := newLab(t, state.IPv4, "pb1", "pc1")
	l.on(map[string]uint32{"b": 1, "c": 1})
	frame := func(tag []byte) []byte {
		return slices.Concat(l.device("a", "eth0").Attrs().HardwareAddr, l.device("neighbour", "eth0").Attrs().HardwareAddr, tag, []byte{8, 0},
			datagram(at(onUnderlay(200)[0], 5000), at(vips[0], webPort), "hello\n"))
	}
	send := func(frame []byte) {
		must(t, l.hosts["neighbour"].Do(func() error {
			fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(fd)
			return unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: l.device("neighbour", "eth0").Attrs().Index})
		}))
	}
	send(frame([]byte{0x81, 0, 0, 9}))
	send(frame(nil))
	await.Until(t, "the second frame is handed over", func() bool { return l.stats("a")[programs.HandedOver] > 0 })
	// The neighbour answers the answer by an ICMP error.
	if s := l.stats("a"); s[programs.HandedOver]-s[programs.ICMPError] != 1 {
		t.Errorf("node a: %v", s)
	}
}

// TestXDP: the driver hands plain packets over, and leaves all others to the kernel.
func TestXDP(t *testing.T) {
	each(t, func(t *testing.T, between state.Family) {
		l := newLab(t, between, "pa1", "pb1", "pc1")
		l.passXDP("switch", "a")
		l.checksums("client", "eth0", true) // this driver loses checksums that are left to it
		l.checksums("neighbour", "eth0", true)
		l.shares = map[string]uint32{"b": 1, "c": 1}
		before := l.open("tcp", at(vips[0], webPort), 20)
		before.turn(1)
		for _, node := range nodeNames {
			l.edge(node, func(s *edge.Settings) { s.XDP = node == "a" })
		}
		l.settle()
		if s := l.edges["a"].Status(); !slices.Equal(s.Driver, []string{"eth0"}) {
			t.Skipf("the driver does not take programs: %+v", s)
		}
		for _, vip := range vips {
			for _, network := range []string{"tcp", "udp"} {
				f := l.open(network, at(vip, webPort), 20)
				f.turn(1)
				l.apply(map[string]uint32{"b": 1, "c": 3})
				f.turn(1)
				l.apply(map[string]uint32{"a": 1, "b": 1, "c": 1})
				f.turn(2)
				f.end(fmt.Sprintf("%s to %v", network, vip))
				l.inFragments(vip, bytes.Repeat([]byte("x"), 4000))
			}
		}
		before.turn(1)
		before.end("connections of before")
		if s := l.stats("a"); s[programs.HandedOver] == 0 || s[programs.OwnShare] == 0 {
			t.Errorf("node a: %v", s)
		}
	})
}

// passXDP attaches a program that passes all packets. A pair of devices hands packets to the other end's driver only then.
func (l *lab) passXDP(name, device string) {
	l.t.Helper()
	pass, err := ebpf.NewProgram(&ebpf.ProgramSpec{
		Type: ebpf.XDP, License: "MIT", Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}, // XDP_PASS
	})
	must(l.t, err)
	l.t.Cleanup(func() { pass.Close() })
	must(l.t, l.hosts[name].Do(func() error {
		at, err := link.AttachXDP(link.XDPOptions{Program: pass, Interface: l.device(name, device).Attrs().Index, Flags: link.XDPDriverMode})
		if err == nil {
			l.t.Cleanup(func() { at.Close() })
		}
		return err
	}))
}
