package protoconv

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/test/usage"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/store"
)

// TestObjectsAtTheLimits sends a service from the API's objects to a client. It has hundreds of ports and slices, each
// with the largest annotations and the maximum number of endpoints. Nothing is lost, and only the data for routing is
// kept.
func TestObjectsAtTheLimits(t *testing.T) {
	const ports, slices, each = 100, 200, 1000 // a port is in 10 of the slices
	meta := func(name string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: "ns", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: "svc"},
			Annotations: map[string]string{"large": strings.Repeat(name[:1], 256<<10)}}
	}
	before := usage.Heap()
	var objects []model.Object
	take := func(in any) {
		o, _, err := kubeconv.Object(in)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	svc := &corev1.Service{ObjectMeta: meta("svc"), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1"}}
	for i := range ports {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(1000 + i)})
	}
	take(svc)
	for i := range slices {
		s := &discoveryv1.EndpointSlice{ObjectMeta: meta(fmt.Sprint("slice", i)), AddressType: "IPv4"}
		for k := range ports {
			if k%20 == i%20 {
				s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: new(fmt.Sprint("p", k)), Port: new(int32(8000 + k))})
			}
		}
		for k := range each {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", i, k/250, k%250)}})
		}
		take(s)
	}
	st := store.New(store.Options{Brain: brain.Config{NodeName: "node"}})
	sink := st.Source("test")
	sink.Complete()
	sink.Update(objects, nil)
	objects = nil
	// Each of the 200,000 endpoints takes 112 bytes as an object, and 40 in each of its five ports.
	if grown := (usage.Heap() - before) >> 20; grown > 96 {
		t.Errorf("%d MiB are kept", grown)
	}

	u, err := st.Next(t.Context(), 0)
	if err != nil || len(u.Changed) != 1 || len(u.Changed[0].Ports) != ports {
		t.Fatalf("%v, %v", u, err)
	}
	var e Encoder
	m := &localnetv1.ServiceEndpoints{}
	if err := proto.Unmarshal(e.bytesOf(u.Changed[0]), m); err != nil {
		t.Fatal(err)
	}
	got, err := ParseService(m)
	if err != nil || !got.Equal(u.Changed[0]) {
		t.Fatalf("the client has another record; %v", err)
	}
	for _, p := range got.Ports {
		if n := len(p.Internal.Inside.Endpoints); n != 10*each {
			t.Fatalf("port %s has %d endpoints, want %d", p.Name, n, 10*each)
		}
	}
}
