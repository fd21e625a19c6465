package relay

import (
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestSlowStartIsCountedOnce: a relay computes states of its own and passes objects on. The store of a node below it counts by itself, and has the same
// weights at each time. After a cut of the connection it goes on counting.
func TestSlowStartIsCountedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n, log := newNetwork(), slog.New(slog.DiscardHandler)
		relay := store.NewCluster(store.ClusterOptions{})
		t.Cleanup(relay.Close)
		node := store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
		t.Cleanup(node.Close)
		feed := objectlog.New(objectlog.Options{})
		t.Cleanup(feed.Close)
		sink := objectlog.Tee(relay.Source("cluster"), feed.Source("cluster"))
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "web"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			Annotations: []model.Annotation{{Name: model.SlowStartAnnotation, Value: "8s"}, {Name: model.ZoneWeightsAnnotation, Value: "same=2,other=1"}},
		}
		endpoints := func(count byte) *model.EndpointSlice {
			s := &model.EndpointSlice{Namespace: "ns", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
			for i := range count {
				s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, i}), Ready: true, Serving: true, Zone: []string{"west", "east"}[i%2]})
			}
			return s
		}
		sink.Update([]model.Object{svc, endpoints(2), &model.Node{Name: "node-a", Zone: "west"}}, nil)
		sink.Complete()
		n.serve(t, "relay", feed)
		run(t, n.source(t, log, "relay"), node.Source("relay"))
		synctest.Wait()
		sink.Update([]model.Object{endpoints(3)}, nil)
		synctest.Wait()
		// Zone weights are 2, 1 and 2. The third endpoint has a tenth of its weight, and an eighth more each second.
		for second, want := range [][]uint32{{10, 5, 1}, {16, 8, 2}, {8, 4, 2}, {16, 8, 6}, {4, 2, 2}} {
			if second == 2 {
				n.cut("relay")
			}
			above, err := relay.Node("node-a").Next(t.Context(), 0)
			if err != nil {
				t.Fatal(err)
			}
			for where, record := range map[string]*state.Service{"relay": above.Changed[0], "node": node.Snapshot().Get(svc.Name)} {
				if got := record.Ports[0].Internal.Inside.Weights(); !sameRatio(got, want) {
					t.Errorf("after %d seconds the weights of the %s are %v, want %v", second, where, got, want)
				}
			}
			time.Sleep(time.Second)
			synctest.Wait()
		}
	})
}

// sameRatio reports whether two lists of weights mean the same shares.
func sameRatio(a, b []uint32) bool {
	return slices.EqualFunc(a, b, func(x, y uint32) bool { return x*b[0] == y*a[0] })
}
