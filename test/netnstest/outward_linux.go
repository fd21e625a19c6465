package netnstest

import (
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
)

// Do calls a function in a namespace, such as a [netns.NS] or a [topology.Host]. It fails the test if the function returns an error.
func Do(t testing.TB, ns interface{ Do(func() error) error }, fn func() error) {
	t.Helper()
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}

// Outward makes a device with addresses. All packets that leave the namespace leave it through this device, and nobody gets them.
func Outward(t testing.TB, ns *netns.NS, prefixes ...string) {
	t.Helper()
	Do(t, ns, func() error {
		h, err := netlink.NewHandle()
		if err != nil {
			return err
		}
		defer h.Close()
		out := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "peer"}
		if err := h.LinkAdd(out); err != nil {
			return err
		}
		peer, err := h.LinkByName("peer")
		if err != nil {
			return err
		}
		errs := []error{h.LinkSetARPOff(out), h.LinkSetUp(out), h.LinkSetUp(peer)}
		for _, p := range prefixes {
			addr, err := netlink.ParseAddr(p)
			if err != nil {
				return err
			}
			if addr.IP.To4() == nil {
				addr.Flags = unix.IFA_F_NODAD
			}
			errs = append(errs, h.AddrAdd(out, addr))
		}
		for _, all := range []string{"0.0.0.0/0", "::/0"} {
			_, dst, _ := net.ParseCIDR(all)
			errs = append(errs, h.RouteAdd(&netlink.Route{LinkIndex: out.Index, Scope: netlink.SCOPE_LINK, Dst: dst}))
		}
		return errors.Join(errs...)
	})
}

// Datagram sends a datagram of UDP from a port. It ignores the error of the socket if the datagram is rejected or dropped.
func Datagram(t testing.TB, ns *netns.NS, port int, to netip.AddrPort) {
	t.Helper()
	Do(t, ns, func() error {
		conn, err := net.DialUDP("udp", &net.UDPAddr{Port: port}, net.UDPAddrFromAddrPort(to))
		if err != nil {
			return err
		}
		_, _ = conn.Write([]byte("first"))
		return conn.Close()
	})
}
