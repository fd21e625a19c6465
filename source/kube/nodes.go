package kube

import (
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// watchedNode is the name of the only Node that is asked for, empty for all.
func (o *Options) watchedNode() string {
	if o.NodeHealth || o.Edge {
		return ""
	}
	return o.NodeName
}

// isOwn reports whether a Node is this Node, or all are delivered alike.
func (o *Options) isOwn(name string) bool { return o.AllNodes || name == o.NodeName }

// putNode notes a Node, and returns what of it is delivered: of other Nodes than this one, only what the options name. It does not change n.
func (d *delivery) putNode(n *model.Node, eligible bool) *model.Node {
	o := &d.source.options
	if !o.NodeHealth && n.Health != model.NodeReady || !o.Edge && n.Edge != "" { // a copy, because the watcher compares n with what it lists
		without := *n
		if !o.NodeHealth {
			without.Health, without.HealthSince = model.NodeReady, time.Time{}
		}
		if !o.Edge {
			without.Edge = ""
		}
		n = &without
	}
	if !o.isOwn(n.Name) {
		other := &model.Node{Name: n.Name, Health: n.Health, HealthSince: n.HealthSince}
		if o.Edge {
			other.Addresses, other.PodCIDRs, other.Edge = firstOf(n.Addresses), firstOf(n.PodCIDRs), n.Edge
			other.Internal = min(n.Internal, len(other.Addresses))
		}
		return other
	}
	d.source.eligible.Store(eligible)
	d.node = n
	return n
}

// firstOf returns as much of a list as counts for the edge. It does not keep the memory of the rest.
func firstOf[E any](list []E) []E {
	if len(list) <= model.MostOfNode {
		return list
	}
	return slices.Clone(list[:model.MostOfNode])
}

// deleteNode notes that a Node is gone.
func (d *delivery) deleteNode(name string) {
	if d.source.options.isOwn(name) {
		d.source.eligible.Store(false)
		d.node = nil
	}
}

// listedNodes notes a list of Nodes: without this one, load balancers should not send to it.
func (d *delivery) listedNodes(items []*item) {
	if !slices.ContainsFunc(items, func(i *item) bool { return d.source.options.isOwn(i.ref.Name) }) {
		d.source.eligible.Store(false)
	}
}
