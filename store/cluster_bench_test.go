package store

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"testing"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// The cluster that the benchmarks measure. The first of its services has internalTrafficPolicy Local.
const (
	benchServices  = 10_000
	benchEndpoints = 5
	benchNodes     = 5_000
)

func benchNode(i int) string { return fmt.Sprintf("node-%d", i%benchNodes) }

func benchService(i int) *model.Service {
	return &model.Service{
		Name:       state.ServiceName{Namespace: fmt.Sprintf("ns-%d", i%100), Name: fmt.Sprintf("service-%d", i)},
		ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)})},
		Ports:      []model.ServicePort{{Protocol: state.TCP, Port: 80}},
	}
}

// benchSlice has endpoints on the nodes from first on, the last of them unready unless ready is set.
func benchSlice(svc *model.Service, name string, first, endpoints int, ready bool) *model.EndpointSlice {
	s := &model.EndpointSlice{Namespace: svc.Name.Namespace, Name: name, Service: svc.Name.Name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range endpoints {
		n := first + i
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)}),
			Ready: ready || i < endpoints-1, Serving: true, NodeName: benchNode(n)})
	}
	return s
}

func benchCluster(b *testing.B) (*Cluster, model.Sink) {
	c := NewCluster(ClusterOptions{})
	b.Cleanup(c.Close)
	sink := c.Source("bench")
	var objects []model.Object
	for i := range benchNodes {
		objects = append(objects, &model.Node{Name: benchNode(i), Zone: fmt.Sprintf("zone-%d", i%3),
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}})
	}
	for i := range benchServices {
		svc := benchService(i)
		svc.InternalLocal = i == 0
		objects = append(objects, svc, benchSlice(svc, svc.Name.Name, i*benchEndpoints, benchEndpoints, true))
	}
	sink.Update(objects, nil)
	sink.Complete()
	return c, sink
}

// waiters waits for the news of nodes until the cluster is closed, and calls got for each.
func waiters(b *testing.B, c *Cluster, nodes int, got func()) {
	var started sync.WaitGroup
	after := c.feed.revision
	for i := range nodes {
		feed := c.Node(benchNode(i))
		started.Add(1)
		go func() {
			started.Done()
			for rev := after; ; {
				u, err := feed.Next(b.Context(), rev)
				if err != nil {
					return
				}
				rev = u.Revision
				got()
			}
		}()
	}
	started.Wait()
	for {
		runtime.Gosched()
		c.feed.mu.Lock()
		n := 0
		for _, node := range c.feed.nodes {
			n += node.callers
		}
		c.feed.mu.Unlock()
		if n == nodes {
			return
		}
	}
}

// BenchmarkClusterChangeForAll is the time from the change of an endpoint until 5,000 nodes have the update.
func BenchmarkClusterChangeForAll(b *testing.B) {
	c, sink := benchCluster(b)
	var arrived sync.WaitGroup
	waiters(b, c, benchNodes, arrived.Done)
	n := 0
	for b.Loop() {
		n++
		svc := benchService(1 + n%(benchServices-1))
		arrived.Add(benchNodes)
		sink.Update([]model.Object{benchSlice(svc, svc.Name.Name, n*7, benchEndpoints, true)}, nil)
		arrived.Wait()
	}
}

// BenchmarkClusterChangeForOne is the same for a change that concerns a single node, while 5,000 wait.
func BenchmarkClusterChangeForOne(b *testing.B) {
	c, sink := benchCluster(b)
	var arrived sync.WaitGroup
	waiters(b, c, benchNodes, arrived.Done)
	svc := benchService(0)
	n := 0
	for b.Loop() {
		n++
		arrived.Add(1)
		sink.Update([]model.Object{benchSlice(svc, svc.Name.Name, 0, benchEndpoints, n%2 == 0)}, nil)
		arrived.Wait()
	}
}

// BenchmarkClusterChangeOnEachNode is a change that concerns a single node of a service with an endpoint on each of 5,000
// nodes, in slices of 100.
func BenchmarkClusterChangeOnEachNode(b *testing.B) {
	c, sink := benchCluster(b)
	svc := benchService(benchServices)
	svc.InternalLocal = true
	objects := []model.Object{svc}
	for first := 0; first < benchNodes; first += 100 {
		objects = append(objects, benchSlice(svc, fmt.Sprint("slice-", first), first, 100, true))
	}
	sink.Update(objects, nil)
	var arrived sync.WaitGroup
	waiters(b, c, benchNodes, arrived.Done)
	n := 0
	for b.Loop() {
		n++
		arrived.Add(1)
		sink.Update([]model.Object{benchSlice(svc, "slice-0", 0, 100, n%2 == 0)}, nil)
		arrived.Wait()
	}
}

// BenchmarkClusterFull is the time until one more node has the full state.
func BenchmarkClusterFull(b *testing.B) {
	c, _ := benchCluster(b)
	n := 0
	for b.Loop() {
		n++
		if u, err := c.Node(benchNode(n)).Next(b.Context(), 0); err != nil || len(u.Changed) != benchServices {
			b.Fatal(u, err)
		}
	}
}

// BenchmarkClusterMemory reports the heap for a node that is known to the cluster and waits, without the shared
// records.
func BenchmarkClusterMemory(b *testing.B) {
	c, _ := benchCluster(b)
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	waiters(b, c, benchNodes, func() {})
	perNode := float64(heap()-before) / benchNodes
	for b.Loop() {
	}
	b.ReportMetric(perNode, "B/node")
	b.ReportMetric(float64(before)/(1<<20), "MiB/cluster")
	b.ReportMetric(0, "ns/op")
}
