package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/test/await"
)

// rawClient speaks HTTP/2 by hand, so that it can be as rude as it likes.
type rawClient struct {
	net.Conn
	*http2.Framer
}

func rawDial(t testing.TB, socket string) *rawClient {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	c := &rawClient{conn, http2.NewFramer(conn, conn)}
	if _, err := io.WriteString(conn, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := c.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	return c
}

// call begins a call on a stream.
func (c *rawClient) call(stream uint32, method string) error {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", method}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	return c.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: b.Bytes(), EndHeaders: true})
}

const (
	watchMethod = "/switchyard.localnet.v1.Endpoints/Watch"
	nextMethod  = "/switchyard.localnet.v1.Endpoints/Next"
)

// heap is what this process has in use.
func heap() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapInuse + m.StackInuse)
}

// TestDeafClients: clients request a large state and never read. Each costs only a little, for any size of the state.
func TestDeafClients(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(services(3000, 20), nil)
	w.sink.Complete()
	u, err := w.store.Next(t.Context(), 0)
	if err != nil {
		t.Fatal(err)
	}
	size := 0
	var e protoconv.Encoder
	for part := range protoconv.Parts(&e, u, nil, protoconv.Position{}, 1<<20) {
		size += len(part.Bytes())
	}
	socket := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, socket)
	// The first one makes the server marshal everything.
	watch(t, soon(t), localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe).expectLong()

	const clients = 60
	before := heap()
	for i := range clients {
		c := rawDial(t, socket)
		method := []string{watchMethod, nextMethod}[i%2]
		if err := c.call(1, method); err != nil {
			t.Fatal(err)
		}
		request := []byte{0, 0, 0, 0, 0}
		if method == watchMethod {
			request = []byte{0, 0, 0, 0, 4, 0x0a, 0, 0x10, 1} // subscribe, ready
		}
		if err := c.WriteData(1, method == nextMethod, request); err != nil {
			t.Fatal(err)
		}
	}
	waitForClients(t, w, clients+1)
	time.Sleep(300 * time.Millisecond) // there is nothing to wait for: the server must stop sending by itself
	const limit = 200 << 10
	if size < 2*limit {
		t.Fatalf("the state has %d bytes", size)
	}
	// On a busy machine, the server may still be sending to some.
	each := 0
	await.Until(t, fmt.Sprintf("each of them costs %d bytes at most", limit), func() bool { each = (heap() - before) / clients; return each <= limit }, func() any { return each })
	t.Logf("a state of %d KiB; each deaf client costs %d KiB", size>>10, each>>10)
}

// TestFlood: clients that send without end, and never read, are held up by the transport, and do not keep others from their states.
func TestFlood(t *testing.T) {
	var statuses sync.Map
	w := newWorld(t, func(o *server.Options) {
		o.OnStatus = func(c server.Client, s server.Status) { statuses.Store(c.ID, s) }
	})
	w.sink.Update(services(10, 2), nil)
	w.sink.Complete()
	socket := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, socket)
	before, duration := heap(), 2*time.Second
	if testing.Short() {
		duration = 200 * time.Millisecond
	}
	stop := time.Now().Add(duration)
	var all sync.WaitGroup
	for i := range 8 {
		c := rawDial(t, socket)
		all.Go(func() {
			_ = c.SetDeadline(stop)
			for n := uint32(0); ; n++ {
				var err error
				switch {
				case i%4 == 0: // calls without end
					err = errors.Join(c.call(2*n+1, watchMethod))
				case i%4 == 1: // calls that are given up at once
					err = errors.Join(c.call(2*n+1, watchMethod), c.WriteRSTStream(2*n+1, http2.ErrCodeCancel))
				case n == 0:
					err = errors.Join(c.call(1, watchMethod), c.WriteData(1, false, []byte{0, 0, 0, 0, 4, 0x0a, 0, 0x10, 1}))
				case i%4 == 2: // requests without end, as far as the window goes
					err = c.WriteData(1, false, bytes.Repeat([]byte{0, 0, 0, 0, 6, 0x10, 1, 0x1a, 2, 8, 1}, 1000))
				default:
					err = c.WritePing(false, [8]byte{})
				}
				if err != nil {
					return
				}
			}
		})
	}
	polite := watch(t, soon(t), localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe)
	polite.expectLong()
	n := 0
	for ; time.Now().Before(stop); n++ {
		polite.ready()
		w.sink.Update(service("new", 100+n, 1), nil)
		polite.expectLong()
	}
	grown := heap() - before
	all.Wait()
	t.Logf("%d updates meanwhile; the server's memory grew by %d KiB", n, grown>>10)
	if grown > 16<<20 || n == 0 {
		t.Errorf("8 rude clients cost %d bytes, and there were %d updates for the polite one", grown, n)
	}
}

// expectLong fails unless there is another update, whatever is in it.
func (w *watcher) expectLong() {
	w.t.Helper()
	if _, err := w.receive(); err != nil {
		w.t.Fatal(err)
	}
}

// waitForClients waits until there are n connections.
func waitForClients(t testing.TB, w *world, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); w.server.Clients() != n; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("there are %d clients, want %d", w.server.Clients(), n)
		}
	}
}

// TestInvalidBytesCloseConnection: a server closes a connection over which invalid bytes come, sooner or later.
func TestInvalidBytesCloseConnection(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Complete()
	socket := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, socket)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range 50 {
		conn, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			_, _ = io.WriteString(conn, http2.ClientPreface)
		}
		b := make([]byte, 10_000)
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		_, _ = conn.Write(b)
		if i%5 == 0 {
			_ = conn.Close()
			continue
		}
		_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := io.Copy(io.Discard, conn); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Errorf("connection %d was left open", i)
		}
		_ = conn.Close()
	}
	watch(t, soon(t), localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe).expect("1 full node")
}

// TestSilentConnections are closed if they do not become HTTP/2 connections in time.
func TestSilentConnections(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		conn, err := w.listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, _ = io.Copy(io.Discard, conn)
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("it took %v", d)
		}
		synctest.Wait()
		if n := w.server.Clients(); n != 0 {
			t.Errorf("%d clients are counted", n)
		}
	})
}

// TestTooManyClients are refused, which is logged once a minute, and let in again when others have gone.
func TestTooManyClients(t *testing.T) {
	var log bytes.Buffer
	bubble(t, func(o *server.Options) {
		o.MaxClients = 2
		o.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
	}, func(t *testing.T, w *world) {
		w.sink.Complete()
		first := w.dial()
		watch(t, t.Context(), localnetv1.NewEndpointsClient(first), subscribe).expect("1 full node")
		watch(t, t.Context(), w.client(), subscribe).expect("1 full node")
		refused := func(times int) {
			t.Helper()
			for range 3 {
				conn, err := w.listener.DialContext(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if n, err := io.Copy(io.Discard, conn); n != 0 {
					t.Errorf("the third client got %d bytes, %v", n, err)
				}
			}
			synctest.Wait()
			if n := strings.Count(log.String(), "too many connections"); n != times {
				t.Errorf("it was reported %d times, want %d:\n%s", n, times, log.String())
			}
		}
		refused(1)
		time.Sleep(61 * time.Second)
		refused(2)
		if !strings.Contains(log.String(), "refusedSinceLastWarning=3") {
			t.Errorf("the log does not say how many were refused:\n%s", log.String())
		}
		_ = first.Close()
		synctest.Wait()
		watch(t, t.Context(), w.client(), subscribe).expect("1 full node")
	})
}

// FuzzWatchRequests: whatever a client sends, it gets an answer or a reason, and the server lives.
func FuzzWatchRequests(f *testing.F) {
	f.Add([]byte{0x0a, 0, 0x10, 1}, []byte{0x10, 1, 0x1a, 2, 8, 1}, true)
	f.Add([]byte{}, []byte{0xff}, false)
	w := newWorld(f, func(o *server.Options) { o.OnStatus = func(server.Client, server.Status) {} })
	w.sink.Update(services(3, 2), nil)
	w.sink.Complete()
	conn := w.dial()
	f.Fuzz(func(t *testing.T, first, second []byte, more bool) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stream, err := localnetv1.NewEndpointsClient(conn).Watch(ctx, rawCodec)
		if err != nil {
			t.Fatal(err)
		}
		_ = stream.SendMsg(first)
		_ = stream.SendMsg(second)
		if more {
			w.sink.Update(service("new", 100+rand.IntN(1000), 1), nil)
		}
		_ = stream.CloseSend()
		for err == nil {
			var m []byte
			err = stream.RecvMsg(&m)
		}
		switch c := status.Code(err); {
		case errors.Is(err, io.EOF), c == codes.InvalidArgument, c == codes.NotFound, c == codes.Internal, c == codes.ResourceExhausted:
		case c == codes.DeadlineExceeded: // it asked for what does not come
		default:
			t.Fatalf("%x, %x: %v", first, second, err)
		}
	})
}
