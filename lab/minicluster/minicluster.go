// Package minicluster does to ordinary application manifests what a cluster's control plane does to them, in miniature: it
// makes pods of workloads, completes Services and makes EndpointSlices of selectors.
//
// It is pure and repeatable. Addresses and ports are derived from the names of the objects that get them, so an edit of one
// object leaves the addresses of all others alone. The rules are those of kube-apiserver's defaults and allocators and of
// kube-controller-manager's workload and EndpointSlice controllers. What does not matter to a service proxy is left out:
// probes, scheduling constraints other than nodeName, rollouts and resources.
package minicluster

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

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
	// Warnings are mistakes that a cluster accepts in silence, one sentence each.
	Warnings []string
}

// Pod is a pod that runs on a node.
type Pod struct {
	Namespace string
	Name      string
	// Node is the name of the node that it runs on.
	Node string
	// HostNetwork reports whether the pod has the network, and thereby the addresses, of its node.
	HostNetwork bool
	// Addrs are the pod's addresses, one for each family, in the order of the node's PodCIDRs.
	Addrs  []netip.Addr
	Labels map[string]string
	// Ports are what its containers listen on: the containerPorts. A pod that declares none listens on the numeric
	// targetPorts of the Services that select it, because a cluster does not insist on the declaration.
	Ports []ContainerPort
	// Ready is false for pods with a readiness gate, since no controller opens it, and for those whose manifest has a status that
	// reports it.
	Ready bool
}

// ContainerPort is one port that a pod listens on.
type ContainerPort struct {
	Name     string
	Protocol state.Protocol
	Port     uint16
}

// Build applies the manifests to a new cluster. objs are pointers to the API types of Service, EndpointSlice, Namespace, Pod,
// Deployment, ReplicaSet, StatefulSet and DaemonSet; all others are ignored, Nodes too, since the cluster has its own. They
// are not modified. The error joins one error for each object that a cluster would refuse; the cluster is made of the rest
// and never nil.
func Build(objs []runtime.Object, opts Options) (*Cluster, error) {
	b := &builder{opts: opts, pods: newPodAllocator(opts.Nodes)}
	b.addNodes()
	var services []*corev1.Service
	for _, obj := range objs {
		switch o := obj.(type) {
		case *corev1.Namespace:
			b.addNamespace(o.DeepCopy())
		case *corev1.Service:
			services = append(services, withNamespace(o.DeepCopy()))
		case *discoveryv1.EndpointSlice:
			// What that controller made in another cluster, it makes again here.
			if o.Labels[discoveryv1.LabelManagedBy] != SliceController {
				b.out.Slices = append(b.out.Slices, withNamespace(o.DeepCopy()))
			}
		case *corev1.Pod, *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet:
			b.workloads = append(b.workloads, workloadOf(o))
		}
	}
	b.addPods()
	b.addServices(services)
	b.listenOnTargets()
	for _, svc := range b.out.Services {
		b.addSlices(svc)
	}
	b.finish()
	return &b.out, errors.Join(b.errs...)
}

type builder struct {
	opts      Options
	pods      *podAllocator
	workloads []workload
	out       Cluster
	errs      []error
}

func (b *builder) errorf(format string, args ...any) {
	b.errs = append(b.errs, fmt.Errorf(format, args...))
}

func (b *builder) warnf(format string, args ...any) {
	b.out.Warnings = append(b.out.Warnings, fmt.Sprintf(format, args...))
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
