// Package backend holds what all dataplanes share: the contract, [Run], which keeps one in step with a feed of states, and the
// settings of a node that every dataplane needs. Each dataplane is a package below this one.
package backend

import (
	"context"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/reconcile"
	"github.com/switchyard-net/switchyard/state"
)

// Backend programs one dataplane.
type Backend = reconcile.Backend

// Result says what a call of a [Backend] did.
type Result = reconcile.Result

// RunOptions says how [Run] paces itself. The zero value has all defaults.
type RunOptions = reconcile.Options

// Status is how a dataplane is doing, as [RunOptions] has it reported.
type Status = reconcile.Status

// Attempt is one call of a [Backend], as [RunOptions] has it reported.
type Attempt = reconcile.Attempt

// Run keeps b in step with a feed, such as a store.Store, until ctx ends, and then returns nil; what is programmed stays. It
// returns an error only if the feed is closed.
//
// What fails is tried again after a pause that grows, with what has changed meanwhile merged in. A single service that
// fails is tried again by itself and holds up nothing else. Now and then, and when the backend is disturbed, the backend
// compares what the kernel holds with what it should hold, and repairs it.
func Run(ctx context.Context, feed state.Feed, b Backend, o RunOptions) error {
	return reconcile.Run(ctx, feed, b, o)
}

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
