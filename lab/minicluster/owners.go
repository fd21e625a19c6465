package minicluster

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owned returns, for each workload by its index, how many pods it has already: those of its pods that are among the objects, as in what
// was exported from a cluster. What a Deployment has is its ReplicaSets, which make all of its pods; pods of a DaemonSet are made
// again, because they are those of other nodes.
func (b *builder) owned() []int {
	type id struct{ kind, namespace, name string }
	index := make(map[id]int)
	for i := range b.workloads {
		w := &b.workloads[i]
		index[id{w.kind, w.namespace, w.name}] = i
	}
	has := make([]int, len(b.workloads))
	for i := range b.workloads {
		w := &b.workloads[i]
		ref := metav1.GetControllerOf(w.object.(metav1.Object))
		if ref == nil {
			continue
		}
		at, here := index[id{ref.Kind, w.namespace, ref.Name}]
		if !here || b.workloads[at].err != nil {
			continue
		}
		switch owner := &b.workloads[at]; {
		case owner.kind == "Deployment" && w.kind == "ReplicaSet":
			has[at] = maxPods
		case owner.kind == "DaemonSet":
			w.status = &corev1.PodStatus{Phase: corev1.PodSucceeded}
		case w.kind == "Pod" && !w.ended():
			has[at]++
		}
	}
	return has
}
