package server_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// kubeService is a Service of the API with so many ports and its number-th address.
func kubeService(name string, number, ports int) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}}
	s.Spec.ClusterIPs = []string{address(172, number).String()}
	for i := range ports {
		s.Spec.Ports = append(s.Spec.Ports, corev1.ServicePort{Name: fmt.Sprint("p", i), Port: int32(i + 1)})
	}
	return s
}

// kubeSlice is an EndpointSlice of the API for the ports of a Service, with so many endpoints.
func kubeSlice(s *corev1.Service, part, endpoints int) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{AddressType: "IPv4", ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: fmt.Sprint(s.Name, "-", part), Labels: map[string]string{discoveryv1.LabelServiceName: s.Name},
	}}
	for _, p := range s.Spec.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: new(p.Protocol)})
	}
	for i := range endpoints {
		addr := address(10, part*endpoints+i).String()
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{addr}, NodeName: new("node-b")})
	}
	return slice
}

// convert converts objects of the API into objects of the model.
func convert(t *testing.T, list ...any) (objects []model.Object) {
	t.Helper()
	for _, in := range list {
		o, _, err := kubeconv.Object(in)
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, o)
	}
	return objects
}

// dataplane follows a world as a client of the library, and has its state checked.
func dataplane(t *testing.T, w *world) (changes <-chan *client.Change) {
	t.Helper()
	to := make(chan *client.Change)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		o := client.Options{Target: "unix:///in-memory", DialOptions: []grpc.DialOption{
			grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return w.listener.DialContext(ctx) }),
		}}
		ended <- client.RunSink(ctx, o, client.SinkFunc(func(ctx context.Context, c *client.Change) (map[client.ServiceName]error, error) {
			_ = c.Services()
			select {
			case to <- c:
			case <-ctx.Done():
			}
			return nil, nil
		}))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	return to
}

func shows(t *testing.T, changes <-chan *client.Change) map[string]*localnetv1.ServiceEndpoints {
	t.Helper()
	select {
	case c := <-changes:
		all := map[string]*localnetv1.ServiceEndpoints{}
		for _, s := range c.Changed {
			if err := client.Check(s); err != nil {
				t.Errorf("what came cannot be programmed: %v", err)
			}
			all[s.GetName()] = s
		}
		return all
	case <-time.After(2 * time.Minute):
		t.Fatal("no change has come")
		return nil
	}
}

// TestLargeObjects sends objects at and over the limits of Kubernetes from the API to a dataplane. An ordinary service
// next to each of them works.
func TestLargeObjects(t *testing.T) {
	for _, c := range []struct {
		name                     string
		ports, slices, endpoints int // endpoints of each slice
	}{
		{"a full slice", 1, 1, 1000},
		{"an overfull slice", 1, 1, 5000},
		{"many ports", 300, 1, 100},
		{"very many ports", 3000, 1, 1},
		{"many slices", 1, 10_000, 10},
		{strings.Repeat("n", 63), 1, 1, 1}, // kubeconv refuses longer ones
	} {
		t.Run(fmt.Sprintf("%.40s", c.name), func(t *testing.T) {
			w := newWorld(t, nil)
			large := kubeService(c.name, 1, c.ports)
			in := []any{large}
			for i := range c.slices {
				in = append(in, kubeSlice(large, i, c.endpoints))
			}
			start := time.Now()
			w.sink.Update(convert(t, in...), nil)
			w.sink.Update(service("ordinary", 2, 3), nil)
			w.sink.Complete()
			computed := time.Since(start)
			changes := dataplane(t, w)
			all := shows(t, changes)
			t.Logf("computed in %v, shown after %v", computed.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
			got := all[c.name]
			if len(all) != 2 || len(got.GetPorts()) != c.ports {
				t.Fatalf("%d services, %d ports", len(all), len(got.GetPorts()))
			}
			for _, p := range got.GetPorts() {
				if n := len(p.GetEndpoints()); n != c.slices*c.endpoints || len(p.GetInternal().GetInside().GetEndpoints()) != n {
					t.Fatalf("port %s has %d endpoints, %v", p.GetName(), n, p.GetInternal())
				}
			}
			w.sink.Update(service("ordinary", 2, 4), nil)
			if all := shows(t, changes); len(all) != 1 || len(all["ordinary"].GetPorts()[0].GetEndpoints()) != 4 {
				t.Errorf("after a change of the other service came %d services", len(all))
			}
		})
	}
}

// TestHundredThousandServices measures their cost, from the model to the dataplane, all in this process.
func TestHundredThousandServices(t *testing.T) {
	n := 100_000
	if raceEnabled || testing.Short() {
		n = 10_000
	}
	w := newWorld(t, nil)
	before, start := heap(), time.Now()
	w.sink.Update(services(n, 10), nil)
	w.sink.Complete()
	stored, computed := heap()-before, time.Since(start)
	changes := dataplane(t, w)
	if all := shows(t, changes); len(all) != n {
		t.Fatalf("%d services came", len(all))
	}
	shown := heap() - before
	u, err := w.store.Next(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	var e protoconv.Encoder
	for part := range protoconv.Parts(&e, u, nil, protoconv.Position{}, 1<<20) {
		size += len(part.Bytes())
	}
	t.Logf("%d services of 10 endpoints: computed in %v, in the store %d MiB; shown after %v, with the messages at both ends %d MiB; the update has %d MiB",
		n, computed.Round(time.Millisecond), stored>>20, time.Since(start).Round(time.Millisecond), shown>>20, size>>20)
	if each := shown / n; each > 16<<10 {
		t.Errorf("each service takes %d bytes", each)
	}
	start = time.Now()
	w.sink.Update(service("service-00007", 7, 3), nil)
	if all := shows(t, changes); len(all) != 1 {
		t.Errorf("after a change of one came %d", len(all))
	}
	t.Logf("a change of one is shown after %v", time.Since(start).Round(time.Microsecond))
}
