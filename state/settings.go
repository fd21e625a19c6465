package state

import (
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"
)

// LocalDetector distinguishes connections of pods from all other connections. At most one of its ways is used, in the order of the
// fields. The zero value takes no client for a pod.
//
// The brain goes by the same detector: in a family whose pods it cannot see, no record distinguishes them.
type LocalDetector struct {
	// ClusterCIDRs: a source address in one of them is a pod's.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR: a source address in the node's own pod CIDRs (Node.PodCIDRs) is a pod's.
	NodeCIDR bool
	// BridgeInterface: what comes in on this interface comes from a pod.
	BridgeInterface string
	// InterfacePrefix: what comes in on an interface whose name starts with it comes from a pod.
	InterfacePrefix string
}

// Enabled reports whether the detector can see pods at all.
func (d LocalDetector) Enabled() bool {
	return len(d.ClusterCIDRs) > 0 || d.NodeCIDR || d.BridgeInterface != "" || d.InterfacePrefix != ""
}

// Detects reports whether the detector can see the pods of an IP family: with cluster CIDRs, only if one is of that family.
func (d LocalDetector) Detects(f Family) bool {
	if len(d.ClusterCIDRs) == 0 {
		return d.Enabled()
	}
	return slices.ContainsFunc(d.ClusterCIDRs, func(p netip.Prefix) bool { return FamilyOf(p.Addr()) == f })
}

// Equal reports whether two detectors are the same in every field.
func (d LocalDetector) Equal(o LocalDetector) bool {
	return slices.Equal(d.ClusterCIDRs, o.ClusterCIDRs) && d.NodeCIDR == o.NodeCIDR && d.BridgeInterface == o.BridgeInterface &&
		d.InterfacePrefix == o.InterfacePrefix
}

// String describes the detector for messages, in the words of the configuration.
func (d LocalDetector) String() string {
	switch {
	case len(d.ClusterCIDRs) > 0:
		return "ClusterCIDR " + list(d.ClusterCIDRs)
	case d.NodeCIDR:
		return "NodeCIDR"
	case d.BridgeInterface != "":
		return "BridgeInterface " + d.BridgeInterface
	case d.InterfacePrefix != "":
		return "InterfaceNamePrefix " + d.InterfacePrefix
	}
	return "none"
}

// MaxInterfaceName is how many bytes the name of an interface has at most: IFNAMSIZ of the kernel, less the closing 0.
const MaxInterfaceName = 15

// IsInterfaceName reports whether a detector can have a name of an interface, or the beginning of one. It becomes a part of rules and
// of messages, which must be valid UTF-8.
func IsInterfaceName(name string) bool {
	return name != "" && len(name) <= MaxInterfaceName && !strings.ContainsAny(name, "/ \t\n\x00") && utf8.ValidString(name)
}

func list(prefixes []netip.Prefix) string {
	var texts []string
	for _, p := range prefixes {
		texts = append(texts, p.String())
	}
	return strings.Join(texts, ",")
}

// NodePortAddresses says on which addresses of the node NodePorts are served. It is a rule rather than a list of addresses: the set
// follows the node's interfaces, which only a dataplane on the node sees.
type NodePortAddresses struct {
	// Primary serves on the first address of each family in Node.Addresses.
	Primary bool
	// CIDRs serves on the local addresses in one of these ranges. If it is empty and Primary is false, NodePorts are served
	// on all local addresses but loopback ones.
	CIDRs []netip.Prefix
}

// Equal reports whether the two are the same in every field.
func (n NodePortAddresses) Equal(o NodePortAddresses) bool {
	return n.Primary == o.Primary && slices.Equal(n.CIDRs, o.CIDRs)
}

// String describes the addresses for messages, in the words of the configuration.
func (n NodePortAddresses) String() string {
	switch {
	case n.Primary && len(n.CIDRs) > 0:
		return "primary," + list(n.CIDRs)
	case n.Primary:
		return "primary"
	case len(n.CIDRs) > 0:
		return list(n.CIDRs)
	}
	return "all"
}

// Select returns the addresses on which n serves NodePorts, sorted, out of the local addresses of this machine. The arguments are
// not modified.
//
// The primary addresses of the node count even if no interface has them. kube-proxy takes them from the Node object as well, and
// clients know them. With one-to-one NAT in a cloud, they may never be on an interface. A virtual IP may arrive there later.
//
// Loopback addresses are never selected, except by a range that lies within the loopback range: 127.0.0.0/8 names them, 0.0.0.0/0 does
// not. The same holds for IPv6 link-local addresses and fe80::/10. Each interface of a pod has such an address, and the kernel cannot
// route a translated connection without the interface of the address.
func (n NodePortAddresses) Select(local []netip.Addr, node *Node) []netip.Addr {
	var selected []netip.Addr
	if n.Primary && node != nil {
		selected = primary(node.Addresses)
	}
	all := !n.Primary && len(n.CIDRs) == 0
	for _, addr := range local {
		if all && !isSpecial(addr) || slices.ContainsFunc(n.CIDRs, func(r netip.Prefix) bool { return admits(r, addr) }) {
			selected = append(selected, addr)
		}
	}
	slices.SortFunc(selected, netip.Addr.Compare)
	return slices.Compact(selected)
}

// primary returns the first address of each family.
func primary(addrs []netip.Addr) []netip.Addr {
	var first []netip.Addr
	for _, addr := range addrs {
		if !slices.ContainsFunc(first, func(a netip.Addr) bool { return a.Is4() == addr.Is4() }) {
			first = append(first, addr)
		}
	}
	return first
}

func admits(r netip.Prefix, addr netip.Addr) bool {
	return r.Contains(addr) && (!isSpecial(addr) || r.Bits() >= specialBits(addr))
}

// isSpecial reports whether only a range that names the special range of addr selects addr.
func isSpecial(addr netip.Addr) bool {
	return addr.IsLoopback() || addr.Is6() && addr.IsLinkLocalUnicast()
}

// specialBits returns the length of the prefix of the special range of addr: 127.0.0.0/8, ::1/128 or fe80::/10. A range that contains addr and
// is no wider lies within it.
func specialBits(addr netip.Addr) int {
	switch {
	case addr.Is4():
		return 8
	case addr.IsLoopback():
		return 128
	}
	return 10
}
