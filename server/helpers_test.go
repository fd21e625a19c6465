package server_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/test/bufconn"

	"github.com/switchyard-net/switchyard/brain"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

const nodeName = "node-a"

// world is a store with one source, served to clients over connections in memory.
type world struct {
	t        testing.TB
	store    *store.Store
	sink     model.Sink
	server   *server.Server
	listener *bufconn.Listener
	dial     func() *grpc.ClientConn
	// stop ends the server and waits until it has ended.
	stop func()
}

// newWorld starts a server whose options change may change. Its source is not complete.
func newWorld(t testing.TB, change func(*server.Options)) *world {
	t.Helper()
	w := &world{t: t, store: store.New(store.Options{Brain: brain.Config{NodeName: nodeName}})}
	w.sink = w.store.Source("test")
	o := server.Options{Node: nodeName, InstanceID: 7, Feed: server.Only(nodeName, w.store)}
	if change != nil {
		change(&o)
	}
	s, err := server.New(o)
	if err != nil {
		t.Fatal(err)
	}
	w.server = s
	l := bufconn.Listen(64 << 10)
	w.listener = l
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, l, nil) }()
	stopped := false
	w.stop = func() {
		if !stopped {
			stopped = true
			cancel()
			if err := <-ended; err != nil {
				t.Errorf("Serve: %v", err)
			}
		}
	}
	t.Cleanup(w.stop)
	w.dial = func() *grpc.ClientConn {
		return dial(t, func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) })
	}
	return w
}

func dial(t testing.TB, dialer func(context.Context, string) (net.Conn, error)) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithContextDialer(dialer), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (w *world) client() localnetv1.EndpointsClient { return localnetv1.NewEndpointsClient(w.dial()) }

// service is a service in namespace ns with so many endpoints, and the slice that has them.
func service(name string, number, endpoints int) []model.Object {
	slice := &model.EndpointSlice{
		Namespace: "ns", Name: name + "-1", Service: name, Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
	}
	for i := range endpoints {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: address(10, number*endpoints+i), Ready: true, Serving: true})
	}
	return []model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: name}, ClusterIPs: []netip.Addr{address(172, number)},
			Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
		},
		slice,
	}
}

func services(n, endpoints int) (all []model.Object) {
	for i := range n {
		all = append(all, service(fmt.Sprintf("service-%05d", i), i, endpoints)...)
	}
	return all
}

func address(first byte, n int) netip.Addr {
	return netip.AddrFrom4([4]byte{first, byte(n >> 16), byte(n >> 8), byte(n)})
}

// onSocketAt returns a connection to the unix socket at path.
func onSocketAt(t testing.TB, path string) *grpc.ClientConn {
	t.Helper()
	return dial(t, func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	})
}

// rawCodec makes a call send and receive bytes instead of messages.
var rawCodec = grpc.ForceCodecV2(bytesCodec{})

type bytesCodec struct{}

func (bytesCodec) Name() string { return "proto" }

func (bytesCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}

func (bytesCodec) Unmarshal(data mem.BufferSlice, v any) error {
	*v.(*[]byte) = data.Materialize()
	return nil
}

// soon is the context of what must not take long.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}
