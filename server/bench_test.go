package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
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
					if _, err := protoconv.ParseService(e); err != nil {
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

// lone is a client that watches 10,000 services with 5 endpoints each, one endpoint changing at a time.
type lone struct {
	*world
	*watcher
	changes int
	in, out atomic.Int64 // bytes, as the client sees them
}

func newLone(t testing.TB) *lone {
	l := &lone{world: newWorld(t, nil)}
	l.sink.Update(services(10_000, 5), nil)
	l.sink.Complete()
	l.watcher = watch(t, t.Context(), localnetv1.NewEndpointsClient(onSocket(t, l.world, &l.in, &l.out)), subscribe)
	l.expectLong()
	l.ready()
	return l
}

// change makes one change, waits until the client has it, and asks for the next.
func (l *lone) change() {
	l.changes++
	changed := *service("service-04711", 4711, 5)[1].(*model.EndpointSlice)
	changed.Endpoints[2].Addr = address(11, l.changes)
	changed.TriggerTime = time.Unix(1_700_000_000, int64(l.changes))
	l.sink.Update([]model.Object{&changed}, nil)
	r, err := l.receive()
	if err != nil || r.Update.Full || len(r.Update.Changed) != 1 || len(r.Update.Triggers) != 1 || l.nodes != 0 {
		l.watcher.t.Fatalf("got %+v, %v", r, err)
	}
	l.ready()
}

// TestOneEndpointIsSmallOnTheWire: however large the state is, with all that HTTP/2 adds in both directions.
func TestOneEndpointIsSmallOnTheWire(t *testing.T) {
	l := newLone(t)
	const changes = 200
	before := l.in.Load() + l.out.Load()
	for range changes {
		l.change()
	}
	if each := (l.in.Load() + l.out.Load() - before) / changes; each > 300 {
		t.Errorf("a change of one endpoint takes %d bytes on the wire, want 300 at most", each)
	}
}

// BenchmarkWatchOneEndpoint: one endpoint of 50,000 changes; from the store's sink until the client has the update.
func BenchmarkWatchOneEndpoint(b *testing.B) {
	l := newLone(b)
	before := l.in.Load() + l.out.Load()
	for b.Loop() {
		l.change()
	}
	b.ReportMetric(float64(l.in.Load()+l.out.Load()-before)/float64(l.changes), "wire-B/op")
}
