// Package minicluster applies a cluster's control plane to ordinary application manifests, in miniature: it makes
// pods of workloads, completes Services and makes EndpointSlices of selectors.
//
// It is pure and repeatable. Addresses and ports are derived from the names of their objects. So an edit of one object
// leaves the addresses of all others alone. It follows the rules of kube-apiserver's defaults and allocators, and of
// kube-controller-manager's workload, EndpointSlice and EndpointSlice mirroring controllers. It leaves out details that
// do not matter to a service proxy. These are probes, rollouts, resources, the ports of pods in the nodes' own network,
// and scheduling beyond nodeName, node labels and processors.
package minicluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/state"
)

// Options describe the cluster that the manifests are applied to.
type Options struct {
	// Nodes run the pods. At least one is required.
	Nodes []Node
	// ServiceCIDRs are where cluster IPs come from, at most one for each family. The first is the cluster's primary family.
	// At least one is required.
	ServiceCIDRs []netip.Prefix
	// LoadBalancerCIDRs are where the addresses of load balancers come from, at most one for each family. In a family
	// without one, load balancers get no address.
	LoadBalancerCIDRs []netip.Prefix
}

// Node is a node of the cluster.
type Node struct {
	Name string
	// Zone is the value of the label topology.kubernetes.io/zone; empty means no label.
	Zone string
	// Addrs are the node's internal addresses; pods with hostNetwork have them too.
	Addrs []netip.Addr
	// PodCIDRs are where the node's pods get their addresses, at most one for each family. The first 16 addresses are left
	// to the node itself.
	PodCIDRs []netip.Prefix
}

// Cluster is what the control plane made of the manifests. All lists are ordered by namespace and name.
type Cluster struct {
	Pods       []Pod
	Services   []*corev1.Service
	Slices     []*discoveryv1.EndpointSlice
	Nodes      []*corev1.Node
	Namespaces []*corev1.Namespace
	// Warnings are about settings without an effect, and about features that only a larger cluster has. Package
	// diagnosis finds the problems of Services.
	Warnings []Warning
}

// Warning is a remark about an object.
type Warning struct {
	// Object is the one that was given to [Build].
	Object runtime.Object
	// Field is the path of the field that it is about. It may be empty.
	Field string
	// Text is worded to follow the object's name and the field.
	Text string
}

// String renders the warning as Kind namespace/name: field: text.
func (w Warning) String() string { return sentence(w.Object, w.Field, w.Text) }

// Fault is why a cluster refuses an object.
type Fault struct {
	// Object is the one that was given to [Build].
	Object runtime.Object
	// Field is the path of the field at fault. It may be empty.
	Field string
	// Err is worded to follow the object's name and the field.
	Err error
}

// Error renders the fault as Kind namespace/name: field: fault.
func (f *Fault) Error() string { return sentence(f.Object, f.Field, f.Err.Error()) }

// Unwrap returns the fault without its place.
func (f *Fault) Unwrap() error { return f.Err }

func sentence(o runtime.Object, field, text string) string {
	if field != "" {
		text = field + ": " + text
	}
	return nameOf(o) + ": " + text
}

// nameOf names an object in sentences: Service default/web.
func nameOf(o runtime.Object) string {
	meta := o.(metav1.Object)
	kind := reflect.TypeOf(o).Elem().Name()
	return kind + " " + namespaceOf(meta) + "/" + meta.GetName()
}

// Pod is a pod that runs on a node.
type Pod struct {
	Namespace string
	Name      string
	// Node is the name of the node that it runs on.
	Node string
	// HostNetwork reports whether the pod has its node's network, and so its addresses.
	HostNetwork bool
	// Addrs are the pod's addresses, one for each family, in the order of the node's PodCIDRs.
	Addrs  []netip.Addr
	Labels map[string]string
	// Ports are the ports of its containers. Besides the containerPorts, these are the numeric targetPorts of the
	// Services that select it, because a cluster does not insist on the declaration.
	Ports []ContainerPort
	// Ready is false for pods with a readiness gate, since no controller opens it, and for those whose manifest has a status that
	// reports it.
	Ready bool
	// Terminating is set for pods whose manifest has a deletionTimestamp.
	Terminating bool

	// declared are the ports that the manifest has.
	declared []ContainerPort
	spec     *corev1.PodSpec
	status   *corev1.PodStatus
}

// Object returns the pod as a cluster has it.
func (p *Pod) Object() *corev1.Pod {
	o := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name, Labels: p.Labels},
		Spec: *p.spec.DeepCopy(), Status: *p.status.DeepCopy()}
	o.Spec.NodeName, o.Status.Phase = p.Node, cmp.Or(o.Status.Phase, corev1.PodRunning)
	o.Status.PodIP, o.Status.PodIPs = "", nil
	for _, a := range p.Addrs {
		o.Status.PodIP = cmp.Or(o.Status.PodIP, a.String())
		o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: a.String()})
	}
	if !slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodReady }) {
		ready := map[bool]corev1.ConditionStatus{true: corev1.ConditionTrue, false: corev1.ConditionFalse}[p.Ready]
		o.Status.Conditions = append(o.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: ready})
	}
	return o
}

// ContainerPort is one port that a pod listens on.
type ContainerPort struct {
	Name     string
	Protocol state.Protocol
	Port     uint16
}

// Build applies the manifests to a new cluster. objs are pointers to the API types of Service, EndpointSlice,
// Endpoints, Namespace, Pod, Deployment, ReplicaSet, StatefulSet, DaemonSet and ReplicationController. All others are
// ignored, including Nodes, since the cluster has its own. No object is modified. The error joins one or more [*Fault]
// for each object that a cluster would refuse; the cluster is made of the rest and never nil.
//
// Objects exported from another cluster include the objects that its controllers made, such as the ReplicaSet and the
// Pods of a Deployment. They count as their owner's, which makes only the missing ones.
func Build(objs []runtime.Object, opts Options) (*Cluster, error) {
	b := &builder{opts: opts, pods: newPodAllocator(opts.Nodes), hostPorts: make(map[hostPort]string)}
	b.addNodes()
	var services []clusterService
	//lint:ignore SA1019 people still write them by hand
	var mirrored []*corev1.Endpoints
	for _, obj := range objs {
		switch o := obj.(type) {
		case *corev1.Namespace:
			b.addNamespace(o.DeepCopy())
		case *corev1.Service:
			services = append(services, clusterService{withNamespace(o.DeepCopy()), o})
		case *discoveryv1.EndpointSlice:
			b.addSlice(o)
		//lint:ignore SA1019 people still write them by hand
		case *corev1.Endpoints:
			mirrored = append(mirrored, o)
		case *corev1.Pod, *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet, *corev1.ReplicationController:
			b.workloads = append(b.workloads, workloadOf(o))
		}
	}
	b.addPods()
	b.addServices(services)
	b.listenOnTargets()
	b.mirror(mirrored)
	for _, svc := range b.services {
		b.addSlices(svc)
	}
	b.finish()
	return &b.out, errors.Join(b.errs...)
}

type builder struct {
	opts      Options
	pods      *podAllocator
	workloads []workload
	// services are those that the cluster takes.
	services []clusterService
	// hostPorts are the ports of pods in the network of their node, with the pod.
	hostPorts map[hostPort]string
	out       Cluster
	errs      []error
}

// clusterService is a Service with the object that it is a completed copy of.
type clusterService struct {
	*corev1.Service
	given *corev1.Service
}

func (b *builder) fail(o runtime.Object, field string, err error) {
	b.errs = append(b.errs, &Fault{o, field, err})
}

func (b *builder) warnf(o runtime.Object, field, format string, args ...any) {
	b.out.Warnings = append(b.out.Warnings, Warning{o, field, fmt.Sprintf(format, args...)})
}

// addSlice takes a slice that was written by hand. Slices that controllers made in another cluster are made again
// here.
func (b *builder) addSlice(o *discoveryv1.EndpointSlice) {
	if by := o.Labels[discoveryv1.LabelManagedBy]; by == SliceController || by == mirrorController {
		return
	}
	s := withNamespace(o.DeepCopy())
	apirules.DefaultEndpointSlice(s)
	faults := apirules.ValidateEndpointSlice(s)
	for _, f := range faults {
		b.fail(o, f.Field, f.Err)
	}
	if len(faults) == 0 {
		b.out.Slices = append(b.out.Slices, s)
	}
}

func (b *builder) addNodes() {
	for _, n := range b.opts.Nodes {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name}}}
		if n.Zone != "" {
			node.Labels[corev1.LabelTopologyZone] = n.Zone
		}
		for _, a := range n.Addrs {
			node.Status.Addresses = append(node.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: a.String()})
		}
		for i, c := range n.PodCIDRs {
			if i == 0 {
				node.Spec.PodCIDR = c.String()
			}
			node.Spec.PodCIDRs = append(node.Spec.PodCIDRs, c.String())
		}
		b.out.Nodes = append(b.out.Nodes, node)
	}
}

func (b *builder) addNamespace(ns *corev1.Namespace) {
	i := slices.IndexFunc(b.out.Namespaces, func(o *corev1.Namespace) bool { return o.Name == ns.Name })
	if i >= 0 {
		b.out.Namespaces[i] = ns
		return
	}
	b.out.Namespaces = append(b.out.Namespaces, ns)
}

// finish adds the namespaces that are only mentioned and puts everything in order.
func (b *builder) finish() {
	mention := func(name string) {
		if !slices.ContainsFunc(b.out.Namespaces, func(o *corev1.Namespace) bool { return o.Name == name }) {
			b.addNamespace(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
	}
	for _, s := range b.out.Services {
		mention(s.Namespace)
	}
	for _, s := range b.out.Slices {
		mention(s.Namespace)
	}
	for i := range b.out.Pods {
		mention(b.out.Pods[i].Namespace)
	}
	slices.SortFunc(b.out.Namespaces, byName)
	slices.SortFunc(b.out.Services, byName)
	slices.SortFunc(b.out.Slices, byName)
	slices.SortFunc(b.out.Nodes, byName)
	slices.SortFunc(b.out.Pods, func(a, c Pod) int {
		return cmp.Or(cmp.Compare(a.Namespace, c.Namespace), cmp.Compare(a.Name, c.Name))
	})
}

func byName[T metav1.Object](a, b T) int {
	return cmp.Or(cmp.Compare(a.GetNamespace(), b.GetNamespace()), cmp.Compare(a.GetName(), b.GetName()))
}

// withNamespace puts an object that names no namespace into the default one, as kubectl does.
func withNamespace[T metav1.Object](o T) T {
	if o.GetNamespace() == "" {
		o.SetNamespace(metav1.NamespaceDefault)
	}
	return o
}
