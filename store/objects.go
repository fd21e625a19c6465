package store

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// service is the store's knowledge of one service. It exists while an object or a slice for the service exists.
type service struct {
	name   state.ServiceName
	object *model.Service         // nil if only slices are known
	slices []*model.EndpointSlice // in no order
	// born is when the service was created, in seconds since 1970, and entries is how many it wants. See [birth] and [ledger].
	born    int64
	entries int64
	// computed is the brain's last answer, nil if the service is not routed here.
	computed *state.Service
	// published is computed without the frontends that other services hold; the two are the same pointer if there are none.
	published *state.Service
	// answer is the last answer that a Cluster has published.
	answer *answer

	// ramp has the new endpoints, nil without a slow start.
	ramp *ramp

	// trigger is the earliest time that led to one of the slices' changes since the last publication, zero if none is known.
	trigger time.Time

	hasProblems bool // in core.problems
	dirty       bool // in objects.dirty
	pending     bool // in core.pending
}

// namespace groups the services of one namespace, so that a change of its label costs only its own services.
type namespace struct {
	disabled bool
	services map[string]*service
	slices   map[string]*model.EndpointSlice // those that belong to a service
}

// objects indexes the cluster's objects and notes which services a change concerns.
type objects struct {
	// nodeName is the only node that counts, empty if all do.
	nodeName     string
	nodes        map[string]*model.Node
	namespaces   map[string]*namespace
	serviceCIDRs map[string]*model.ServiceCIDR
	addresses    addresses
	health       nodeHealth
	edge         edge
	// places is nil while neither the health of Nodes nor the edge needs it.
	places places

	dirty        []*service
	changedNodes map[string]*model.Node // nodes that have changed, as they were before, nil if absent
	changedCIDRs bool
}

// objectsOfNode returns objects for which only one node counts.
func objectsOfNode(name string) objects {
	o := objectsOfAll()
	o.nodeName = name
	return o
}

// objectsOfAll returns objects for which all nodes count.
func objectsOfAll() objects {
	return objects{
		nodes:        make(map[string]*model.Node),
		namespaces:   make(map[string]*namespace),
		serviceCIDRs: make(map[string]*model.ServiceCIDR),
		changedNodes: make(map[string]*model.Node),
		addresses:    newAddresses(),
		health:       newNodeHealth(),
	}
}

// put adds or replaces an object.
func (o *objects) put(obj model.Object) {
	switch obj := obj.(type) {
	case *model.Service:
		o.setObject(o.service(obj.Name), obj)
	case *model.EndpointSlice:
		previous := o.removeSlice(obj.Namespace, obj.Name)
		if obj.Service == "" {
			return
		}
		obj = o.marked(obj)
		o.namespace(obj.Namespace).slices[obj.Name] = obj
		svc := o.service(obj.ServiceName())
		svc.slices = append(svc.slices, obj)
		o.count(svc, obj, 1)
		if previous == nil || !previous.TriggerTime.Equal(obj.TriggerTime) {
			svc.triggered(obj.TriggerTime)
		}
		o.mark(svc)
	case *model.Node:
		o.setNode(obj.Name, obj)
	case *model.Namespace:
		o.setDisabled(obj.Name, obj.ProxyDisabled)
	case *model.ServiceCIDR:
		o.serviceCIDRs[obj.Name] = obj
		o.changedCIDRs = true
	}
}

// remove forgets an object, if it is known.
func (o *objects) remove(ref model.Ref) {
	switch ref.Kind {
	case model.KindService:
		if ns := o.namespaces[ref.Namespace]; ns != nil && ns.services[ref.Name] != nil {
			o.setObject(ns.services[ref.Name], nil)
		}
	case model.KindEndpointSlice:
		o.removeSlice(ref.Namespace, ref.Name)
	case model.KindNode:
		o.setNode(ref.Name, nil)
	case model.KindNamespace:
		o.setDisabled(ref.Name, false)
	case model.KindServiceCIDR:
		delete(o.serviceCIDRs, ref.Name)
		o.changedCIDRs = true
	}
}

// setObject replaces the object of a service, nil if it is gone.
func (o *objects) setObject(svc *service, object *model.Service) {
	o.addresses.setExternals(svc, externalIPs(svc.object), externalIPs(object))
	svc.object = object
	o.mark(svc)
}

func externalIPs(object *model.Service) []netip.Addr {
	if object == nil {
		return nil
	}
	if object.Annotation(model.PortRangesAnnotation) != "" {
		return slices.Concat(object.ExternalIPs, object.LoadBalancerIPs)
	}
	return object.ExternalIPs
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
	o.count(svc, slice, -1)
	o.mark(svc)
	return slice
}

// setNode replaces the object of a node, nil if it is gone.
func (o *objects) setNode(name string, node *model.Node) {
	var addrs []netip.Addr
	if node != nil {
		addrs = node.Addresses
	}
	o.addresses.setNode(name, addrs, o.markExternal)
	o.health.set(name, node, time.Now())
	o.edge.set(name, node)
	previous := o.nodes[name]
	if o.nodeName != "" && name != o.nodeName || sameNode(previous, node) {
		return
	}
	if _, known := o.changedNodes[name]; !known {
		o.changedNodes[name] = previous
	}
	if node == nil {
		delete(o.nodes, name)
	} else {
		o.nodes[name] = node
	}
}

// markExternal marks the services that have an address as an externalIP.
func (o *objects) markExternal(addr netip.Addr) {
	for svc := range o.addresses.externals[addr] {
		o.mark(svc)
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

// disabled reports whether the services of a namespace are not to be routed.
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
		svc = &service{name: name, born: bornUnknown}
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

// servicesOf returns the services of a namespace, by name. They must not be modified.
func (o *objects) servicesOf(namespace string) map[string]*service {
	if ns := o.namespaces[namespace]; ns != nil {
		return ns.services
	}
	return nil
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

// dropIfEmpty forgets a service without object, slices and anything else known about it.
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

// takeNodes returns the nodes that have changed since the last call, each in its state before the change and nil if it
// was absent. It also returns whether service CIDRs have changed.
func (o *objects) takeNodes() (previous map[string]*model.Node, cidrs bool) {
	previous, cidrs = o.changedNodes, o.changedCIDRs
	if len(previous) > 0 {
		o.changedNodes = make(map[string]*model.Node)
	}
	o.changedCIDRs = false
	return previous, cidrs
}

// allServiceCIDRs are the ranges of all ServiceCIDRs, in order.
func (o *objects) allServiceCIDRs() []netip.Prefix {
	var cidrs []netip.Prefix
	for _, c := range o.serviceCIDRs {
		cidrs = append(cidrs, c.CIDRs...)
	}
	return sortedPrefixes(cidrs)
}

// settings are the part of a node that the operator decides.
type settings struct {
	detector  *state.LocalDetector
	nodePorts *state.NodePortAddresses
}

func settingsOf(c *brain.Config) settings { return settings{new(c.LocalDetector), new(c.NodePorts)} }

// node returns a node as dataplanes see it. object is its object, nil if absent. All nodes share the peers.
func (s settings) node(name string, object *model.Node, serviceCIDRs []netip.Prefix, peers []state.Peer) *state.Node {
	n := &state.Node{Name: name, ServiceCIDRs: serviceCIDRs, LocalDetector: s.detector, NodePorts: s.nodePorts, Peers: peers}
	if object != nil {
		n.Addresses = slices.Clip(object.Addresses)
		n.PodCIDRs = sortedPrefixes(object.PodCIDRs)
	}
	return n
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
