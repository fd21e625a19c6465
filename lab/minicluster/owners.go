package minicluster

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// owned returns, by the index of each workload, how many of its pods are already among the objects, as in an export
// of a cluster. A Deployment counts its ReplicaSets, which make all of its pods. A DaemonSet's pods are made again,
// because the exported ones belong to other nodes.
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
