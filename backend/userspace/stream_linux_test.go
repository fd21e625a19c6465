package userspace

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// TestEndpointSpeaksFirst: what an endpoint says as soon as it has accepted reaches the client, also if the loop gets to know of both at once.
func TestEndpointSpeaksFirst(t *testing.T) {
	k := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	server, err := openSocket(k)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(server)
	if err := unix.Bind(server, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(server, 0); err != nil { // there is room for one
		t.Fatal(err)
	}
	endpoint, err := boundTo(server)
	if err != nil {
		t.Fatal(err)
	}
	dial := func(to netip.AddrPort) net.Conn {
		t.Helper()
		c, err := net.DialTimeout("tcp4", to.String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}

	accept := func() (fd int) {
		t.Helper()
		await.Until(t, "a connection", func() bool {
			fd, _, err = unix.Accept4(server, unix.SOCK_CLOEXEC)
			return err == nil
		})
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}

	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	r, at := listening(t, frontend)
	route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: endpoint}}}
	r.set(&state.Update{Changed: []*state.Service{{
		Name: state.ServiceName{Namespace: "ns", Name: "web"},
		Ports: []state.Port{{
			Family: k.Family, Protocol: k.Protocol, Internal: state.Traffic{Inside: route, Outside: route},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
		}},
	}}})
	r.start()
	r.listen()

	dial(endpoint) // so that the server has no room for the relay's connection, which is tried again after a second
	client := dial(at)
	await.Until(t, "the relay waits for the endpoint", func() bool {
		n := 0
		for _, l := range r.polls {
			n += len(l.all())
		}
		return n > 0
	})
	r.halt()
	accept()
	if _, err := unix.Write(accept(), []byte("x")); err != nil {
		t.Fatal(err)
	}
	r.poll()
	_ = client.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := client.Read(make([]byte, 1)); err != nil {
		t.Errorf("what the endpoint has said does not come: %v", err)
	}
}

// listening returns a relay that listens for a frontend on the address that it returns, too. It ends with the test.
func listening(t *testing.T, frontend netip.AddrPort) (*relay, netip.AddrPort) {
	t.Helper()
	k := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	fd, at, err := bindTo(k, netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Options{DialTimeout: time.Hour, Listen: []Listen{{Protocol: state.TCP, At: at, Frontend: frontend}}}.withDefaults()
	if err != nil {
		t.Fatal(err)
	}
	r, err := newRelay(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.close)
	if err := r.addStreams(k, plan.Inside, at, frontend, fd); err != nil {
		t.Fatal(err)
	}
	return r, at
}

// TestListenerFails: a listener that nothing can be accepted from neither keeps the others from being served nor delays them, and is not asked again and
// again.
func TestListenerFails(t *testing.T) {
	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	r, at := listening(t, frontend)
	var log atomic.Int32
	r.log = slog.New(countingHandler{slog.DiscardHandler, &log})
	k := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	broken, err := openSocket(k) // it does not listen, so that it has an event at once and accept4 fails
	if err != nil {
		t.Fatal(err)
	}
	if err := r.addStreams(k, plan.Inside, netip.MustParseAddrPort("127.0.0.1:1"), frontend, broken); err != nil {
		t.Fatal(err)
	}
	r.start()
	r.listen()
	for range 100 { // there is no Service: all are reset
		c, err := net.DialTimeout("tcp4", at.String(), time.Minute)
		if errors.Is(err, unix.ECONNRESET) { // at once
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
			t.Fatalf("a connection beside a listener that fails: %v, want a reset", err)
		}
		c.Close()
		r.mu.Lock()
		served := r.streams[0].accepting
		r.mu.Unlock()
		if !served {
			t.Fatal("no connections are accepted from a listener beside one that fails")
		}
	}
	if n := log.Load(); n != 1 {
		t.Errorf("%d lines about a listener that fails, want 1", n)
	}
}

// countingHandler counts lines.
type countingHandler struct {
	slog.Handler
	lines *atomic.Int32
}

func (h countingHandler) Enabled(context.Context, slog.Level) bool { return true }
func (h countingHandler) Handle(context.Context, slog.Record) error {
	h.lines.Add(1)
	return nil
}

// TestBusyLoopAccepts: a loop that has much data to move accepts all connections that wait when it comes to them. It is not back for long.
func TestBusyLoopAccepts(t *testing.T) {
	r, at := listening(t, netip.MustParseAddrPort("10.96.0.1:80"))
	r.halt()
	l := r.polls[0]
	turn := func() {
		_ = l.poll.control(func(poll int) error {
			return l.wake.control(func(wake int) error {
				l.turn(poll, wake)
				return nil
			})
		})
	}
	r.start()
	r.listen()
	const waiting = 16
	for range 1 + waiting {
		c, err := net.DialTimeout("tcp4", at.String(), time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	turn()
	if n := r.begun.Load(); n != 1 {
		t.Errorf("a loop with nothing else to do has accepted %d connections in a turn, want 1: others are for other loops", n)
	}
	busy := &conn{relay: r, loop: l, unfinished: true} // from where there is always more, to where there is always room
	busy.from[1].ended = true
	for i, path := range []string{"/dev/zero", "/dev/null"} {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		busy.ends[i].fd = fd
	}
	l.unfinished = append(l.unfinished, busy)
	defer func() { l.unfinished = nil }()
	turn()
	if n := r.begun.Load(); n != 1+waiting {
		t.Errorf("a busy loop has accepted %d of %d connections that wait", n-1, waiting)
	}
	if !busy.unfinished {
		t.Error("the connection that keeps the loop busy has no more data")
	}
}

// TestProcessors: what loops keep of the runtime's processors is there in addition, and taken back. It is not parallel, so that nobody else adds any.
func TestProcessors(t *testing.T) {
	before := runtime.GOMAXPROCS(0)
	t.Run("relay", func(t *testing.T) {
		r, _ := listening(t, netip.MustParseAddrPort("10.96.0.1:80"))
		if n := len(r.polls); n != before {
			t.Errorf("%d loops for %d processors", n, before)
		}
		if n := runtime.GOMAXPROCS(0); n != 2*before {
			t.Errorf("%d processors beside as many loops as the %d from before", n, before)
		}
	})
	if n := runtime.GOMAXPROCS(0); n != before {
		t.Errorf("%d processors in the end, %d before", n, before)
	}
}
