//go:build linux

package topology

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// TunnelInterface is the name of the device of [Lab.Tunnel] on both nodes.
const TunnelInterface = "tunnel"

// tunnelPort is where the nodes take packets of the tunnel.
const tunnelPort = 4789

// Tunnel lets the nodes reach the IPv4 addresses of each other's pods through a VXLAN tunnel from now on, as many network plugins do. An encapsulated packet
// has the mark of the packet in it, and meets the rules of the node again, from its output on.
func (l *Lab) Tunnel() error {
	nodes := map[*Host]*Host{l.node: l.other, l.other: l.node}
	isIPv6 := func(p netip.Prefix) bool { return !p.Addr().Is4() }
	pods := map[*Host][]netip.Prefix{
		l.node:  slices.DeleteFunc(slices.Clone(l.options.NodePodCIDRs), isIPv6),
		l.other: slices.DeleteFunc(slices.Clone(l.options.OtherPodCIDRs), isIPv6),
	}
	devs := map[*Host]netlink.Link{}
	for host, peer := range nodes {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = TunnelInterface, l.mac()
		dev := &netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: 1, Port: tunnelPort, Learning: false,
			SrcAddr: ofFamily(host.Addrs, netip.IPv4Unspecified()).AsSlice(), Group: ofFamily(peer.Addrs, netip.IPv4Unspecified()).AsSlice(),
		}
		if err := firstError(host.nl.LinkAdd(dev), host.nl.LinkSetUp(dev)); err != nil {
			return fmt.Errorf("add a tunnel to %s: %w", host.Name, err)
		}
		devs[host] = dev
	}
	for host, peer := range nodes {
		err := firstError(
			host.addNeighbours(devs[host], peer.Addrs, devs[peer]),
			host.addRoutes(devs[host], pods[peer], peer.Addrs, host.Addrs),
		)
		if err != nil {
			return err
		}
	}
	return nil
}

// TranslatedTunnel describes the flows of the tunnel's own packets whose address or port the host changes.
func (h *Host) TranslatedTunnel() (flows []string, err error) {
	err = h.Do(func() error {
		list, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
		if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return fmt.Errorf("list the connections of %s: %w", h.Name, err)
		}
		for _, f := range list {
			there, back := f.Forward, f.Reverse
			if there.Protocol == unix.IPPROTO_UDP && there.DstPort == tunnelPort && (!there.SrcIP.Equal(back.DstIP) || there.SrcPort != back.DstPort) {
				flows = append(flows, fmt.Sprintf("%v:%d, which left as %v:%d", there.SrcIP, there.SrcPort, back.DstIP, back.DstPort))
			}
		}
		return nil
	})
	return flows, err
}
