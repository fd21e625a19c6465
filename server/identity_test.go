package server_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
)

// gate is a listener in memory that is served with TLS and to which connections come from any address.
type gate struct {
	*strangers
	t     *testing.T
	ca    *authority
	files *server.TLS
	stop  func()
}

// openGate serves w at a new gate.
func openGate(t *testing.T, w *world) *gate {
	t.Helper()
	g := &gate{strangers: &strangers{arrive: make(chan net.Conn), closed: make(chan struct{})}, t: t, ca: newAuthority(t)}
	g.files = g.ca.files(t.TempDir(), g.ca)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.server.Serve(ctx, g, g.files) }()
	g.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(g.stop)
	return g
}

// dialer connects from an address.
func (g *gate) dialer(from string) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, _ string) (net.Conn, error) {
		l := bufconn.Listen(64 << 10)
		go func() {
			if there, err := l.Accept(); err == nil {
				g.arrive <- connFrom{there, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}
			}
		}()
		return l.DialContext(ctx)
	}
}

// client connects from an address with a certificate.
func (g *gate) client(from, name, organisation string) *grpc.ClientConn {
	g.t.Helper()
	c := g.ca.client(name, organisation, g.ca)
	c.ServerName = "127.0.0.1"
	conn, err := grpc.NewClient("passthrough:///server", grpc.WithContextDialer(g.dialer(from)), grpc.WithTransportCredentials(credentials.NewTLS(c)),
		grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(64<<10)) // so that clients that do not read are sent little
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(func() { _ = conn.Close() })
	return conn
}

func (g *gate) node(from string) *grpc.ClientConn {
	return g.client(from, "system:node:"+nodeName, "system:nodes")
}

// TestNodesConnectDuringAFlood: an endless flood of silent connections from many addresses takes only its own room. A
// node that connects during the flood is served.
func TestNodesConnectDuringAFlood(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxClients = 400 }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		for i := range 20 { // more than there may be clients
			g.come(t, 50, fmt.Sprintf("2001:db8:0:%x::1", i))
		}
		if n := w.server.Clients(); n > 100 {
			t.Errorf("%d silent connections are open, want 100 at most", n)
		}
		for range 5 {
			var flood sync.WaitGroup
			flood.Go(func() {
				for i := range 1000 {
					_, there := net.Pipe()
					g.arrive <- connFrom{there, &net.TCPAddr{IP: net.ParseIP(fmt.Sprintf("2001:db8:0:%x::2", i%20)), Port: 1}}
				}
			})
			node := g.node("192.0.2.1")
			watch(t, soon(t), localnetv1.NewEndpointsClient(node), subscribe).expect("1 full node")
			_ = node.Close()
			flood.Wait()
		}
	})
}

// TestStrangersAreAnswered: who has a certificate that permits nothing reads why, is closed soon, and takes no client's place.
func TestStrangersAreAnswered(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxClients = 1 }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		for i := range 3 {
			stranger := localnetv1.NewEndpointsClient(g.client(fmt.Sprintf("192.0.2.%d", i), "stranger", "system:masters"))
			if _, _, err := next(t, soon(t), stranger, &localnetv1.NextFilter{}); status.Code(err) != codes.PermissionDenied {
				t.Errorf("a stranger got %v", err)
			}
		}
		first := localnetv1.NewEndpointsClient(g.node("192.0.2.9"))
		watch(t, t.Context(), first, subscribe).expect("1 full node")
		if _, _, err := next(t, soon(t), localnetv1.NewEndpointsClient(g.node("192.0.2.8")), &localnetv1.NextFilter{}); status.Code(err) != codes.ResourceExhausted {
			t.Errorf("a client too many got %v", err)
		}
		if n := w.server.Clients(); n != 5 {
			t.Errorf("%d connections are open, want 5", n)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if n := w.server.Clients(); n != 1 {
			t.Errorf("%d connections are open after a while, want 1", n)
		}
		if _, _, err := next(t, soon(t), first, &localnetv1.NextFilter{}); err != nil {
			t.Errorf("the first client got %v", err)
		}
	})
}

// TestNamesThatNoNodeHas: names that no node can have are no node's.
func TestNamesThatNoNodeHas(t *testing.T) {
	bubble(t, nil, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		long := localnetv1.NewEndpointsClient(g.client("192.0.2.1", "system:node:"+strings.Repeat("n", 10_000), "system:nodes"))
		_, _, err := next(t, soon(t), long, &localnetv1.NextFilter{})
		if status.Code(err) != codes.PermissionDenied || len(err.Error()) > 1000 {
			t.Errorf("got %v of %d bytes", status.Code(err), len(fmt.Sprint(err)))
		}
	})
}
