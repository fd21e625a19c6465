package config

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/backend"
)

// DefaultMode returns what an empty mode stands for on a platform, named as in runtime.GOOS.
func DefaultMode(platform string) Mode {
	if platform == "windows" {
		return ModeKernelspace
	}
	return ModeNFTables
}

// LocalDetector returns what DetectLocalMode and DetectLocal mean for a dataplane.
func (c *Config) LocalDetector() backend.LocalDetector {
	switch c.DetectLocalMode {
	case LocalModeNodeCIDR:
		return backend.LocalDetector{NodeCIDR: true}
	case LocalModeBridgeInterface:
		return backend.LocalDetector{BridgeInterface: c.DetectLocal.BridgeInterface}
	case LocalModeInterfaceNamePrefix:
		return backend.LocalDetector{InterfacePrefix: c.DetectLocal.InterfaceNamePrefix}
	}
	return backend.LocalDetector{ClusterCIDRs: c.DetectLocal.ClusterCIDRs}
}

var (
	everywhere = []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	// localhost has no counterpart of IPv6: the kernel routes nothing from ::1 to another host.
	localhost = netip.MustParsePrefix("127.0.0.0/8")
)

// NodePorts returns on which addresses NodePorts are served.
//
// If NodePortAddresses is empty, it depends on the mode, as with kube-proxy: the primary addresses if the mode is nftables,
// otherwise all of them. A blank mode counts as iptables, which is what it stands for in kube-proxy, so that a cluster that
// never chose a mode keeps the NodePorts it has; there, iptables.localhostNodePorts adds the loopback addresses.
func (c *Config) NodePorts() backend.NodePortAddresses {
	a := c.NodePortAddresses
	if !a.Primary && !a.Localhost && !a.All && len(a.CIDRs) == 0 {
		if c.Mode == ModeNFTables {
			return backend.NodePortAddresses{Primary: true}
		}
		a.All = true
		a.Localhost = (c.Mode == "" || c.Mode == ModeIPTables) && c.IPTables.LocalhostNodePorts
	}
	ports := backend.NodePortAddresses{Primary: a.Primary}
	if a.All {
		ports.CIDRs = append(ports.CIDRs, everywhere...)
	}
	if a.Localhost {
		ports.CIDRs = append(ports.CIDRs, localhost)
	}
	for _, p := range a.CIDRs {
		ports.CIDRs = append(ports.CIDRs, p.Masked())
	}
	return ports
}
