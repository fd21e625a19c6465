package relay

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	"github.com/switchyard-net/switchyard/internal/clusterserver"
	"github.com/switchyard-net/switchyard/internal/objectlog"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

const (
	benchServices  = 10_000
	benchEndpoints = 5
)

// benchService returns a service and its slice, as a cluster has them. last is the last byte of an endpoint's address.
func benchService(i int, last byte) []model.Object {
	name := fmt.Sprintf("service-%05d", i)
	addr := func(net, host byte) netip.Addr { return netip.AddrFrom4([4]byte{net, byte(i >> 8), byte(i), host}) }
	slice := &model.EndpointSlice{
		Namespace: "namespace", Name: name + "-x7k2p", Service: name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
	}
	for e := range byte(benchEndpoints) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: addr(11, e*16+last), Ready: true, Serving: true, NodeName: fmt.Sprintf("node-%04d", (i+int(e))%1000),
			ZoneHints: []string{"zone-a"},
		})
	}
	return []model.Object{slice, &model.Service{
		Name:       state.ServiceName{Namespace: "namespace", Name: name},
		ClusterIPs: []netip.Addr{addr(10, 0)},
		Ports:      []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
	}}
}

// arrivals is a sink that reports how many objects came with each update.
type arrivals chan int

func (a arrivals) Update(set []model.Object, _ []model.Ref) { a <- len(set) }

func (a arrivals) Complete() {}

// benchRelay serves a feed over loopback and returns a source that follows it, and how many bytes it has read.
func benchRelay(b *testing.B) (sink interface {
	Update([]model.Object, []model.Ref)
}, follow func(context.Context) arrivals, read *atomic.Int64) {
	feed := objectlog.New(objectlog.Options{})
	s := feed.Source("bench")
	for i := range benchServices {
		s.Update(benchService(i, 1), nil)
	}
	s.Complete()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(protoconv.Codec()))
	clusterserver.Register(server, clusterserver.Options{Feed: feed})
	go server.Serve(l)
	b.Cleanup(server.Stop)
	read = new(atomic.Int64)
	dial := func(ctx context.Context, addr string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
		return &metered{c, read}, err
	}
	return s, func(ctx context.Context) arrivals {
		source, err := New(Options{
			Targets:     []string{"passthrough:///" + l.Addr().String()},
			DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial)},
		})
		if err != nil {
			b.Fatal(err)
		}
		a := make(arrivals)
		go source.Run(ctx, a)
		return a
	}, read
}

// metered is a connection that counts the bytes read.
type metered struct {
	net.Conn
	read *atomic.Int64
}

func (m *metered) Read(b []byte) (int, error) {
	n, err := m.Conn.Read(b)
	m.read.Add(int64(n))
	return n, err
}

// BenchmarkFull follows a relay from nothing: 10,000 services with 5 endpoints each.
func BenchmarkFull(b *testing.B) {
	_, follow, read := benchRelay(b)
	b.ReportAllocs()
	for b.Loop() {
		ctx, cancel := context.WithCancel(b.Context())
		if n := <-follow(ctx); n != 2*benchServices {
			b.Fatalf("%d objects came", n)
		}
		cancel()
	}
	b.ReportMetric(float64(read.Load())/float64(b.N), "wire-B/op")
}

// BenchmarkChange changes one endpoint of one service among those.
func BenchmarkChange(b *testing.B) {
	sink, follow, read := benchRelay(b)
	a := follow(b.Context())
	<-a
	before := read.Load()
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		i++
		sink.Update(benchService(i%benchServices, byte(2+i/benchServices%10))[:1], nil)
		if n := <-a; n != 1 {
			b.Fatalf("%d objects came", n)
		}
	}
	b.ReportMetric(float64(read.Load()-before)/float64(b.N), "wire-B/op")
}
