// Package randcluster invents random histories of a cluster: services, endpoint slices, nodes, namespaces and service CIDRs
// that come, change and go. A seed decides all of it, so that one number reproduces a failure.
package randcluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
)

// History is a cluster that changes at random. Its methods must be called by one goroutine at a time.
type History struct {
	opts    Options
	pods    []pod
	rng     *rand.Rand
	started bool
	// objects are what the cluster holds now. They are replaced, never modified.
	objects []model.Object
	// touched are the objects that the current step has to do with.
	touched []model.Ref
}

// New returns the history of a seed, before its first step. The same seed and options always give the same history.
func New(seed uint64, opts Options) *History {
	opts = opts.withDefaults()
	return &History{opts: opts, pods: pods(opts.Endpoints), rng: rand.New(rand.NewPCG(seed, 0))}
}

// Step changes the cluster and returns how, ready for a source's sink: objects that are new or different, and objects that
// are gone. Now and then an equal object is set or an unknown one deleted, as sinks must expect. The first step fills the
// cluster, each later one makes one to three changes. The caller owns the objects.
func (h *History) Step() (set []model.Object, deleted []model.Ref) {
	h.touched = nil
	if !h.started {
		h.started = true
		h.populate()
	} else {
		for range 1 + h.rng.IntN(3) {
			h.change()
		}
	}
	for i, ref := range h.touched {
		if slices.Contains(h.touched[:i], ref) {
			continue
		}
		if obj := h.find(ref); obj != nil {
			set = append(set, clone(obj))
		} else {
			deleted = append(deleted, ref)
		}
	}
	return set, deleted
}

// World returns the cluster as it is now, as the node sees it. Nothing in it changes with later steps, and it must not be
// modified.
func (h *History) World() *oracle.World {
	return &oracle.World{
		NodeName:          h.opts.NodeName,
		ServiceProxyName:  h.opts.ServiceProxyName,
		DetectLocal:       h.opts.DetectLocal,
		MasqueradeAll:     h.opts.MasqueradeAll,
		ExternalIPs:       h.opts.AllowedExternalIPs,
		NodeExternalIPs:   h.opts.NodeExternalIPs,
		IgnoreExternalIPs: h.opts.IgnoreExternalIPs,
		Budgets:           h.opts.Budgets,
		NodeHealth:        h.opts.NodeHealth,
		NodePortAddrs:     h.opts.NodePortAddrs,
		Services:          kind[*model.Service](h),
		Slices:            kind[*model.EndpointSlice](h),
		Nodes:             kind[*model.Node](h),
		Namespaces:        kind[*model.Namespace](h),
		ServiceCIDRs:      kind[*model.ServiceCIDR](h),
	}
}

// The names that services, slices and their namespaces take.
var (
	namespaces   = []string{"blue", "green"}
	serviceNames = []string{"api", "db", "web"}
	sliceNames   = []string{"s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8"}
)

// ServiceNames lists the names that services take.
func ServiceNames() (names []state.ServiceName) {
	for _, namespace := range namespaces {
		for _, name := range serviceNames {
			names = append(names, state.ServiceName{Namespace: namespace, Name: name})
		}
	}
	return names
}

// populate makes the first state of the cluster.
func (h *History) populate() {
	for i := range h.opts.Nodes {
		if h.opts.FixedNodes || h.chance(0.8) {
			h.put(h.newNode(&h.opts.Nodes[i]))
		}
	}
	for i := range h.opts.ServiceCIDRs {
		if h.opts.FixedServiceCIDRs || h.chance(0.6) {
			h.put(h.serviceCIDR(i))
		}
	}
	for range 1 + h.rng.IntN(6) {
		h.put(h.newService())
	}
	for range 4 + h.rng.IntN(12) {
		h.put(h.newSlice())
	}
}

// changes are all the ways in which a cluster can change, each as often as its weight says.
var changes = []struct {
	weight int
	apply  func(*History)
}{
	{4, func(h *History) { h.put(h.newService()) }},
	{8, (*History).tweakService},
	{2, remove[*model.Service]},
	{5, func(h *History) { h.put(h.newSlice()) }},
	{8, (*History).tweakSlice},
	{2, remove[*model.EndpointSlice]},
	{6, (*History).flipEndpoint},
	{3, (*History).moveEndpoint},
	{3, (*History).changeNode},
	{1, (*History).changeNamespace},
	{1, (*History).changeServiceCIDR},
	{1, (*History).repeat},
}

// change makes one random change.
func (h *History) change() {
	total := 0
	for _, c := range changes {
		total += c.weight
	}
	dice := h.rng.IntN(total)
	for _, c := range changes {
		if dice -= c.weight; dice < 0 {
			c.apply(h)
			return
		}
	}
}

// changeNode adds, changes or removes a node.
func (h *History) changeNode() {
	n := h.newNode(&h.opts.Nodes[h.rng.IntN(len(h.opts.Nodes))])
	if !h.opts.FixedNodes && h.chance(0.2) {
		h.drop(n.Ref())
		return
	}
	h.put(n)
}

// newNode draws the node's zone, and which of its addresses it has.
func (h *History) newNode(pool *Node) *model.Node {
	n := &model.Node{Name: pool.Name, Zone: pick(h, []string{"", "west", "east"})}
	for _, addr := range pool.Addresses {
		if h.opts.FixedNodes || h.chance(0.8) {
			n.Addresses = append(n.Addresses, addr)
		}
	}
	if h.opts.NodeHealth.Percent > 0 {
		h.setHealth(n)
	}
	if h.opts.Edge {
		n.Edge = pick(h, []string{"v1,7635", "v1,7635", "v1,7635", "v1,7636", "", "v2,7635"})
	}
	return n
}

// setHealth draws a node's health. Each time that a node becomes unready, it did so long ago, or does just now. So it makes no difference whether
// a sink learns of its recovery in between. A sink has to remember a shutdown while the kubelet is silent. So only nodes that became unready long
// ago are silent.
func (h *History) setHealth(n *model.Node) {
	long := slices.IndexFunc(h.opts.Nodes, func(o Node) bool { return o.Name == n.Name })%2 == 0
	n.Health = pick(h, []model.NodeHealth{model.NodeReady, model.NodeReady, model.NodeNotReady, model.NodeShuttingDown})
	n.HealthSince = h.opts.NodeHealth.Now.Add(time.Hour)
	if long {
		n.HealthSince = h.opts.NodeHealth.Now.Add(-2 * h.opts.NodeHealth.After)
		if n.Health == model.NodeNotReady && h.chance(0.5) {
			n.Health = model.NodeSilent
		}
	}
	if n.Health == model.NodeReady {
		n.HealthSince = time.Time{}
	}
}

// changeNamespace adds, changes or removes a namespace. Objects in a namespace do not need it to be there.
func (h *History) changeNamespace() {
	n := &model.Namespace{Name: pick(h, namespaces), ProxyDisabled: h.chance(0.4)}
	if h.chance(0.3) {
		h.drop(n.Ref())
		return
	}
	h.put(n)
}

// changeServiceCIDR adds or removes a service CIDR.
func (h *History) changeServiceCIDR() {
	c := h.serviceCIDR(h.rng.IntN(len(h.opts.ServiceCIDRs)))
	if !h.opts.FixedServiceCIDRs && h.chance(0.5) {
		h.drop(c.Ref())
		return
	}
	h.put(c)
}

func (h *History) serviceCIDR(i int) *model.ServiceCIDR {
	return &model.ServiceCIDR{Name: fmt.Sprintf("cidr-%d", i), CIDRs: h.opts.ServiceCIDRs[i : i+1]}
}

// repeat touches an object without changing it: it is set again, or deleted although nobody knows it.
func (h *History) repeat() {
	if len(h.objects) > 0 && h.chance(0.5) {
		h.touched = append(h.touched, pick(h, h.objects).Ref())
		return
	}
	h.touched = append(h.touched, model.Ref{Kind: model.KindService, Namespace: pick(h, namespaces), Name: "unknown"})
}

// put adds or replaces an object.
func (h *History) put(obj model.Object) {
	if h.opts.Admissible {
		h.admissible(obj)
	}
	if s, ok := obj.(*model.EndpointSlice); ok {
		s.Pods = podNames(s.Endpoints)
	}
	ref := obj.Ref()
	h.touched = append(h.touched, ref)
	for i, old := range h.objects {
		if old.Ref() == ref {
			h.objects[i] = obj
			return
		}
	}
	h.objects = append(h.objects, obj)
}

// drop removes an object if it is there.
func (h *History) drop(ref model.Ref) {
	h.touched = append(h.touched, ref)
	h.objects = slices.DeleteFunc(h.objects, func(o model.Object) bool { return o.Ref() == ref })
}

// remove drops a random object of a type.
func remove[T model.Object](h *History) {
	if all := kind[T](h); len(all) > 0 {
		h.drop(pick(h, all).Ref())
	}
}

// find returns the object that ref names, or nil.
func (h *History) find(ref model.Ref) model.Object {
	for _, obj := range h.objects {
		if obj.Ref() == ref {
			return obj
		}
	}
	return nil
}

// kind lists the objects of a type.
func kind[T model.Object](h *History) []T {
	var list []T
	for _, obj := range h.objects {
		if o, ok := obj.(T); ok {
			list = append(list, o)
		}
	}
	return list
}

// clone copies an object so that it shares no memory with the original.
func clone(obj model.Object) model.Object {
	switch o := obj.(type) {
	case *model.Service:
		return cloneService(o)
	case *model.EndpointSlice:
		return cloneSlice(o)
	case *model.Node:
		n := *o
		n.Addresses, n.PodCIDRs = slices.Clone(o.Addresses), slices.Clone(o.PodCIDRs)
		return &n
	case *model.Namespace:
		n := *o
		return &n
	case *model.ServiceCIDR:
		c := *o
		c.CIDRs = slices.Clone(o.CIDRs)
		return &c
	}
	panic(fmt.Sprintf("histories: an object of type %T", obj))
}

// chance is true with probability p.
func (h *History) chance(p float64) bool { return h.rng.Float64() < p }

// pick draws one of list, which must not be empty.
func pick[T any](h *History, list []T) T { return list[h.rng.IntN(len(list))] }

// some draws up to n distinct items of list, in random order.
func some[T any](h *History, n int, list []T) []T {
	var drawn []T
	for _, i := range h.rng.Perm(len(list)) {
		if len(drawn) == n {
			break
		}
		drawn = append(drawn, list[i])
	}
	return drawn
}

// families lists both IP families.
var families = []state.Family{state.IPv4, state.IPv6}
