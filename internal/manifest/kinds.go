package manifest

import (
	"reflect"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// typeMeta is the apiVersion and kind of an object.
type typeMeta struct{ apiVersion, kind string }

// knownKind is a kind that is decoded: the one version supported and its type.
type knownKind struct {
	apiVersion string
	typ        reflect.Type
}

var knownKinds = map[string]knownKind{
	//lint:ignore SA1019 people still write them by hand
	"Endpoints":             {"v1", reflect.TypeFor[corev1.Endpoints]()},
	"Namespace":             {"v1", reflect.TypeFor[corev1.Namespace]()},
	"Node":                  {"v1", reflect.TypeFor[corev1.Node]()},
	"Pod":                   {"v1", reflect.TypeFor[corev1.Pod]()},
	"Service":               {"v1", reflect.TypeFor[corev1.Service]()},
	"EndpointSlice":         {"discovery.k8s.io/v1", reflect.TypeFor[discoveryv1.EndpointSlice]()},
	"ReplicationController": {"v1", reflect.TypeFor[corev1.ReplicationController]()},
	"ServiceCIDR":           {"networking.k8s.io/v1", reflect.TypeFor[networkingv1.ServiceCIDR]()},
	"DaemonSet":             {"apps/v1", reflect.TypeFor[appsv1.DaemonSet]()},
	"Deployment":            {"apps/v1", reflect.TypeFor[appsv1.Deployment]()},
	"ReplicaSet":            {"apps/v1", reflect.TypeFor[appsv1.ReplicaSet]()},
	"StatefulSet":           {"apps/v1", reflect.TypeFor[appsv1.StatefulSet]()},
}

// referenceKinds are kinds that no connection is routed by, and that refer to others by name.
var referenceKinds = map[string]knownKind{
	"Ingress": {"networking.k8s.io/v1", reflect.TypeFor[networkingv1.Ingress]()},
	"Job":     {"batch/v1", reflect.TypeFor[batchv1.Job]()},
	"CronJob": {"batch/v1", reflect.TypeFor[batchv1.CronJob]()},
}

// lookUp describes what to do with an object of type m. If ok, it is of the kind returned. If not, it is nothing we know, unless
// supported is not empty: then the kind is known, but only in that version.
func lookUp(m typeMeta) (k knownKind, supported string, ok bool) {
	k, ok = knownKinds[m.kind]
	if !ok {
		return knownKind{}, "", false
	}
	if k.apiVersion == m.apiVersion {
		return k, "", true
	}
	if isBuiltIn(m.apiVersion) {
		return knownKind{}, k.apiVersion, false
	}
	return knownKind{}, "", false
}

// isBuiltIn reports whether apiVersion is of a group that Kubernetes itself serves or once served. Others may well have a
// kind of a name that we know: serving.knative.dev/v1 has a Service.
func isBuiltIn(apiVersion string) bool {
	group, _, found := strings.Cut(apiVersion, "/")
	return !found || !strings.Contains(group, ".") || strings.HasSuffix(group, ".k8s.io")
}

// listOf returns the type of the items of a list that do not say it themselves, and whether m is a list at all.
func listOf(m typeMeta) (item typeMeta, isList bool) {
	if m.kind == "List" && isBuiltIn(m.apiVersion) {
		return typeMeta{}, true
	}
	kind, found := strings.CutSuffix(m.kind, "List")
	if _, known := knownKinds[kind]; !found || !known || !isBuiltIn(m.apiVersion) {
		return typeMeta{}, false
	}
	return typeMeta{m.apiVersion, kind}, true
}
