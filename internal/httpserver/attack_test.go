package httpserver

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/connlimit"
)

// street is a listener to which connections come from any address.
type street struct {
	arrive chan net.Conn
	once   sync.Once
	closed chan struct{}
}

func (s *street) Accept() (net.Conn, error) {
	select {
	case c := <-s.arrive:
		return c, nil
	case <-s.closed:
		return nil, net.ErrClosed
	}
}

func (s *street) Close() error {
	s.once.Do(func() { close(s.closed) })
	return nil
}

func (s *street) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(192, 0, 2, 255), Port: 80} }

// connFrom is a connection from an address to 192.0.2.255.
type connFrom struct {
	net.Conn
	remote net.Addr
}

func (c connFrom) LocalAddr() net.Addr  { return (*street)(nil).Addr() }
func (c connFrom) RemoteAddr() net.Addr { return c.remote }

// attacked is a server in a bubble.
type attacked struct {
	*testing.T
	street *street
	open   atomic.Int64
}

const (
	maxAll, maxEach, maxOwn = 32, 8, 4
	friend, thisMachine     = "198.51.100.1", "127.0.0.1"
)

// takeTime is what a handler does that waits, unless the client goes.
func takeTime(r *http.Request, d time.Duration) {
	select {
	case <-time.After(d):
	case <-r.Context().Done():
		panic(http.ErrAbortHandler)
	}
}

// stream is a handler whose answer goes on.
func stream(w http.ResponseWriter, r *http.Request) {
	connection := http.NewResponseController(w)
	_ = connection.SetReadDeadline(time.Time{})
	for r.Context().Err() == nil {
		_ = connection.SetWriteDeadline(time.Now().Add(writeTimeout))
		_, _ = io.WriteString(w, "still here\n")
		_ = connection.Flush()
		takeTime(r, time.Second)
	}
}

// attack runs a server of answers that are large or take time, and of everything else, in a bubble.
func attack(t *testing.T, story func(t *testing.T, a *attacked)) {
	synctest.Test(t, func(t *testing.T) {
		a := &attacked{T: t, street: &street{arrive: make(chan net.Conn), closed: make(chan struct{})}}
		o := Options{Logger: quiet, Connections: connlimit.New(connlimit.Options{
			Max: maxAll, PerClient: maxEach, ThisMachine: maxOwn, Replace: true, Open: &a.open, Logger: quiet,
		})}
		h := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			switch r.URL.Path {
			case "/large":
				_, _ = w.Write(bytes.Repeat([]byte("."), 1<<20))
				return
			case "/slow":
				takeTime(r, writeTimeout-time.Second)
			case "/stream":
				stream(w, r)
				return
			case "/profile":
				_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute + writeTimeout))
				takeTime(r, time.Minute)
			}
			_, _ = io.WriteString(w, "ok")
		})
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() { served <- Serve(ctx, a.street, h, o) }()
		defer func() {
			cancel()
			if err := <-served; err != nil {
				t.Error(err)
			}
		}()
		story(t, a)
	})
}

// come opens a connection, and writes on it.
func (a *attacked) come(from, text string) net.Conn {
	a.Helper()
	here, there := net.Pipe()
	a.Cleanup(func() { _ = here.Close() })
	addr := netip.AddrPortFrom(netip.MustParseAddr(from), 1)
	a.street.arrive <- connFrom{there, net.TCPAddrFromAddrPort(addr)}
	_ = here.SetWriteDeadline(time.Now().Add(time.Millisecond)) // it may be closed at once
	_, _ = io.WriteString(here, text)
	_ = here.SetWriteDeadline(time.Time{})
	synctest.Wait()
	return here
}

const request = "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n"

// ask reads the answer to a request on a connection.
func ask(c net.Conn) error {
	_ = c.SetReadDeadline(time.Now().Add(time.Millisecond))
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if text, err := io.ReadAll(resp.Body); err != nil || string(text) != "ok" {
		return fmt.Errorf("%s: %q, %w", resp.Status, text, err)
	}
	return nil
}

// othersAreServed asks from elsewhere, and from this machine.
func (a *attacked) othersAreServed(when string) {
	a.Helper()
	for _, from := range []string{friend, thisMachine} {
		c := a.come(from, request)
		if err := ask(c); err != nil {
			a.Errorf("%s: %s is not answered: %v", when, from, err)
		}
		_ = c.Close()
	}
	synctest.Wait()
}

func (a *attacked) expectOpen(when string, n int64) {
	a.Helper()
	synctest.Wait()
	if got := a.open.Load(); got != n {
		a.Errorf("%s: %d connections are open, want %d", when, got, n)
	}
}

// crowds are the attackers, by name.
var crowds = map[string]struct {
	address func(i int) string
	open    int64 // how many of their connections stay open, at most
}{
	"one client":   {func(int) string { return "192.0.2.1" }, maxEach},
	"one /64":      {func(i int) string { return fmt.Sprintf("2001:db8::%x:%x", i, i) }, maxEach},
	"many clients": {func(i int) string { return fmt.Sprintf("2001:db8:1:%x::1", i) }, maxAll},
	"this machine": {func(int) string { return "127.0.0.1" }, maxOwn},
	"few clients":  {func(i int) string { return fmt.Sprintf("192.0.2.%d", i%10) }, maxAll},
}

// TestFloods: whatever an attacker's connections do and wherever they come from, others are answered at once, and no connection stays for long.
func TestFloods(t *testing.T) {
	for name, e := range map[string]struct {
		text string
		gone time.Duration // when the last one is closed
	}{
		"silent connections":        {"", headerTimeout},
		"unfinished headers":        {"GET /livez HTTP/1.1\r\nHost: x\r\nX: ", headerTimeout},
		"idle after a request":      {request, idleTimeout},
		"unfinished bodies":         {"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n", writeTimeout}, // nobody reads the answer
		"answers that nobody reads": {"GET /large HTTP/1.1\r\nHost: x\r\n\r\n", writeTimeout},
	} {
		for who, crowd := range crowds {
			t.Run(name+"/"+who, func(t *testing.T) {
				attack(t, func(t *testing.T, a *attacked) {
					for i := range 300 {
						c := a.come(crowd.address(i), e.text)
						if e.text == request {
							_ = ask(c)
						}
						if i%50 == 49 {
							a.othersAreServed(fmt.Sprintf("after %d connections", i+1))
						}
					}
					if got := a.open.Load(); got > crowd.open {
						t.Errorf("%d connections are open, want %d at most", got, crowd.open)
					}
					time.Sleep(e.gone + time.Second)
					a.expectOpen("after the time-out", 0)
				})
			})
		}
	}
}

// TestTrickle: a byte every second is no progress.
func TestTrickle(t *testing.T) {
	attack(t, func(t *testing.T, a *attacked) {
		c := a.come("192.0.2.1", "GET /livez HTTP/1.1\r\nX: ")
		for range int(headerTimeout / time.Second) {
			time.Sleep(time.Second)
			_ = c.SetWriteDeadline(time.Now().Add(time.Millisecond))
			_, _ = io.WriteString(c, ".")
		}
		a.expectOpen("after the time-out", 0)
	})
}

// TestKeptConnection: a load balancer that sends a request from time to time keeps its connection, although clients
// connect from any number of addresses. It also keeps the connection after almost the longest idle time.
func TestKeptConnection(t *testing.T) {
	attack(t, func(t *testing.T, a *attacked) {
		kept := a.come(friend, request)
		for i := range 100 {
			if err := ask(kept); err != nil {
				t.Fatalf("request %d: %v", i, err)
			}
			for j := range 20 {
				a.come(fmt.Sprintf("2001:db8:%x:%x::1", i, j), "GET")
			}
			time.Sleep(time.Second)
			if _, err := io.WriteString(kept, request); err != nil {
				t.Fatalf("request %d: %v", i+1, err)
			}
		}
		if err := ask(kept); err != nil {
			t.Fatal(err)
		}
		time.Sleep(idleTimeout - time.Second)
		if _, err := io.WriteString(kept, request); err != nil {
			t.Fatalf("after a pause: %v", err)
		}
		if err := ask(kept); err != nil {
			t.Fatalf("after a pause: %v", err)
		}
	})
}

// TestLongAnswers: an answer may take longer than its request was allowed to, and one that prolongs its time, as profiles do, longer
// than others.
func TestLongAnswers(t *testing.T) {
	attack(t, func(t *testing.T, a *attacked) {
		for _, path := range []string{"/slow", "/profile"} {
			c := a.come(friend, "GET "+path+" HTTP/1.1\r\nHost: x\r\n\r\n")
			_ = c.SetReadDeadline(time.Now().Add(2 * time.Minute))
			if text, err := io.ReadAll(io.LimitReader(c, 15)); err != nil || string(text) != "HTTP/1.1 200 OK" {
				t.Errorf("%s is answered by %q, %v", path, text, err)
			}
			_ = c.Close()
		}
	})
}

// TestStream: a connection whose answer goes on is not idle. Where there is no room, connections that are go first, also those that came later.
func TestStream(t *testing.T) {
	attack(t, func(t *testing.T, a *attacked) {
		ended := make(chan error, 1)
		c := a.come(thisMachine, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n")
		go func() {
			_, err := io.Copy(io.Discard, c)
			ended <- err
		}()
		for range 3 {
			time.Sleep(5 * time.Second)
			for range maxOwn - 1 {
				if err := ask(a.come(thisMachine, request)); err != nil {
					t.Error(err)
				}
			}
		}
		select {
		case err := <-ended:
			t.Errorf("the stream has made room for others: %v", err)
		default:
		}
		_ = c.Close()
	})
}

// TestLargeHeader is refused before all of it is read.
func TestLargeHeader(t *testing.T) {
	attack(t, func(t *testing.T, a *attacked) {
		c := a.come("192.0.2.1", "")
		go func() { _, _ = io.WriteString(c, "GET / HTTP/1.1\r\nX: "+strings.Repeat(".", 1<<20)) }()
		_ = c.SetReadDeadline(time.Now().Add(time.Second))
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil || resp.StatusCode != http.StatusRequestHeaderFieldsTooLarge {
			t.Errorf("got %v, %v", resp, err)
		}
	})
}

// exhausted is a listener in a process that has no file descriptors left.
type exhausted struct {
	street
	asked atomic.Int64
	left  atomic.Bool // there are some again
}

func (e *exhausted) Accept() (net.Conn, error) {
	e.asked.Add(1)
	if e.left.Load() {
		return e.street.Accept()
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: syscall.EMFILE}
}

// TestNoDescriptorsLeft: that is waited for with pauses, and ends nothing.
func TestNoDescriptorsLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := options("health", "", slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})))
		e := &exhausted{street: street{arrive: make(chan net.Conn), closed: make(chan struct{})}}
		ctx, cancel := context.WithCancel(t.Context())
		served := make(chan error, 1)
		go func() {
			served <- Serve(ctx, e, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") }), o)
		}()
		time.Sleep(time.Minute)
		if n := e.asked.Load(); n < 10 || n > 100 {
			t.Errorf("there were %d attempts in a minute", n)
		}
		e.left.Store(true)
		a := &attacked{T: t, street: &e.street}
		time.Sleep(2 * time.Second)
		if err := ask(a.come(friend, request)); err != nil {
			t.Errorf("when there are descriptors again: %v", err)
		}
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		for line := range strings.Lines(log.String()) {
			if !strings.Contains(line, `level=DEBUG msg="HTTP connection failed" error="http: Accept error: accept tcp: too many open files`) {
				t.Errorf("unexpected: %s", line)
			}
		}
	})
}
