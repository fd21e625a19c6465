//go:build linux

package lab

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/test/topology"
)

// Objects returns the objects of the cluster that a lab makes of manifests, without making a lab. It has the objects
// that the cluster completes or adds, and the others as they were given. Objects that come from a file have the
// annotation [apifacts.Place]. The errors are the refusals of a cluster.
func Objects(in *inputs.Loaded) ([]runtime.Object, []error) {
	cluster, err := clusterOf(in)
	errs := slices.Clone(in.Errs)
	if err != nil {
		errs = append(errs, located(in, err)...)
	}
	facts := factsOf(in, cluster)
	var list []runtime.Object
	add := func(o runtime.Object, apiVersion string) {
		name := apifacts.ObjectOf(o)
		if apiVersion != "" {
			o.GetObjectKind().SetGroupVersionKind(schema.FromAPIVersionAndKind(apiVersion, name.Kind))
		}
		if place := facts.Place(name, ""); place != "" {
			annotate(o, apifacts.Place, place)
		}
		list = append(list, o)
	}
	for _, n := range cluster.Nodes {
		add(n, "v1")
	}
	for _, n := range cluster.Namespaces {
		add(n, "v1")
	}
	for _, s := range cluster.Services {
		add(s, "v1")
	}
	for _, s := range cluster.Slices {
		add(s, "discovery.k8s.io/v1")
	}
	for i := range cluster.Pods {
		add(cluster.Pods[i].Object(), "v1")
	}
	for _, o := range slices.Concat(in.Objects, in.References) {
		switch o.(type) {
		case *corev1.Pod, *corev1.Service, *corev1.Node, *corev1.Namespace, *discoveryv1.EndpointSlice:
		default:
			add(noted(o, cluster).DeepCopyObject(), "")
		}
	}
	for _, s := range in.Skipped {
		list = append(list, &metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: s.APIVersion, Kind: s.Kind}, ObjectMeta: metav1.ObjectMeta{Name: s.Name}})
	}
	if in.Partial() {
		o := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "manifests"}}
		o.SetGroupVersionKind(apifacts.LeftOut)
		list = append(list, o)
	}
	return list, errs
}

// clusterOf returns the cluster that a lab makes of manifests, without making a lab.
func clusterOf(in *inputs.Loaded) (*minicluster.Cluster, error) {
	o := topology.DefaultOptions()
	var node, other []netip.Addr
	for _, p := range o.Underlay {
		node = append(node, p.Addr().Next())
		other = append(other, p.Addr().Next().Next())
	}
	return minicluster.Build(in.Objects, clusterOptions(o, node, other))
}

// noted returns an object, with the annotation [apifacts.NotRun] if the cluster does not run it.
func noted(o runtime.Object, c *minicluster.Cluster) runtime.Object {
	if slices.ContainsFunc(c.Warnings, func(w minicluster.Warning) bool { return w.Object == o && w.Field == "" }) {
		o = o.DeepCopyObject()
		annotate(o, apifacts.NotRun, "true")
	}
	return o
}

func annotate(o runtime.Object, key, value string) {
	meta := o.(metav1.Object)
	annotations := map[string]string{key: value}
	for k, v := range meta.GetAnnotations() {
		if k != key {
			annotations[k] = v
		}
	}
	meta.SetAnnotations(annotations)
}
