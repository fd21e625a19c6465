package server_test

import (
	"bytes"
	"errors"
	"io"
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
	"github.com/switchyard-net/switchyard/server"
)

// TestTenThousandConnections: as many as are allowed cost little each, the others are closed, and who was there before is served.
func TestTenThousandConnections(t *testing.T) {
	n := int(min(10_000, (openFiles(t)-500)/2)) // both ends are in this process
	limit := n / 2
	w := newWorld(t, func(o *server.Options) { o.MaxClients = limit })
	w.sink.Update(services(100, 5), nil)
	w.sink.Complete()
	socket := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, socket)
	polite := watch(t, soon(t), localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe)
	polite.expectLong()
	before, goroutines := heap(), runtime.NumGoroutine()
	conns := make([]net.Conn, n)
	var settings bytes.Buffer
	_ = http2.NewFramer(&settings, nil).WriteSettings()
	for i := range conns {
		conn, err := net.Dial("unix", socket)
		for wait := time.Millisecond; err != nil && wait < time.Second; wait *= 2 {
			time.Sleep(wait) // the queue of the listener is full
			conn, err = net.Dial("unix", socket)
		}
		if err != nil {
			t.Fatalf("connection %d of %d: %v", i, n, err)
		}
		defer conn.Close()
		_, _ = io.WriteString(conn, http2.ClientPreface+settings.String()) // it may be closed already
		conns[i] = conn
	}
	waitForClients(t, w, limit+8) // the 8 are reserved for root and the user of the process, who is the only client
	grown := heap() - before
	w.sink.Update(service("new", 1000, 1), nil)
	polite.ready()
	polite.expectLong()
	t.Logf("%d connections, %d allowed: %d KiB each, %d goroutines each", n, limit, grown/limit>>10, (runtime.NumGoroutine()-goroutines)/limit)
	if each := grown / limit; each > 100<<10 {
		t.Errorf("each of them costs %d bytes", each)
	}
	for _, c := range conns {
		_ = c.Close()
	}
	waitForClients(t, w, 1)
	watch(t, soon(t), localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe).expectLong()
}

// block is a header block of a call, and size bytes of nonsense.
func block(size int) []byte {
	var b bytes.Buffer
	e := hpack.NewEncoder(&b)
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "http"}, {":path", watchMethod}, {":authority", "x"}, {"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		_ = e.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
	for n := 0; n < size; n += 1000 {
		_ = e.WriteField(hpack.HeaderField{Name: "x-nonsense", Value: strings.Repeat("|", 1000), Sensitive: true})
	}
	return b.Bytes()
}

// rudeness are what clients do again and again, round counted from 0, until the server is tired of them.
var rudeness = map[string]func(c *rawClient, round uint32) error{
	"huge headers": func(c *rawClient, round uint32) error {
		b := block(1 << 20)
		err := c.WriteHeaders(http2.HeadersFrameParam{StreamID: 2*round + 1, BlockFragment: b[:16<<10]})
		for b = b[16<<10:]; err == nil && len(b) > 0; b = b[min(16<<10, len(b)):] {
			err = c.WriteContinuation(2*round+1, len(b) <= 16<<10, b[:min(16<<10, len(b))])
		}
		return err
	},
	"headers without end": func(c *rawClient, round uint32) error {
		if round == 0 {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(0)})
		}
		return c.WriteContinuation(1, false, block(1000))
	},
	"empty continuations": func(c *rawClient, round uint32) error {
		if round == 0 {
			return c.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block(0)})
		}
		return c.WriteContinuation(1, false, nil)
	},
	"settings": func(c *rawClient, round uint32) error {
		return c.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: round % 2 << 16}, http2.Setting{ID: http2.SettingHeaderTableSize, Val: 1<<32 - 1})
	},
	"empty data": func(c *rawClient, round uint32) error {
		if round == 0 {
			return c.call(1, watchMethod)
		}
		return c.WriteData(1, false, nil)
	},
	"streams that are reset at once": func(c *rawClient, round uint32) error {
		return errors.Join(c.call(2*round+1, nextMethod), c.WriteRSTStream(2*round+1, http2.ErrCodeCancel))
	},
	"streams that are begun twice": func(c *rawClient, round uint32) error { return c.call(1, watchMethod) },
	"a message of 4 GiB": func(c *rawClient, round uint32) error {
		return errors.Join(c.call(2*round+1, watchMethod), c.WriteData(2*round+1, false, []byte{0, 0xff, 0xff, 0xff, 0xff, 1}))
	},
	"compressed nonsense": func(c *rawClient, round uint32) error {
		return errors.Join(c.call(2*round+1, watchMethod), c.WriteData(2*round+1, false, []byte{1, 0, 0, 0, 1, 1}))
	},
	"windows": func(c *rawClient, round uint32) error { return c.WriteWindowUpdate(0, 1<<31-1) },
	"farewells": func(c *rawClient, round uint32) error {
		return c.WriteGoAway(round, http2.ErrCodeEnhanceYourCalm, bytes.Repeat([]byte("x"), 10_000))
	},
	"unknown frames": func(c *rawClient, round uint32) error {
		return c.WriteRawFrame(0xbe, 0xff, round, make([]byte, 16<<10))
	},
	"oversize frames": func(c *rawClient, round uint32) error {
		return c.WriteRawFrame(http2.FrameData, 0, 1, make([]byte, 1<<20))
	},
	"priorities": func(c *rawClient, round uint32) error {
		return c.WritePriority(2*round+1, http2.PriorityParam{StreamDep: 2*round + 3})
	},
}

// TestEndlessRequestsTakeLittleMemory: anything that a client repeats without end takes little memory, and a well-behaved client gets its
// updates during that time.
func TestEndlessRequestsTakeLittleMemory(t *testing.T) {
	w := newWorld(t, nil)
	w.sink.Update(services(50, 5), nil)
	w.sink.Complete()
	socket := filepath.Join(t.TempDir(), "s")
	serveAt(t, w, socket)
	ctx := t.Context()
	polite := watch(t, ctx, localnetv1.NewEndpointsClient(onSocketAt(t, socket)), subscribe)
	polite.expectLong()
	updates, duration := 0, 400*time.Millisecond
	if testing.Short() {
		duration = 50 * time.Millisecond
	}
	for name, attack := range rudeness {
		before, goroutines := heap(), runtime.NumGoroutine()
		stop := time.Now().Add(duration)
		var all sync.WaitGroup
		rounds := make([]uint32, 4)
		for i := range rounds {
			c := rawDial(t, socket)
			all.Go(func() {
				_ = c.SetDeadline(stop)
				for attack(c, rounds[i]) == nil {
					rounds[i]++
				}
			})
		}
		for n := 0; n == 0 || time.Now().Before(stop); n++ {
			polite.ready()
			w.sink.Update(service("new", 1000+updates%2, 1), nil)
			polite.expectLong()
			updates++
		}
		grown, more := heap()-before, runtime.NumGoroutine()-goroutines
		all.Wait()
		t.Logf("%s: %v rounds; %d KiB, %d goroutines", name, rounds, grown>>10, more)
		// Each connection may have 32 calls under way, with two goroutines each, and more that are about to end.
		if grown > 8<<20 || more > 4*200 {
			t.Errorf("%s: 4 rude clients cost %d bytes and %d goroutines", name, grown, more)
		}
	}
}

// TestHTTP1: who speaks another protocol is sent away.
func TestHTTP1(t *testing.T) {
	for _, text := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"POST " + watchMethod + " HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: 1000000000\r\n\r\n",
		"PRI * HTTP/1.1\r\n\r\nSM\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", // TLS, where there is none
	} {
		bubble(t, nil, func(t *testing.T, w *world) {
			w.sink.Complete()
			conn, err := w.listener.DialContext(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			start := time.Now()
			_, _ = io.WriteString(conn, text)
			answer, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
			if took := time.Since(start); took > 15*time.Second || len(answer) > 1000 {
				t.Errorf("%.20q: closed after %v and %d bytes", text, took, len(answer))
			}
			watch(t, t.Context(), w.client(), subscribe).expect("1 full node")
		})
	}
}

// TestSlowHandshake: who sends a byte of the handshake now and then is not waited for.
func TestSlowHandshake(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		conn, err := w.listener.DialContext(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		for _, b := range []byte(http2.ClientPreface) {
			if _, err := conn.Write([]byte{b}); err != nil {
				break
			}
			time.Sleep(5 * time.Second)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("it was borne with for %v", took)
		}
		synctest.Wait()
		if n := w.server.Clients(); n != 0 {
			t.Errorf("%d clients are counted", n)
		}
	})
}

// TestOversizeRequests are refused by their length alone, with the limit, and cost the client that sent them the stream only.
func TestOversizeRequests(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		client := w.client()
		for name, request := range map[string]*localnetv1.WatchRequest{
			"name": {Subscribe: &localnetv1.Subscribe{Client: strings.Repeat("x", 200<<10)}},
			"node": {Subscribe: &localnetv1.Subscribe{Node: strings.Repeat("x", 200<<10)}},
			"status": {Subscribe: &localnetv1.Subscribe{}, Status: &localnetv1.Status{
				Failed: []*localnetv1.ServiceError{{Message: strings.Repeat("x", 200<<10)}},
			}},
		} {
			stream, err := client.Watch(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			_ = stream.Send(request)
			if _, err := stream.Recv(); status.Code(err) != codes.ResourceExhausted || !strings.Contains(err.Error(), "131072") {
				t.Errorf("%s: %v", name, err)
			}
		}
		watch(t, t.Context(), client, subscribe).expect("1 full node")
	})
}
