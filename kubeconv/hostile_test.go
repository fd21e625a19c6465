package kubeconv

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/test/usage"
)

// TestFaultsAreBounded: an object may be full of faults, each as long as it likes; an error about it may not.
func TestFaultsAreBounded(t *testing.T) {
	many := make([]string, 50_000)
	for i := range many {
		many[i] = fmt.Sprint("nothing ", i)
	}
	long := strings.Repeat("ä", 1<<20)
	endpoints := make([]discoveryv1.Endpoint, 5000)
	for name, c := range map[string]struct {
		in     any
		faults int
		want   string
	}{
		"many addresses": {&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ExternalIPs: many}}, maxFaults + 1,
			`spec.externalIPs[0]: must be an IP address, got "nothing 0"`},
		"many ports": {&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{Ports: make([]corev1.ServicePort, 70_000)}}, maxFaults + 1,
			"spec.ports[0].port: must be a number from 1 to 65535, got 0"},
		"many endpoints": {&discoveryv1.EndpointSlice{ObjectMeta: meta(), AddressType: "IPv6", Endpoints: endpoints}, maxFaults + 1,
			"endpoints[0].addresses: must hold an address"},
		"many ranges": {&networkingv1.ServiceCIDR{ObjectMeta: meta(), Spec: networkingv1.ServiceCIDRSpec{CIDRs: many}}, maxFaults + 1,
			"spec.cidrs[0]: must be a CIDR"},
		"as many as are listed": {&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{ExternalIPs: many[:maxFaults]}}, maxFaults,
			"spec.externalIPs[0]"},
		"long words": {&corev1.Service{ObjectMeta: meta(), Spec: corev1.ServiceSpec{
			Type: corev1.ServiceType(long), SessionAffinity: corev1.ServiceAffinity(long), ExternalTrafficPolicy: corev1.ServiceExternalTrafficPolicy(long),
			ClusterIPs: []string{long}, ClusterIP: long + "x", LoadBalancerSourceRanges: []string{long},
		}}, 5, "spec.type: must be ClusterIP, NodePort, LoadBalancer or ExternalName"},
	} {
		_, ok, err := Object(c.in)
		if !ok || err == nil {
			t.Errorf("%s: %v, %v", name, ok, err)
			continue
		}
		faults := strings.Split(err.Error(), "\n")
		if len(faults) != c.faults || len(err.Error()) > 4096 || !strings.HasPrefix(faults[0], c.want) {
			t.Errorf("%s: %d faults, %d bytes, want %d faults, the first %s\n%.300v", name, len(faults), len(err.Error()), c.faults, c.want, err)
		}
		if more := errors.Is(err, errMore); more != (c.faults > maxFaults) {
			t.Errorf("%s: said that there are more: %v", name, more)
		}
	}
}

// TestLongNames: names, which are kept and sent along, may be as long as the API server takes them.
func TestLongNames(t *testing.T) {
	name, label := strings.Repeat("n", 253), strings.Repeat("l", 63)
	about := func(name, label string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Name: name, Namespace: label,
			Labels: map[string]string{proxyNameLabel: label, discoveryv1.LabelServiceName: label, corev1.LabelTopologyZone: label}}
	}
	objects := func(name, label string) []any {
		return []any{
			&corev1.Service{ObjectMeta: about(name, label), Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: label, Port: 80}}}},
			&discoveryv1.EndpointSlice{ObjectMeta: about(name, label), AddressType: "IPv4", Ports: []discoveryv1.EndpointPort{{Name: &label}},
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"10.0.0.1"}, NodeName: &name}}},
			&corev1.Node{ObjectMeta: about(name, label)},
			&corev1.Namespace{ObjectMeta: about(name, label)},
			&networkingv1.ServiceCIDR{ObjectMeta: about(name, label)},
		}
	}
	for _, in := range objects(name, label) {
		if _, _, err := Object(in); err != nil {
			t.Error(err)
		}
	}
	const labels = "metadata.labels[service.kubernetes.io/service-proxy-name]"
	want := [][]string{
		{"metadata.namespace", "metadata.name", labels, "spec.ports[0].name"},
		{"metadata.namespace", "metadata.name", "metadata.labels[kubernetes.io/service-name]", labels, "ports[0].name", "endpoints[0].nodeName"},
		{"metadata.name", "metadata.labels[topology.kubernetes.io/zone]"},
		{"metadata.name"},
		{"metadata.name"},
	}
	for i, in := range objects(name+"n", label+"l") {
		_, _, err := Object(in)
		var paths []string
		for line := range strings.Lines(fmt.Sprint(err)) {
			path, fault, _ := strings.Cut(line, ": ")
			paths = append(paths, path)
			if !strings.HasPrefix(fault, "must be no longer than ") {
				t.Error(line)
			}
		}
		if !slices.Equal(paths, want[i]) {
			t.Errorf("%T: faults of %v, want %v", in, paths, want[i])
		}
	}
}

// TestNothingLargeIsKept converts objects with megabytes of annotations, labels and managed fields, which decide about nothing here.
func TestNothingLargeIsKept(t *testing.T) {
	const large = 4 << 20
	// The names are pieces of one large text, as they are of the message that an object comes in.
	text := strings.Repeat("x", large)
	about := func() metav1.ObjectMeta {
		own := strings.Clone(text)
		return metav1.ObjectMeta{
			Namespace: own[:4], Name: own[4:9],
			Annotations:   map[string]string{"kubectl.kubernetes.io/last-applied-configuration": own, corev1.EndpointsLastChangeTriggerTime: own},
			Labels:        map[string]string{"app": own, discoveryv1.LabelServiceName: own[:7], corev1.LabelTopologyZone: own[:8], proxyNameLabel: own[:6]},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: own[:5], FieldsV1: metav1.NewFieldsV1(own)}},
		}
	}
	var kept []model.Object
	before := usage.Heap()
	for range 10 {
		m := about()
		own := m.Annotations["kubectl.kubernetes.io/last-applied-configuration"]
		for _, in := range []any{
			&corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{
				Selector: map[string]string{"a": own}, ExternalName: own, Ports: []corev1.ServicePort{{Name: own[:3], Port: 80}},
			}},
			&discoveryv1.EndpointSlice{ObjectMeta: m, AddressType: "IPv4", Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{"10.0.0.1", own}, NodeName: new(own[:9]), TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: own[:4], Name: own[:20], UID: types.UID(own)}, Zone: new(own), Hostname: new(own),
				DeprecatedTopology: map[string]string{"a": own}, Hints: &discoveryv1.EndpointHints{ForZones: []discoveryv1.ForZone{{Name: own[:8]}}},
			}}},
			&corev1.Node{ObjectMeta: m, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: "InternalIP", Address: own}}}},
			&corev1.Namespace{ObjectMeta: m},
			&networkingv1.ServiceCIDR{ObjectMeta: m},
		} {
			o, _, err := Object(in)
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, o)
		}
		// The error must also not hold the text with the fault.
		_, err := Service(&corev1.Service{ObjectMeta: m, Spec: corev1.ServiceSpec{ExternalIPs: []string{own[:50], own}}})
		defer runtime.KeepAlive(err)
	}
	if grown := usage.Heap() - before; grown > large/4 {
		t.Errorf("%d objects whose texts are of 4 MiB take %d KiB", len(kept), grown>>10)
	}
	runtime.KeepAlive(kept)
}

// TestHostilePods converts slices whose references have the longest names, with nothing in common. The names take no more than their endpoints.
func TestHostilePods(t *testing.T) {
	const slices, each = 20, 1000
	var kept [2][]*model.EndpointSlice
	var grown [2]int
	for named := range 2 {
		before := usage.Heap()
		for range slices {
			in := &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "s"}}
			for i := range each {
				e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)}}
				if named == 1 {
					id := fmt.Sprintf("%04d", i)
					e.TargetRef = pod("Pod", "ns", id[3:]+id[:3]+strings.Repeat("x", 249))
				}
				in.Endpoints = append(in.Endpoints, e)
			}
			s, err := EndpointSlice(in)
			if err != nil {
				t.Fatal(err)
			}
			kept[named] = append(kept[named], s)
		}
		grown[named] = usage.Heap() - before
	}
	if with, without := grown[1], grown[0]; with > 2*without {
		t.Errorf("%d slices take %d KiB with names, %d without", slices, with>>10, without>>10)
	}
	if name := kept[1][slices-1].Pods.At(0); len(name) != 253 {
		t.Errorf("the first pod is %q", name)
	}
}

// BenchmarkPods reports the memory that 50,000 endpoints keep, by the number of ReplicaSets whose pods share a slice.
func BenchmarkPods(b *testing.B) {
	const slices, each = 500, 100
	for _, sets := range []int{0, 1, 2} {
		b.Run(fmt.Sprintf("ReplicaSets=%d", sets), func(b *testing.B) {
			var in []*discoveryv1.EndpointSlice
			for i := range slices {
				s := &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("frontend-", i)}}
				for k := range each {
					e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i/250, i%250, k)}}
					if sets > 0 {
						e.TargetRef = pod("Pod", "ns", fmt.Sprintf("frontend-%010x-%05x", 0xabcdef*(i*sets+k%sets), 7919*k))
					}
					s.Endpoints = append(s.Endpoints, e)
				}
				in = append(in, s)
			}
			var grown, names int
			for b.Loop() {
				before := usage.Heap()
				kept := make([]*model.EndpointSlice, 0, slices)
				for _, s := range in {
					m, err := EndpointSlice(s)
					if err != nil {
						b.Fatal(err)
					}
					kept = append(kept, m)
					names += len(m.Pods)
				}
				grown += usage.Heap() - before
				runtime.KeepAlive(kept)
			}
			endpoints := float64(slices * each * b.N)
			b.ReportMetric(float64(grown)/endpoints, "retained-B/endpoint")
			b.ReportMetric(float64(names)/endpoints, "names-B/endpoint")
		})
	}
}
