//go:build linux

package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/e2e/controlplane"
	"github.com/switchyard-net/switchyard/test/netns"
)

// namespace is where programs run, such as a *netns.NS.
type namespace interface{ Do(fn func() error) error }

// nodeAddrs are the addresses of a node, in the range of controlplane.Address.
func nodeAddrs(i int) []netip.Addr {
	return []netip.Addr{
		netip.AddrFrom4([4]byte{198, 18, byte(1 + i/250), byte(1 + i%250)}),
		netip.MustParseAddr(fmt.Sprintf("2001:db8::%x", i+1)),
	}
}

// link connects the namespace of a node with the namespace of the control plane. The node reaches nothing else.
func link(plane namespace, node *netns.NS, i int) error {
	addrs := nodeAddrs(i)
	err := plane.Do(func() error {
		return withNetlink(func(h *netlink.Handle) error {
			here := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: linkName(i)}, PeerName: "eth0"}
			if err := node.Fd(func(fd int) error {
				here.PeerNamespace = netlink.NsFd(fd)
				return h.LinkAdd(here)
			}); err != nil {
				return err
			}
			return errors.Join(h.LinkSetUp(here), h.RouteAdd(toLink(here.Index, addrs[0].String()+"/32")))
		})
	})
	if err == nil {
		err = node.Do(func() error { return withNetlink(func(h *netlink.Handle) error { return setUp(h, addrs) }) })
	}
	if err != nil {
		return fmt.Errorf("link %s with the control plane: %w", nodeName(i), err)
	}
	return nil
}

// unlink removes the link of a node. The kernel would do so only some time after the end of the node's namespace.
func unlink(plane namespace, i int) error {
	return plane.Do(func() error {
		return withNetlink(func(h *netlink.Handle) error {
			l, err := h.LinkByName(linkName(i))
			if err != nil {
				return err
			}
			return h.LinkDel(l)
		})
	})
}

// linkName is the device of a node's link in the namespace of the control plane.
func linkName(i int) string { return fmt.Sprintf("n%d", i) }

// setUp sets up the devices of a node.
func setUp(h *netlink.Handle, addrs []netip.Addr) error {
	lo, err := h.LinkByName("lo")
	if err != nil {
		return err
	}
	eth, err := h.LinkByName("eth0")
	if err != nil {
		return err
	}
	errs := []error{h.LinkSetUp(lo), h.LinkSetUp(eth)}
	for _, a := range addrs {
		addr := &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}}
		if a.Is6() {
			addr.Flags = unix.IFA_F_NODAD
		}
		errs = append(errs, h.AddrAdd(eth, addr))
	}
	for _, to := range []string{controlplane.Address + "/32", "0.0.0.0/0", "::/0"} {
		errs = append(errs, h.RouteAdd(toLink(eth.Attrs().Index, to)))
	}
	return errors.Join(errs...)
}

func toLink(index int, prefix string) *netlink.Route {
	_, dst, err := net.ParseCIDR(prefix)
	if err != nil {
		panic(err)
	}
	return &netlink.Route{LinkIndex: index, Scope: netlink.SCOPE_LINK, Dst: dst}
}

func withNetlink(do func(*netlink.Handle) error) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	return do(h)
}
