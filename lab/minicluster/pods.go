package minicluster

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
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
	object    runtime.Object
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
	// err is why the cluster refuses the workload. pods counts its running pods, and pending counts the pods for
	// which there is no node.
	err           error
	pods, pending int
}

func (w *workload) String() string { return w.kind + " " + w.namespace + "/" + w.name }

const oneOnEachNode = -1

func workloadOf(obj runtime.Object) workload {
	switch o := obj.(type) {
	case *corev1.Pod:
		return workload{object: o, kind: "Pod", namespace: namespaceOf(o), name: o.Name, replicas: 1, single: true,
			labels: o.Labels, spec: &o.Spec, status: &o.Status}
	case *appsv1.Deployment:
		return templated(o, replicasOf(o.Spec.Replicas), 1, o.Spec.Selector, &o.Spec.Template)
	case *appsv1.ReplicaSet:
		return templated(o, replicasOf(o.Spec.Replicas), 1, o.Spec.Selector, &o.Spec.Template)
	case *corev1.ReplicationController:
		t := o.Spec.Template
		if t == nil {
			t = &corev1.PodTemplateSpec{}
		}
		sel := o.Spec.Selector
		if len(sel) == 0 {
			sel = t.Labels
		}
		return templated(o, replicasOf(o.Spec.Replicas), 1, &metav1.LabelSelector{MatchLabels: sel}, t)
	case *appsv1.StatefulSet:
		first := 0
		if o.Spec.Ordinals != nil {
			first = int(o.Spec.Ordinals.Start)
		}
		return templated(o, replicasOf(o.Spec.Replicas), first, o.Spec.Selector, &o.Spec.Template)
	case *appsv1.DaemonSet:
		return templated(o, oneOnEachNode, 0, o.Spec.Selector, &o.Spec.Template)
	}
	panic(fmt.Sprintf("minicluster: %T is not a workload", obj))
}

// object is what all kinds of workloads are.
type object interface {
	runtime.Object
	metav1.Object
}

func templated(o object, replicas, first int, sel *metav1.LabelSelector, t *corev1.PodTemplateSpec) workload {
	return workload{object: o, kind: reflect.TypeOf(o).Elem().Name(), namespace: namespaceOf(o), name: o.GetName(), replicas: replicas, first: first,
		selector: sel, labels: t.Labels, spec: &t.Spec, status: &corev1.PodStatus{}}
}

func namespaceOf(o metav1.Object) string { return cmp.Or(o.GetNamespace(), metav1.NamespaceDefault) }

func replicasOf(n *int32) int {
	if n == nil {
		return 1
	}
	return max(int(*n), 0)
}

// maxPods is how many pods a workload may have: each of them is a network namespace.
const maxPods = 1000

// Pods returns how many pods manifests ask for, to choose ranges of addresses by.
func Pods(objs []runtime.Object) int {
	n := 0
	for _, o := range objs {
		switch o.(type) {
		case *corev1.Pod, *appsv1.Deployment, *appsv1.ReplicaSet, *appsv1.StatefulSet, *appsv1.DaemonSet, *corev1.ReplicationController:
			w := workloadOf(o)
			n += max(min(w.replicas, maxPods), 1)
		}
	}
	return n
}

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

// order is that in which workloads get their pods' names: those whose names are given come first.
var order = map[string]int{"Pod": -2, "StatefulSet": -1}

// addPods runs the workloads. Workloads are taken in order of their names, so that addresses do not depend on the
// order of the files.
func (b *builder) addPods() {
	slices.SortStableFunc(b.workloads, func(a, c workload) int {
		return cmp.Or(cmp.Compare(order[a.kind], order[c.kind]), cmp.Compare(a.namespace, c.namespace), cmp.Compare(a.name, c.name), cmp.Compare(a.kind, c.kind))
	})
	for i := range b.workloads {
		w := &b.workloads[i]
		w.err = w.validate()
		if i > 0 && w.is(&b.workloads[i-1]) {
			w.err = &Fault{w.object, "", errors.New("exists twice in the manifests; remove one")}
		}
		if w.err != nil {
			b.errs = append(b.errs, w.err)
		}
	}
	made := b.owned()
	taken := make(map[string]bool)
	for i := range b.workloads {
		w := &b.workloads[i]
		if w.err != nil || w.ended() {
			continue
		}
		for _, p := range b.place(w, made[i], taken) {
			taken[p.Namespace+"/"+p.Name] = true
			if f := b.fill(w, &p); f != nil {
				w.err = f
				b.errs = append(b.errs, f)
				break
			}
			if b.schedule(w, &p) {
				b.out.Pods = append(b.out.Pods, p)
				w.pods++
			}
		}
	}
}

// is reports whether two workloads are the same object.
func (w *workload) is(o *workload) bool {
	return w.kind == o.kind && w.namespace == o.namespace && w.name == o.name
}

// ended reports whether a pod has ended.
func (w *workload) ended() bool {
	return w.status.Phase == corev1.PodSucceeded || w.status.Phase == corev1.PodFailed
}

// validate refuses what the API server refuses and what would go unnoticed here.
func (w *workload) validate() error {
	if w.name == "" {
		return &Fault{w.object, "metadata.name", errors.New("is empty")}
	}
	if w.replicas > maxPods {
		return &Fault{w.object, "spec.replicas", fmt.Errorf("%d pods are more than the %d that this small cluster can run", w.replicas, maxPods)}
	}
	if w.kind == "Pod" {
		return nil
	}
	if w.selector == nil {
		return &Fault{w.object, "spec.selector", errors.New("is missing: give it labels that spec.template.metadata.labels has")}
	}
	sel, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return &Fault{w.object, "spec.selector", err}
	}
	if sel.Empty() || !sel.Matches(labels.Set(w.labels)) {
		return &Fault{w.object, "spec.selector", errors.New("does not match spec.template.metadata.labels")}
	}
	return nil
}

// place names the pods that a workload makes in addition to its existing pods, and gives them their own labels and a
// node. The node is the manifest's, else the nodes take turns.
func (b *builder) place(w *workload, has int, taken map[string]bool) []Pod {
	var pods []Pod
	nodes := b.opts.Nodes
	if w.replicas == oneOnEachNode {
		for _, n := range nodes {
			if b.fits(n, w.spec) {
				pods = append(pods, Pod{Namespace: w.namespace, Name: free(w.namespace, w.name+"-"+n.Name, taken), Node: n.Name})
			}
		}
		if len(pods) == 0 {
			b.warnf(w.object, "", "%s", noNode)
			w.pending++
		}
		return pods
	}
	start := int(hash(w.namespace+"/"+w.name) % uint32(len(nodes)))
	for i := 0; len(pods) < w.replicas-has; i++ {
		p := Pod{Namespace: w.namespace, Name: fmt.Sprintf("%s-%d", w.name, w.first+i), Node: nodes[(start+i)%len(nodes)].Name}
		if w.single {
			p.Name = w.name
		} else if taken[p.Namespace+"/"+p.Name] {
			continue // a pod of its own, or another one of that name: a real cluster's names end at random
		}
		if w.kind == "StatefulSet" {
			p.Labels = map[string]string{
				appsv1.StatefulSetPodNameLabel: p.Name,
				appsv1.PodIndexLabel:           strconv.Itoa(w.first + i),
			}
		}
		pods = append(pods, p)
	}
	return pods
}

// free returns a name that no pod has.
func free(namespace, name string, taken map[string]bool) string {
	for i, tried := 2, name; ; i++ {
		if !taken[namespace+"/"+tried] {
			return tried
		}
		tried = fmt.Sprintf("%s-%d", name, i)
	}
}

// fill reads what a pod is from its template.
func (b *builder) fill(w *workload, p *Pod) *Fault {
	own := p.Labels
	p.Labels = maps.Clone(w.labels)
	maps.Copy(p.Labels, own)
	p.HostNetwork = w.spec.HostNetwork
	p.Ready = len(w.spec.ReadinessGates) == 0 && w.status.Phase != corev1.PodPending
	p.Terminating = w.single && w.object.(metav1.Object).GetDeletionTimestamp() != nil
	for _, c := range w.status.Conditions {
		if c.Type == corev1.PodReady {
			p.Ready = c.Status == corev1.ConditionTrue
		}
	}
	path := "spec."
	if !w.single {
		path = "spec.template.spec."
	}
	for i, c := range w.spec.Containers {
		if f := p.listen(fmt.Sprintf("%scontainers[%d]", path, i), c.Ports); f != nil {
			f.Object = w.object
			return f
		}
	}
	for i, c := range w.spec.InitContainers {
		// Init containers that restart always are sidecars: they serve as long as the others.
		if c.RestartPolicy == nil || *c.RestartPolicy != corev1.ContainerRestartPolicyAlways {
			continue
		}
		if f := p.listen(fmt.Sprintf("%sinitContainers[%d]", path, i), c.Ports); f != nil {
			f.Object = w.object
			return f
		}
	}
	p.declared, p.spec, p.status = slices.Clip(p.Ports), w.spec, w.status
	return nil
}

// listen takes the ports of a container.
func (p *Pod) listen(path string, ports []corev1.ContainerPort) *Fault {
	for i, port := range ports {
		proto, err := protocolOf(port.Protocol)
		if err != nil {
			return &Fault{Field: fmt.Sprintf("%s.ports[%d].protocol", path, i), Err: err}
		}
		if port.ContainerPort < 1 || port.ContainerPort > 65535 {
			return &Fault{Field: fmt.Sprintf("%s.ports[%d].containerPort", path, i), Err: fmt.Errorf("%d is not in the range 1-65535", port.ContainerPort)}
		}
		p.Ports = append(p.Ports, ContainerPort{Name: port.Name, Protocol: proto, Port: uint16(port.ContainerPort)})
	}
	return nil
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
	return 0, fmt.Errorf("%q is none of TCP, UDP, SCTP", p)
}
