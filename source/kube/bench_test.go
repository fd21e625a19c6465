package kube

import (
	"context"
	"fmt"
	"net/http/httptest"
	goruntime "runtime"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/switchyard-net/switchyard/model"
)

// BenchmarkFirstList reads 10,000 Services and as many EndpointSlices with 5 endpoints each from an API server in the
// same process, which has prepared its answers. It reports the memory for each object afterwards. With a sink that
// keeps the objects this is the memory of source and sink. With a sink that forgets them it is the memory of the
// source.
func BenchmarkFirstList(b *testing.B) {
	for _, c := range []struct {
		name  string
		keeps bool
	}{
		{"kept", true},
		{"forgotten", false},
	} {
		b.Run(c.name, func(b *testing.B) {
			const services = 10_000
			a := newAPIServer(b)
			a.put(node("here"))
			for i := range services {
				a.put(clusterObjects(i)...)
			}
			a.history = nil
			a.prepare()
			var retained, allocated uint64
			for b.Loop() {
				before := memory(a)
				s := &keeper{complete: make(chan struct{})}
				if c.keeps {
					s.objects = make(map[model.Ref]model.Object)
				}
				source, err := New(Options{Config: a.config(), NodeName: "here"})
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(context.Background())
				ended := make(chan struct{})
				go func() { _ = source.Run(ctx, s); close(ended) }()
				<-s.complete
				b.StopTimer()
				after := memory(a)
				retained += after.HeapAlloc - min(before.HeapAlloc, after.HeapAlloc)
				allocated += after.TotalAlloc - before.TotalAlloc
				if s.updates > 5 {
					b.Fatalf("%d updates", s.updates)
				}
				stop()
				<-ended
				a.cut(false)
				b.StartTimer()
			}
			objects := float64(2 * services * b.N)
			b.ReportMetric(float64(retained)/objects, "retained-B/object")
			b.ReportMetric(float64(allocated)/objects, "allocated-B/object")
		})
	}
}

// prepare makes the answers to the lists of all Services and EndpointSlices.
func (a *apiServer) prepare() {
	info, _ := runtime.SerializerInfoForMediaType(a.codecs.SupportedMediaTypes(), protobuf)
	ready := make(map[string][]byte)
	for resource, version := range map[string]schema.GroupVersion{
		"services": corev1.SchemeGroupVersion, "endpointslices": discoveryv1.SchemeGroupVersion,
	} {
		w := httptest.NewRecorder()
		a.list(w, &query{resource: resource, labels: labels.Everything(), fields: fields.Everything()}, nil, version, info)
		ready[resource] = w.Body.Bytes()
	}
	a.ready = ready
}

func memory(a *apiServer) (m goruntime.MemStats) {
	a.takeSent()
	a.takeRequests()
	goruntime.GC()
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return m
}

// keeper is a sink that keeps objects, or with nil forgets them.
type keeper struct {
	objects  map[model.Ref]model.Object
	updates  int
	complete chan struct{}
}

func (k *keeper) Update(set []model.Object, _ []model.Ref) {
	k.updates++
	if k.objects != nil {
		for _, o := range set {
			k.objects[o.Ref()] = o
		}
	}
}

func (k *keeper) Complete() { close(k.complete) }

// clusterObjects are a Service and its EndpointSlice with what controllers and people add to them.
func clusterObjects(i int) []object {
	name := fmt.Sprintf("team-%d/service-%d", i%100, i)
	s := service(name, 80, "app=shop", fmt.Sprintf("app.kubernetes.io/instance=release-%d", i), "app.kubernetes.io/managed-by=Helm")
	s.UID = "0a1b2c3d-0000-4000-8000-000000000000"
	s.Annotations = map[string]string{"meta.helm.sh/release-name": "shop", "meta.helm.sh/release-namespace": s.Namespace}
	s.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "helm", Operation: "Update", APIVersion: "v1", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 700))}}
	s.Spec.ClusterIPs = []string{s.Spec.ClusterIP}
	s.Spec.IPFamilies = []corev1.IPFamily{corev1.IPv4Protocol}
	s.Spec.Selector = map[string]string{"app": "shop", "app.kubernetes.io/instance": "release"}
	e := slice(name, "10.0.0.1", "app=shop", "endpointslice.kubernetes.io/managed-by=endpointslice-controller.k8s.io")
	e.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: "kube-controller-manager", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 700))}}
	e.Annotations = map[string]string{corev1.EndpointsLastChangeTriggerTime: "2026-01-01T00:00:00Z"}
	e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Service", Name: s.Name, UID: s.UID}}
	e.Ports = []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080)), Protocol: new(corev1.ProtocolTCP)}}
	e.Endpoints = nil
	for n := range 5 {
		e.Endpoints = append(e.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{fmt.Sprintf("10.%d.%d.%d", i>>8, i&255, n+1)},
			Conditions: discoveryv1.EndpointConditions{Ready: new(true), Serving: new(true), Terminating: new(false)},
			NodeName:   new(fmt.Sprintf("node-%d", (i+n)%200)), Zone: new("west"),
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: s.Namespace, Name: fmt.Sprintf("pod-%d-%d", i, n), UID: s.UID},
		})
	}
	return []object{s, e}
}
