package kube

import (
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// watchedNode is the name of the only Node that is asked for, empty for all.
func (o *Options) watchedNode() string {
	if o.NodeHealth {
		return ""
	}
	return o.NodeName
}

// isOwn reports whether a Node is this Node, or all are delivered alike.
func (o *Options) isOwn(name string) bool { return o.AllNodes || name == o.NodeName }

// putNode notes a Node, and returns what of it is delivered: of other Nodes than this one, only the health. It does not change n.
func (d *delivery) putNode(n *model.Node, eligible bool) *model.Node {
	o := &d.source.options
	if !o.NodeHealth && n.Health != model.NodeReady { // a copy, because the watcher compares n with what it lists
		without := *n
		without.Health, without.HealthSince = model.NodeReady, time.Time{}
		n = &without
	}
	if !o.isOwn(n.Name) {
		return &model.Node{Name: n.Name, Health: n.Health, HealthSince: n.HealthSince}
	}
	d.source.eligible.Store(eligible)
	d.node = n
	return n
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
