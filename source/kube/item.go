package kube

import (
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// item is what remains of an object when it has arrived.
type item struct {
	ref     model.Ref
	version string
	// object is nil if the object has been deleted, or if it has a fault.
	object model.Object
	fault  error
	// ineligible says of a Node that load balancers should not send to it.
	ineligible bool
}

// autoscalerTaint is put on a Node by the cluster autoscaler before it is taken away.
const autoscalerTaint = "ToBeDeletedByClusterAutoscaler"

// strip reduces an object to an item that shares no memory with it.
func strip(kind model.Kind, obj metav1.Object) item {
	i := item{version: obj.GetResourceVersion()}
	object, _, err := kubeconv.Object(obj)
	if err != nil {
		i.fault = err
		i.ref = model.Ref{Kind: kind, Namespace: obj.GetNamespace(), Name: obj.GetName()}
		return i
	}
	i.object = object
	i.ref = object.Ref() // with the names that the object has, so that there is one copy of them
	if node, ok := obj.(*corev1.Node); ok {
		i.ineligible = node.DeletionTimestamp != nil ||
			slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerTaint })
	}
	return i
}

// versionNumber returns a resource version as a number, 0 if it is none. They are numbers in every API server that stores
// objects in etcd, and by specification since Kubernetes 1.35.
func versionNumber(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}
