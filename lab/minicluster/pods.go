package minicluster

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/state"
)

// workload is what the workload kinds have in common.
type workload struct {
	kind      string
	namespace string
	name      string
	// replicas is how many pods there are; -1 means one on each node.
	replicas int
	// single is set if the pod has the workload's own name.
	single bool
	// first is the ordinal of the first pod.
	first int
	// selector is nil for kinds that have none.
	selector *metav1.LabelSelector
	labels   map[string]string
	spec     *corev1.PodSpec
	status   *corev1.PodStatus
}

func (w *workload) String() string { return w.kind + " " + w.namespace + "/" + w.name }

const oneOnEachNode = -1

func workloadOf(obj runtime.Object) workload {
	switch o := obj.(type) {
	case *corev1.Pod:
		return workload{kind: "Pod", namespace: namespaceOf(o), name: o.Name, replicas: 1, single: true,
			labels: o.Labels, spec: &o.Spec, status: &o.Status}
	case *appsv1.Deployment:
		return templated("Deployment", o, replicasOf(o.Spec.Replicas), 1, o.Spec.Selector, &o.Spec.Template)
	case *appsv1.ReplicaSet:
		return templated("ReplicaSet", o, replicasOf(o.Spec.Replicas), 1, o.Spec.Selector, &o.Spec.Template)
	case *appsv1.StatefulSet:
		first := 0
		if o.Spec.Ordinals != nil {
			first = int(o.Spec.Ordinals.Start)
		}
		return templated("StatefulSet", o, replicasOf(o.Spec.Replicas), first, o.Spec.Selector, &o.Spec.Template)
	case *appsv1.DaemonSet:
		return templated("DaemonSet", o, oneOnEachNode, 0, o.Spec.Selector, &o.Spec.Template)
	}
	panic(fmt.Sprintf("minicluster: %T is not a workload", obj))
}

func templated(kind string, o metav1.Object, replicas, first int, sel *metav1.LabelSelector, t *corev1.PodTemplateSpec) workload {
	return workload{kind: kind, namespace: namespaceOf(o), name: o.GetName(), replicas: replicas, first: first,
		selector: sel, labels: t.Labels, spec: &t.Spec, status: &corev1.PodStatus{}}
}

func namespaceOf(o metav1.Object) string { return cmp.Or(o.GetNamespace(), metav1.NamespaceDefault) }

func replicasOf(n *int32) int {
	if n == nil {
		return 1
	}
	return max(int(*n), 0)
}

// maxPods is where a workload's replicas end: a kubelet's default limit for its two nodes.
const maxPods = 220

// podAllocator hands out pod addresses.
type podAllocator struct {
	byNode map[string][]*addrAllocator
}

// podReserved is how many addresses of a pod range are left to the node: its bridge and gateway.
const podReserved = 16

func newPodAllocator(nodes []Node) *podAllocator {
	p := &podAllocator{byNode: make(map[string][]*addrAllocator)}
	for _, n := range nodes {
		for _, c := range n.PodCIDRs {
			p.byNode[n.Name] = append(p.byNode[n.Name], newAddrAllocator(c, podReserved))
		}
	}
	return p
}

func (p *podAllocator) take(node, owner string) ([]netip.Addr, error) {
	var addrs []netip.Addr
	for _, a := range p.byNode[node] {
		addr, err := a.take(owner)
		if err != nil {
			return nil, fmt.Errorf("pods of node %s: %w", node, err)
		}
		addrs = append(addrs, addr)
	}
	return addrs, nil
}

// addPods runs the workloads. They are taken in order of their names, so that addresses do not depend on that of the files.
func (b *builder) addPods() {
	slices.SortStableFunc(b.workloads, func(a, c workload) int {
		return cmp.Or(cmp.Compare(a.namespace, c.namespace), cmp.Compare(a.name, c.name), cmp.Compare(a.kind, c.kind))
	})
	taken := make(map[string]string)
	for i := range b.workloads {
		w := &b.workloads[i]
		if err := w.validate(); err != nil {
			b.errs = append(b.errs, err)
			continue
		}
		if w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed {
			continue
		}
		for _, p := range b.place(w) {
			key := p.Namespace + "/" + p.Name
			if other, ok := taken[key]; ok {
				b.errorf("%s: its pod %s exists already, made by %s; rename one of them", w, key, other)
				continue
			}
			taken[key] = w.String()
			if err := b.fill(w, &p); err != nil {
				b.errorf("%s: %w", w, err)
				break
			}
			b.out.Pods = append(b.out.Pods, p)
		}
	}
}

// validate refuses what the API server refuses and what would go unnoticed here.
func (w *workload) validate() error {
	if w.name == "" {
		return fmt.Errorf("%s in namespace %s: metadata.name is empty", w.kind, w.namespace)
	}
	if w.replicas > maxPods {
		return fmt.Errorf("%s: spec.replicas: %d pods are more than the %d that this small cluster can run", w, w.replicas, maxPods)
	}
	if w.kind == "Pod" {
		return nil
	}
	sel, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return fmt.Errorf("%s: spec.selector: %w", w, err)
	}
	if sel.Empty() || !sel.Matches(labels.Set(w.labels)) {
		return fmt.Errorf("%s: spec.selector does not match spec.template.metadata.labels", w)
	}
	return nil
}

// place names the pods of a workload, gives them the labels that are their own, and a node: the one that the manifest names,
// else by turns.
func (b *builder) place(w *workload) []Pod {
	var pods []Pod
	nodes := b.opts.Nodes
	if w.replicas == oneOnEachNode {
		for _, n := range nodes {
			pods = append(pods, Pod{Namespace: w.namespace, Name: w.name + "-" + n.Name, Node: n.Name})
		}
		return pods
	}
	start := int(hash(w.namespace+"/"+w.name) % uint32(len(nodes)))
	for i := range w.replicas {
		p := Pod{Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", w.name, w.first+i), Node: nodes[(start+i)%len(nodes)].Name}
		if w.single {
			p.Name = w.name
		}
		if w.kind == "StatefulSet" {
			p.Labels = map[string]string{
				appsv1.StatefulSetPodNameLabel: p.Name,
				appsv1.PodIndexLabel:           strconv.Itoa(w.first + i),
			}
		}
		if slices.ContainsFunc(nodes, func(n Node) bool { return n.Name == w.spec.NodeName }) {
			p.Node = w.spec.NodeName
		}
		pods = append(pods, p)
	}
	return pods
}

func (b *builder) fill(w *workload, p *Pod) error {
	own := p.Labels
	p.Labels = maps.Clone(w.labels)
	maps.Copy(p.Labels, own)
	p.HostNetwork = w.spec.HostNetwork
	p.Ready = len(w.spec.ReadinessGates) == 0
	for _, c := range w.status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionFalse {
			p.Ready = false
		}
	}
	// Init containers that restart always are sidecars: they serve as long as the others.
	containers := slices.Clone(w.spec.Containers)
	for _, c := range w.spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			containers = append(containers, c)
		}
	}
	for _, c := range containers {
		for _, port := range c.Ports {
			proto, err := protocolOf(port.Protocol)
			if err != nil {
				return fmt.Errorf("container %s: %w", c.Name, err)
			}
			if port.ContainerPort < 1 || port.ContainerPort > 65535 {
				return fmt.Errorf("container %s: containerPort %d is not in the range 1-65535", c.Name, port.ContainerPort)
			}
			p.Ports = append(p.Ports, ContainerPort{Name: port.Name, Protocol: proto, Port: uint16(port.ContainerPort)})
		}
	}
	if p.HostNetwork {
		i := slices.IndexFunc(b.opts.Nodes, func(n Node) bool { return n.Name == p.Node })
		p.Addrs = slices.Clone(b.opts.Nodes[i].Addrs)
		return nil
	}
	var err error
	p.Addrs, err = b.pods.take(p.Node, p.Namespace+"/"+p.Name)
	return err
}

// protocolOf reads a protocol; absent means TCP.
func protocolOf(p corev1.Protocol) (state.Protocol, error) {
	switch p {
	case "", corev1.ProtocolTCP:
		return state.TCP, nil
	case corev1.ProtocolUDP:
		return state.UDP, nil
	case corev1.ProtocolSCTP:
		return state.SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q is none of TCP, UDP, SCTP", p)
}
