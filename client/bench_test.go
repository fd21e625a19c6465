package client

import (
	"fmt"
	"net"
	"path/filepath"
	"testing"

	"google.golang.org/grpc"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// fast is a server with prepared answers, so that the benchmark measures the client.
type fast struct {
	localnetv1.UnimplementedEndpointsServer
	services []*localnetv1.ServiceEndpoints
	parts    []*localnetv1.WatchResponse
}

func newFast(n int) *fast {
	f := &fast{}
	for i := range n {
		f.services = append(f.services, service(fmt.Sprintf("service-%05d", i), i, 5))
	}
	const perPart = 500
	for i := 0; i < n; i += perPart {
		f.parts = append(f.parts, &localnetv1.WatchResponse{Full: true, Changed: f.services[i:min(n, i+perPart)]})
	}
	f.parts[0].Node = node("a")
	f.parts[len(f.parts)-1].Position = at(1, 1)
	return f
}

func (f *fast) Next(_ *localnetv1.NextFilter, stream grpc.ServerStreamingServer[localnetv1.NextItem]) error {
	if err := stream.Send(&localnetv1.NextItem{Next: &localnetv1.NextFilter{InstanceId: 1, Rev: 1}}); err != nil {
		return err
	}
	for _, s := range f.services {
		if err := stream.Send(&localnetv1.NextItem{Endpoints: s}); err != nil {
			return err
		}
	}
	return nil
}

func (f *fast) Watch(stream grpc.BidiStreamingServer[localnetv1.WatchRequest, localnetv1.WatchResponse]) error {
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		for _, part := range f.parts {
			if r.Ready {
				if err := stream.Send(part); err != nil {
					return err
				}
			}
		}
	}
}

// serveReal serves on a real socket and returns the target.
func serveReal(t testing.TB, network, address string, api localnetv1.EndpointsServer) string {
	t.Helper()
	l, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	srv := grpc.NewServer()
	localnetv1.RegisterEndpointsServer(srv, api)
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	return map[string]string{"unix": "unix://", "tcp": "tcp://"}[network] + l.Addr().String()
}

// BenchmarkNext gets a whole state of 10,000 services with 5 endpoints, each time with a new connection, as after a start.
func BenchmarkNext(b *testing.B) {
	for network, address := range map[string]string{"tcp": "127.0.0.1:0", "unix": filepath.Join(b.TempDir(), "api.sock")} {
		b.Run(network, func(b *testing.B) {
			target := serveReal(b, network, address, newFast(10_000))
			b.ReportAllocs()
			for b.Loop() {
				epc := &EndpointsClient{Target: target}
				items, canceled := epc.Next()
				if len(items) != 10_000 || canceled {
					b.Fatalf("got %d services", len(items))
				}
				epc.Cancel()
			}
		})
	}
}

// BenchmarkWatch gets the same as a full update.
func BenchmarkWatch(b *testing.B) {
	target := serveReal(b, "tcp", "127.0.0.1:0", newFast(10_000))
	b.ReportAllocs()
	for b.Loop() {
		w, err := NewWatcher(Options{Target: target})
		if err != nil {
			b.Fatal(err)
		}
		for u := range w.Updates(b.Context()) {
			if len(u.Changed) != 10_000 {
				b.Fatalf("got %d services", len(u.Changed))
			}
			break
		}
	}
}
