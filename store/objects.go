package store

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// service is what the store knows about one service. It exists as long as there is an object or a slice for it.
type service struct {
	name   state.ServiceName
	object *model.Service         // nil if only slices are known
	slices []*model.EndpointSlice // in no order
	// computed is what the brain last said, nil if the service is not routed here.
	computed *state.Service
	// published is computed without the frontends that other services hold; the two are the same pointer if there are none.
	published *state.Service

	// trigger is the earliest time that led to one of the slices' changes since the last publication, zero if none is known.
	trigger time.Time

	dirty     bool // in objects.dirty
	unsettled bool // in Store.unsettled
}

// namespace groups what is in one namespace, so that its label costs only its own services.
type namespace struct {
	disabled bool
	services map[string]*service
	slices   map[string]*model.EndpointSlice // those that belong to a service
}

// objects indexes the cluster's objects and notes which services a change concerns.
type objects struct {
	nodeName     string
	node         *model.Node // nil if absent
	namespaces   map[string]*namespace
	serviceCIDRs map[string]*model.ServiceCIDR

	dirty     []*service
	rendered  *state.Node // what node and serviceCIDRs amount to
	nodeDirty bool        // rendered must be made again
}

func newObjects(nodeName string) objects {
	return objects{
		nodeName:     nodeName,
		namespaces:   make(map[string]*namespace),
		serviceCIDRs: make(map[string]*model.ServiceCIDR),
		rendered:     &state.Node{Name: nodeName},
	}
}

// put adds or replaces an object.
func (o *objects) put(obj model.Object) {
	switch obj := obj.(type) {
	case *model.Service:
		svc := o.service(obj.Name)
		svc.object = obj
		o.mark(svc)
	case *model.EndpointSlice:
		former := o.removeSlice(obj.Namespace, obj.Name)
		if obj.Service == "" {
			return
		}
		o.namespace(obj.Namespace).slices[obj.Name] = obj
		svc := o.service(obj.ServiceName())
		svc.slices = append(svc.slices, obj)
		if former == nil || !former.TriggerTime.Equal(obj.TriggerTime) {
			svc.triggered(obj.TriggerTime)
		}
		o.mark(svc)
	case *model.Node:
		if obj.Name == o.nodeName {
			o.setNode(obj)
		}
	case *model.Namespace:
		o.setDisabled(obj.Name, obj.ProxyDisabled)
	case *model.ServiceCIDR:
		o.serviceCIDRs[obj.Name] = obj
		o.nodeDirty = true
	}
}

// remove forgets an object, if it is known.
func (o *objects) remove(ref model.Ref) {
	switch ref.Kind {
	case model.KindService:
		if ns := o.namespaces[ref.Namespace]; ns != nil && ns.services[ref.Name] != nil {
			svc := ns.services[ref.Name]
			svc.object = nil
			o.mark(svc)
		}
	case model.KindEndpointSlice:
		o.removeSlice(ref.Namespace, ref.Name)
	case model.KindNode:
		if ref.Name == o.nodeName {
			o.setNode(nil)
		}
	case model.KindNamespace:
		o.setDisabled(ref.Name, false)
	case model.KindServiceCIDR:
		delete(o.serviceCIDRs, ref.Name)
		o.nodeDirty = true
	}
}

// triggered notes the time of a change.
func (s *service) triggered(at time.Time) {
	if !at.IsZero() && (s.trigger.IsZero() || at.Before(s.trigger)) {
		s.trigger = at
	}
}

// removeSlice forgets a slice and returns it, or nil if it is not known.
func (o *objects) removeSlice(namespace, name string) *model.EndpointSlice {
	ns := o.namespaces[namespace]
	if ns == nil || ns.slices[name] == nil {
		return nil
	}
	slice := ns.slices[name]
	delete(ns.slices, name)
	svc := ns.services[slice.Service]
	svc.slices = slices.DeleteFunc(svc.slices, func(s *model.EndpointSlice) bool { return s == slice })
	o.mark(svc)
	return slice
}

// setNode replaces this node's object. All services depend on it.
func (o *objects) setNode(node *model.Node) {
	if sameNode(o.node, node) {
		return
	}
	o.node = node
	o.nodeDirty = true
	for _, ns := range o.namespaces {
		o.markAll(ns)
	}
}

func sameNode(a, b *model.Node) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Name == b.Name && a.Zone == b.Zone && slices.Equal(a.Addresses, b.Addresses) && slices.Equal(a.PodCIDRs, b.PodCIDRs)
}

func (o *objects) setDisabled(name string, disabled bool) {
	if o.disabled(name) == disabled {
		return
	}
	ns := o.namespace(name)
	ns.disabled = disabled
	o.markAll(ns)
	o.dropNamespaceIfEmpty(name)
}

// disabled says that the services of a namespace are not to be routed.
func (o *objects) disabled(name string) bool {
	ns := o.namespaces[name]
	return ns != nil && ns.disabled
}

func (o *objects) namespace(name string) *namespace {
	ns := o.namespaces[name]
	if ns == nil {
		ns = &namespace{services: make(map[string]*service), slices: make(map[string]*model.EndpointSlice)}
		o.namespaces[name] = ns
	}
	return ns
}

func (o *objects) service(name state.ServiceName) *service {
	ns := o.namespace(name.Namespace)
	svc := ns.services[name.Name]
	if svc == nil {
		svc = &service{name: name}
		ns.services[name.Name] = svc
	}
	return svc
}

func (o *objects) mark(svc *service) {
	if !svc.dirty {
		svc.dirty = true
		o.dirty = append(o.dirty, svc)
	}
}

func (o *objects) markAll(ns *namespace) {
	for _, svc := range ns.services {
		o.mark(svc)
	}
}

// takeDirty returns the services that have been marked since it was last called.
func (o *objects) takeDirty() []*service {
	dirty := o.dirty
	o.dirty = nil
	for _, svc := range dirty {
		svc.dirty = false
	}
	return dirty
}

// dropIfEmpty forgets a service of which nothing is known any more.
func (o *objects) dropIfEmpty(svc *service) {
	if svc.object != nil || len(svc.slices) > 0 {
		return
	}
	delete(o.namespaces[svc.name.Namespace].services, svc.name.Name)
	o.dropNamespaceIfEmpty(svc.name.Namespace)
}

func (o *objects) dropNamespaceIfEmpty(name string) {
	if ns := o.namespaces[name]; !ns.disabled && len(ns.services) == 0 {
		delete(o.namespaces, name)
	}
}

// stateNode returns the node as dataplanes see it, the same pointer as long as it is the same node.
func (o *objects) stateNode() *state.Node {
	if !o.nodeDirty {
		return o.rendered
	}
	o.nodeDirty = false
	node := &state.Node{Name: o.nodeName}
	if o.node != nil {
		node.Addresses = slices.Clone(o.node.Addresses)
		node.PodCIDRs = sortedPrefixes(o.node.PodCIDRs)
	}
	for _, c := range o.serviceCIDRs {
		node.ServiceCIDRs = append(node.ServiceCIDRs, c.CIDRs...)
	}
	node.ServiceCIDRs = sortedPrefixes(node.ServiceCIDRs)
	if !node.Equal(o.rendered) {
		o.rendered = node
	}
	return o.rendered
}

// sortedPrefixes returns prefixes masked, sorted and without duplicates.
func sortedPrefixes(prefixes []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(prefixes))
	for _, p := range prefixes {
		sorted = append(sorted, p.Masked())
	}
	slices.SortFunc(sorted, netip.Prefix.Compare)
	return slices.Compact(sorted)
}
