package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"

	"google.golang.org/grpc"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/wire"
	"github.com/switchyard-net/switchyard/model"
)

// countingConn counts the bytes of a connection in both directions.
type countingConn struct {
	net.Conn
	in, out *atomic.Int64
}

func (c countingConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.in.Add(int64(n))
	return n, err
}

func (c countingConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.out.Add(int64(n))
	return n, err
}

// onSocket serves w on a unix socket and returns a connection to it.
func onSocket(t testing.TB, w *world, in, out *atomic.Int64) *grpc.ClientConn {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, path)
	return dial(t, func(ctx context.Context, _ string) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
		return countingConn{c, in, out}, err
	})
}

// BenchmarkNextFullState: a client gets 10,000 services with 5 endpoints each and reads all records.
func BenchmarkNextFullState(b *testing.B) {
	w := newWorld(b, nil)
	w.sink.Update(services(10_000, 5), nil)
	w.sink.Complete()
	var in, out atomic.Int64
	c := localnetv1.NewEndpointsClient(onSocket(b, w, &in, &out))
	read := func(parse bool) {
		stream, err := c.Next(b.Context(), &localnetv1.NextFilter{})
		if err != nil {
			b.Fatal(err)
		}
		n := 0
		for {
			item, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				b.Fatal(err)
			}
			if e := item.GetEndpoints(); e != nil {
				n++
				if parse {
					if _, err := wire.ParseService(e); err != nil {
						b.Fatal(err)
					}
				}
			}
		}
		if n != 10_000 {
			b.Fatalf("got %d services", n)
		}
	}
	b.Run("messages", func(b *testing.B) {
		before := in.Load()
		for b.Loop() {
			read(false)
		}
		b.ReportMetric(float64(in.Load()-before)/float64(b.N), "wire-B/op")
	})
	b.Run("records", func(b *testing.B) {
		for b.Loop() {
			read(true)
		}
	})
}

// BenchmarkWatchOneEndpoint: one endpoint of 50,000 changes; from the store's sink until the client has the update.
func BenchmarkWatchOneEndpoint(b *testing.B) {
	w := newWorld(b, nil)
	w.sink.Update(services(10_000, 5), nil)
	w.sink.Complete()
	var in, out atomic.Int64
	stream, err := localnetv1.NewEndpointsClient(onSocket(b, w, &in, &out)).Watch(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	var a wire.Assembly
	update := func() *wire.Received {
		for {
			m, err := stream.Recv()
			if err != nil {
				b.Fatal(err)
			}
			r, err := a.Add(m)
			if err != nil {
				b.Fatal(err)
			}
			if r != nil {
				return r
			}
		}
	}
	if err := stream.Send(&localnetv1.WatchRequest{Subscribe: &localnetv1.Subscribe{Client: "bench"}, Ready: true}); err != nil {
		b.Fatal(err)
	}
	update()
	_ = stream.Send(&localnetv1.WatchRequest{Ready: true})
	before := in.Load() + out.Load()
	n := 0
	for b.Loop() {
		n++
		changed := *service("service-04711", 4711, 5)[1].(*model.EndpointSlice)
		changed.Endpoints[2].Addr = address(11, n)
		w.sink.Update([]model.Object{&changed}, nil)
		if u := update().Update; u.Full || len(u.Changed) != 1 {
			b.Fatalf("got %d services, full: %v", len(u.Changed), u.Full)
		}
		_ = stream.Send(&localnetv1.WatchRequest{Ready: true})
	}
	b.ReportMetric(float64(in.Load()+out.Load()-before)/float64(n), "wire-B/op")
}
