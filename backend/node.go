package backend

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// LocalDetector tells connections of pods from those of other clients. At most one of its ways is used, in the order of the
// fields. The zero value takes no client for a pod.
type LocalDetector struct {
	// ClusterCIDRs: a source address in one of them is a pod's.
	ClusterCIDRs []netip.Prefix
	// NodeCIDR: a source address in the node's own pod CIDRs (state.Node.PodCIDRs) is a pod's.
	NodeCIDR bool
	// BridgeInterface: what comes in on this interface comes from a pod.
	BridgeInterface string
	// InterfacePrefix: what comes in on an interface whose name starts with it comes from a pod.
	InterfacePrefix string
}

// Enabled says whether the detector can see pods at all.
func (d LocalDetector) Enabled() bool {
	return len(d.ClusterCIDRs) > 0 || d.NodeCIDR || d.BridgeInterface != "" || d.InterfacePrefix != ""
}

// Detects says whether the detector can see the pods of an IP family: with cluster CIDRs, only if one is of that family.
func (d LocalDetector) Detects(f state.Family) bool {
	if len(d.ClusterCIDRs) == 0 {
		return d.Enabled()
	}
	return slices.ContainsFunc(d.ClusterCIDRs, func(p netip.Prefix) bool { return state.FamilyOf(p.Addr()) == f })
}

// NodePortAddresses says on which addresses of the node NodePorts are served. The set follows the node's interfaces.
type NodePortAddresses struct {
	// Primary serves on the first address of each family in state.Node.Addresses.
	Primary bool
	// CIDRs serves on the local addresses in one of these ranges. If it is empty and Primary is false, NodePorts are served
	// on all local addresses but loopback ones.
	CIDRs []netip.Prefix
}
