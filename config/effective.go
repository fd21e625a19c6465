package config

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// DefaultMode returns what an empty mode stands for on a platform, named as in runtime.GOOS.
func DefaultMode(platform string) Mode {
	if platform == "windows" {
		return ModeKernelspace
	}
	return ModeNFTables
}

// MasqueradeBit returns the number of the packet mark bit from the section of the mode, even where the nftables
// dataplane replaces the mode. Other programs on the node may rely on the bit.
func (c *Config) MasqueradeBit() int32 {
	switch c.Mode {
	case ModeIPTables:
		return c.IPTables.MasqueradeBit
	case ModeIPVS:
		return c.IPVS.MasqueradeBit
	}
	return c.NFTables.MasqueradeBit
}

// CommitInterval returns the least time between two commits to the kernel, as MinSyncPeriod demands. Up to its default
// of 1 s, the interval is none. kube-proxy needs that default to limit full writes, whereas Switchyard commits only
// changes.
func (c *Config) CommitInterval() time.Duration {
	if c.MinSyncPeriod.Duration <= Default().MinSyncPeriod.Duration {
		return 0
	}
	return c.MinSyncPeriod.Duration
}

// NodeIPs returns the addresses that count as this node's, the primary one first, given the addresses of the Node
// object. NodeIPOverride replaces the addresses of the Node object. With the policy SingleStack, only addresses of the
// primary one's family count. The result may share memory with either.
func (c *Config) NodeIPs(node []netip.Addr) []netip.Addr {
	addrs := node
	if len(c.NodeIPOverride) > 0 {
		addrs = c.NodeIPOverride
	}
	if c.IPFamilyPolicy != SingleStack || len(addrs) == 0 {
		return addrs
	}
	return slices.DeleteFunc(slices.Clone(addrs), func(a netip.Addr) bool { return a.Is4() != addrs[0].Is4() })
}

// CheckNodeIPs returns an error if the node's addresses, as NodeIPs returns them, are not what IPFamilyPolicy demands. A node without
// addresses has not got them yet.
func (c *Config) CheckNodeIPs(addrs []netip.Addr) error {
	if c.IPFamilyPolicy != RequireDualStack || len(addrs) == 0 ||
		slices.ContainsFunc(addrs, netip.Addr.Is4) && slices.ContainsFunc(addrs, netip.Addr.Is6) {
		return nil
	}
	return fmt.Errorf("ipFamilyPolicy is RequireDualStack, and this node has addresses of one family only: %v; "+
		"give it one of each, here with nodeIPOverride or in the Node object, or set ipFamilyPolicy to PreferDualStack", addrs)
}

// LocalDetector returns what DetectLocalMode and DetectLocal mean for a dataplane.
func (c *Config) LocalDetector() state.LocalDetector {
	switch c.DetectLocalMode {
	case LocalModeNodeCIDR:
		return state.LocalDetector{NodeCIDR: true}
	case LocalModeBridgeInterface:
		return state.LocalDetector{BridgeInterface: c.DetectLocal.BridgeInterface}
	case LocalModeInterfaceNamePrefix:
		return state.LocalDetector{InterfacePrefix: c.DetectLocal.InterfaceNamePrefix}
	}
	var d state.LocalDetector
	for _, p := range c.DetectLocal.ClusterCIDRs {
		d.ClusterCIDRs = append(d.ClusterCIDRs, p.Masked())
	}
	return d
}

var (
	everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	localhost  = []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")}
)

// NodePorts returns the addresses on which NodePorts are served.
//
// If NodePortAddresses is empty, the mode decides, as with kube-proxy. Modes nftables and ebpf (which is part of
// nftables) use the primary addresses, other modes all addresses. A blank mode counts as iptables, as in kube-proxy, so
// that a cluster without a configured mode keeps its NodePorts. In mode iptables, iptables.localhostNodePorts adds the
// loopback addresses of IPv4. kube-proxy serves no other loopback addresses in that mode.
func (c *Config) NodePorts() state.NodePortAddresses {
	a, loopback := c.NodePortAddresses, localhost
	if !a.Primary && !a.Localhost && !a.All && len(a.CIDRs) == 0 {
		if c.Mode == ModeNFTables || c.Mode == ModeEBPF {
			return state.NodePortAddresses{Primary: true}
		}
		a.All = true
		loopback = localhost[:1]
		a.Localhost = (c.Mode == "" || c.Mode == ModeIPTables) && c.IPTables.LocalhostNodePorts
	}
	ports := state.NodePortAddresses{Primary: a.Primary}
	if a.All {
		ports.CIDRs = append(ports.CIDRs, everywhere...)
	}
	if a.Localhost {
		ports.CIDRs = append(ports.CIDRs, loopback...)
	}
	for _, p := range a.CIDRs {
		ports.CIDRs = append(ports.CIDRs, p.Masked())
	}
	return ports
}
