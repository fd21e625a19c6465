//go:build linux

package topology

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// gateways are what pods route everything to, on their own link. No host has these addresses: a permanent neighbour entry
// leads to the node.
var gateways = []netip.Addr{netip.MustParseAddr("169.254.1.1"), netip.MustParseAddr("fe80::1")}

// bridgeName is the name of the device of the switch.
const bridgeName = "br0"

// build makes the hosts that every lab has, and the underlay between them.
func (l *Lab) build(ctx context.Context) (err error) {
	sysctls := nodeSysctls
	if !l.options.LimitICMP {
		sysctls = slices.Concat(nodeSysctls, unlimitedICMP)
	}
	addrs := func(n byte) (list []netip.Addr) {
		for _, prefix := range l.options.Underlay {
			list = append(list, nth(prefix, n))
		}
		return list
	}
	if l.switchHost, err = NewHost("switch", nil, hostSysctls); err != nil {
		return err
	}
	if l.node, err = NewHost("node", addrs(1), sysctls); err != nil {
		return err
	}
	if l.other, err = NewHost("other", addrs(2), sysctls); err != nil {
		return err
	}
	if len(l.options.ThirdPodCIDRs) > 0 {
		if l.third, err = NewHost("third", addrs(3), sysctls); err != nil {
			return err
		}
	}
	if l.client, err = NewHost("client", addrs(100), hostSysctls); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return l.buildUnderlay()
}

func (l *Lab) buildUnderlay() error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = bridgeName
	bridge := &netlink.Bridge{LinkAttrs: attrs}
	if err := l.switchHost.nl.LinkAdd(bridge); err != nil {
		return fmt.Errorf("add the bridge: %w", err)
	}
	if err := l.switchHost.nl.LinkSetUp(bridge); err != nil {
		return fmt.Errorf("start the bridge: %w", err)
	}
	hosts := append(l.Nodes(), l.client)
	devs := map[*Host]netlink.Link{}
	for _, host := range hosts {
		up, down, err := l.veth(l.switchHost, host.Name, host, UnderlayInterface)
		if err != nil {
			return err
		}
		if err := l.switchHost.nl.LinkSetMaster(up, bridge); err != nil {
			return fmt.Errorf("join %s to the bridge: %w", host.Name, err)
		}
		for i, addr := range host.Addrs {
			if err := host.AddAddr(netip.PrefixFrom(addr, l.options.Underlay[i].Bits())); err != nil {
				return err
			}
		}
		devs[host] = down
	}
	for _, host := range hosts {
		for _, peer := range hosts {
			if peer == host {
				continue
			}
			if err := host.addNeighbours(devs[host], peer.Addrs, devs[peer]); err != nil {
				return err
			}
		}
	}
	// The node's default route is the client, so that the node finds a route for virtual addresses; the client forwards
	// nothing.
	errs := []error{l.client.addRoutes(devs[l.client], defaults(l.node.Addrs), l.node.Addrs, nil)}
	for _, node := range l.Nodes() {
		errs = append(errs, node.addRoutes(devs[node], defaults(l.client.Addrs), l.client.Addrs, nil))
		for _, peer := range l.Nodes() {
			if peer != node {
				errs = append(errs, node.addRoutes(devs[node], l.podCIDRs(peer), peer.Addrs, nil))
			}
		}
	}
	return firstError(errs...)
}

// joinPod connects a pod with its node, on which the device gets the name dev.
func (l *Lab) joinPod(pod, node *Host, dev string) error {
	nodeDev, podDev, err := l.veth(node, dev, pod, UnderlayInterface)
	if err != nil {
		return err
	}
	pod.node, pod.NodeInterface = node, dev
	for _, addr := range pod.Addrs {
		if err := pod.AddAddr(netip.PrefixFrom(addr, addr.BitLen())); err != nil {
			return err
		}
	}
	return firstError(
		pod.addNeighbours(podDev, gateways, nodeDev),
		pod.addRoutes(podDev, defaults(gateways), gateways, pod.Addrs),
		node.addNeighbours(nodeDev, pod.Addrs, podDev),
		node.addRoutes(nodeDev, hostPrefixes(pod.Addrs), nil, node.Addrs),
	)
}

// veth connects two hosts by a pair of devices that are up.
func (l *Lab) veth(a *Host, aName string, b *Host, bName string) (aDev, bDev netlink.Link, err error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = aName, l.mac()
	pair := netlink.NewVeth(attrs)
	pair.PeerName, pair.PeerHardwareAddr = bName, l.mac()
	err = b.ns.Fd(func(fd int) error {
		pair.PeerNamespace = netlink.NsFd(fd)
		return a.nl.LinkAdd(pair)
	})
	if err != nil {
		return nil, nil, fmt.Errorf("connect %s with %s: %w", a.Name, b.Name, err)
	}
	if bDev, err = b.nl.LinkByName(bName); err != nil {
		return nil, nil, fmt.Errorf("find the device of %s: %w", b.Name, err)
	}
	if err := firstError(a.nl.LinkSetUp(pair), b.nl.LinkSetUp(bDev)); err != nil {
		return nil, nil, fmt.Errorf("start the link of %s and %s: %w", a.Name, b.Name, err)
	}
	if err := firstError(a.awaitUp(pair), b.awaitUp(bDev)); err != nil {
		return nil, nil, err
	}
	return pair, bDev, nil
}

// awaitUp waits until a started device carries packets. The kernel gives it a queue in the background (linkwatch), on a busy machine some
// 100 ms later. It drops packets that are sent before.
func (h *Host) awaitUp(dev netlink.Link) error {
	return waitFor(fmt.Sprintf("device %s of %s", dev.Attrs().Name, h.Name), func() (bool, error) {
		now, err := h.nl.LinkByIndex(dev.Attrs().Index)
		if err != nil || now.Attrs().OperState != netlink.OperUp {
			return false, err
		}
		// The update is announced before the queue is there, both under the lock that this takes.
		return true, h.nl.LinkSetUp(now)
	})
}

// mac returns a new, locally administered address.
func (l *Lab) mac() net.HardwareAddr {
	l.macs++
	return net.HardwareAddr{2, 0x53, 0x59, byte(l.macs >> 16), byte(l.macs >> 8), byte(l.macs)}
}

// addNeighbours gives a host permanent entries: addrs are at the other end of its link.
func (h *Host) addNeighbours(dev netlink.Link, addrs []netip.Addr, peer netlink.Link) error {
	for _, addr := range addrs {
		err := h.nl.NeighSet(&netlink.Neigh{
			LinkIndex: dev.Attrs().Index, Family: family(addr), State: netlink.NUD_PERMANENT,
			IP: addr.AsSlice(), HardwareAddr: peer.Attrs().HardwareAddr,
		})
		if err != nil {
			return fmt.Errorf("add neighbour %v on %s: %w", addr, h.Name, err)
		}
	}
	return nil
}

// addRoutes routes each destination through the gateway of its family, or onto the link if gws is nil. The first address of
// its family in sources becomes the preferred source.
func (h *Host) addRoutes(dev netlink.Link, dsts []netip.Prefix, gws, sources []netip.Addr) error {
	for _, dst := range dsts {
		route := &netlink.Route{LinkIndex: dev.Attrs().Index, Dst: ipNet(dst)}
		if gw := ofFamily(gws, dst.Addr()); gw.IsValid() {
			route.Gw, route.Flags = gw.AsSlice(), int(netlink.FLAG_ONLINK)
		} else {
			route.Scope = netlink.SCOPE_LINK
		}
		if src := ofFamily(sources, dst.Addr()); src.IsValid() {
			route.Src = src.AsSlice()
		}
		if err := h.nl.RouteReplace(route); err != nil {
			return fmt.Errorf("add route to %v on %s: %w", dst, h.Name, err)
		}
	}
	return nil
}

// defaults returns the default route of the family of each address.
func defaults(addrs []netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, addr := range addrs {
		if addr.Is4() {
			list = append(list, netip.PrefixFrom(netip.IPv4Unspecified(), 0))
		} else {
			list = append(list, netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		}
	}
	return list
}

func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	var list []netip.Prefix
	for _, addr := range addrs {
		list = append(list, netip.PrefixFrom(addr, addr.BitLen()))
	}
	return list
}

// ofFamily returns the first address in list of the family of addr, or the zero Addr.
func ofFamily(list []netip.Addr, addr netip.Addr) netip.Addr {
	for _, a := range list {
		if a.Is4() == addr.Is4() {
			return a
		}
	}
	return netip.Addr{}
}

func family(addr netip.Addr) int {
	if addr.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ipNet(prefix netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
