package kube

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/model"
)

const (
	proxyNameLabel = "service.kubernetes.io/service-proxy-name"
	optOutLabel    = "networking.k8s.io/kube-proxy"
)

// resource describes the watch for one kind of object.
type resource struct {
	kind    model.Kind
	version schema.GroupVersion
	plural  string
	example runtime.Object
	// newReader returns a function that reads objects from protobuf. It does not keep b. An object is valid until the next is read.
	newReader func() func(b []byte) (metav1.Object, error)
	// labels and fields select the objects. If namespaced, fields also excludes the disabled namespaces.
	labels, fields string
	namespaced     bool
	// namespace is the only one that objects are asked for in. Empty: all.
	namespace string
	// without describes the effect of a missing resource, if the resource is optional. It is empty if the resource is
	// required.
	without string
}

// resources are the resources that this source watches. Resources without a namespace come first. An empty nodeName
// selects all Nodes. With names, all Services and their EndpointSlices are watched, routed or not.
func resources(nodeName, proxyName string, names bool) []*resource {
	core := corev1.SchemeGroupVersion
	nodes := ""
	if nodeName != "" {
		nodes = "metadata.name=" + nodeName
	}
	mine := "!" + proxyNameLabel
	endpointSlices := discoveryv1.LabelServiceName + ",!" + corev1.IsHeadlessService
	if proxyName != "" { // see brain.HandlesSlice
		mine = proxyNameLabel + "=" + proxyName
		endpointSlices += "," + mine
	}
	if names {
		mine, endpointSlices = "", discoveryv1.LabelServiceName
	}
	return []*resource{
		{
			// Only the namespaces that have the label. A namespace that gets the label arrives as an addition, and a
			// namespace that loses it as a deletion.
			kind: model.KindNamespace, version: core, plural: "namespaces", example: &corev1.Namespace{},
			newReader: reader(namespaceFields, empty[corev1.Namespace]),
			labels:    optOutLabel + "=disabled",
			without:   "namespaces labelled " + optOutLabel + "=disabled are served like all others",
		},
		{
			kind: model.KindNode, version: core, plural: "nodes", example: &corev1.Node{},
			newReader: reader(nodeFields, empty[corev1.Node]),
			fields:    nodes,
		},
		{
			kind: model.KindServiceCIDR, version: networkingv1.SchemeGroupVersion, plural: "servicecidrs", example: &networkingv1.ServiceCIDR{},
			newReader: reader(serviceCIDRFields, empty[networkingv1.ServiceCIDR]),
			without:   "connections to service addresses that no service owns are not dropped",
		},
		{
			kind: model.KindService, version: core, plural: "services", example: &corev1.Service{},
			newReader: reader(serviceFields, func(o *corev1.Service) {
				*o = corev1.Service{Spec: corev1.ServiceSpec{Ports: o.Spec.Ports[:0]}}
			}),
			labels: mine, namespaced: true,
		},
		{
			kind: model.KindEndpointSlice, version: discoveryv1.SchemeGroupVersion, plural: "endpointslices", example: &discoveryv1.EndpointSlice{},
			newReader: reader(endpointSliceFields, func(o *discoveryv1.EndpointSlice) {
				*o = discoveryv1.EndpointSlice{Endpoints: o.Endpoints[:0], Ports: o.Ports[:0]}
			}),
			labels: endpointSlices, namespaced: true,
		},
	}
}

// in returns the resource in a single namespace.
func (r *resource) in(namespace string) *resource {
	only := *r
	only.namespace = namespace
	return &only
}

// name is the resource's name as RBAC and error messages of the API server have it, and the namespace if it is of one.
func (r *resource) name() string {
	name := schema.GroupResource{Group: r.version.Group, Resource: r.plural}.String()
	if r.namespace != "" {
		name += " in namespace " + r.namespace
	}
	return name
}

// bookmark is an object that has only a version.
func (r *resource) bookmark(version string) runtime.Object {
	o := r.example.DeepCopyObject()
	o.(metav1.Object).SetResourceVersion(version)
	return o
}

// rule is the RBAC rule that lets the resource be watched.
func (r *resource) rule() string {
	return fmt.Sprintf(`{apiGroups: [%q], resources: [%q], verbs: ["list", "watch"]}`, r.version.Group, r.plural)
}

// reader returns a resource's newReader for objects that are decoded in part. They are one and the same object, which reset
// empties: slices and maps keep their capacity.
func reader[T any, P interface {
	*T
	metav1.Object
	Unmarshal(b []byte) error
}](decoded *fieldSet, reset func(P)) func() func(b []byte) (metav1.Object, error) {
	return func() func(b []byte) (metav1.Object, error) {
		object := P(new(T))
		var rest []byte
		return func(b []byte) (_ metav1.Object, err error) {
			if rest, err = decoded.appendTo(rest[:0], b); err != nil {
				return nil, err
			}
			labels, annotations := object.GetLabels(), object.GetAnnotations()
			clear(labels)
			clear(annotations)
			reset(object)
			object.SetLabels(labels)
			object.SetAnnotations(annotations)
			return object, object.Unmarshal(rest)
		}
	}
}

func empty[T any](object *T) { *object = *new(T) }
