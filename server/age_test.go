package server_test

import (
	"context"
	"crypto/x509/pkix"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/client"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/server"
)

// counted counts the connections that come to a gate.
type counted struct {
	*gate
	mu   sync.Mutex
	came []time.Time
}

func (c *counted) dialOption(from string) grpc.DialOption {
	dial := c.dialer(from)
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		c.mu.Lock()
		c.came = append(c.came, time.Now())
		c.mu.Unlock()
		return dial(ctx, address)
	})
}

// TestConnectionsAge: clients of the library go on on another connection, with nothing missing, sent again or logged.
func TestConnectionsAge(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxAge = 10 * time.Minute }, func(t *testing.T, w *world) {
		w.sink.Update(services(10, 1), nil)
		w.sink.Complete()
		g := &counted{gate: openGate(t, w)}
		const clients = 20
		var updates [clients]chan *client.Update
		files := certificateFiles(t, t.TempDir(), g.ca, 10*time.Hour, pkix.Name{Organization: []string{"switchyard:relays"}})
		for i := range updates {
			updates[i] = follower(t, g.gate, files, func(err error) { t.Error(err) }, g.dialOption("192.0.2.1"))
			if u := <-updates[i]; !u.Full {
				t.Fatalf("first came %+v", u)
			}
		}
		begun := time.Now()
		for n := range 59 * 4 {
			w.sink.Update(service("new", 100+n%1000, 1), nil)
			for _, c := range updates {
				if u := <-c; u.Full || len(u.Changed) != 1 {
					t.Fatalf("after %v came %+v", time.Since(begun), u)
				}
			}
			time.Sleep(15 * time.Second)
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		seconds := make(map[time.Duration]int)
		for _, at := range g.came {
			seconds[at.Sub(begun).Truncate(time.Second)]++
		}
		delete(seconds, 0) // when all came together
		// In 59 minutes, each connects five or six times again.
		if n := len(g.came); n < 6*clients || n > 8*clients {
			t.Errorf("%d connections came of %d clients", n, clients)
		}
		for at, n := range seconds {
			if n > clients/3 {
				t.Errorf("after %v, %d of %d clients came at once", at, n, clients)
			}
		}
	})
}

// TestOtherClientsAge: calls of clients that do not support aging also end with OK, and connections that clients do not
// leave are closed.
func TestOtherClientsAge(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxAge = 10 * time.Minute }, func(t *testing.T, w *world) {
		w.sink.Update(services(2000, 5), nil)
		w.sink.Complete()
		g := openGate(t, w)
		node := localnetv1.NewEndpointsClient(g.client("192.0.2.1", "relay", "switchyard:relays"))
		first, _, err := next(t, t.Context(), node, &localnetv1.NextFilter{})
		if err != nil {
			t.Fatal(err)
		}
		begun := time.Now()
		long, err := node.Next(t.Context(), first)
		if err != nil {
			t.Fatal(err)
		}
		item, err := long.Recv()
		if took := time.Since(begun); err != io.EOF || took < 8*time.Minute || took > 10*time.Minute {
			t.Errorf("a long poll ended with %v, %v after %v", item, err, took)
		}
		// One that goes on on the old connection is not sent away again and again.
		ctx := t.Context()
		begun = time.Now()
		long, err = node.Next(ctx, first)
		if err != nil {
			t.Fatal(err)
		}
		if _, err = long.Recv(); status.Code(err) != codes.Unavailable || time.Since(begun) < 5*time.Minute || time.Since(begun) > 10*time.Minute {
			t.Errorf("the next ended with %v after %v", err, time.Since(begun))
		}

		deaf, err := localnetv1.NewEndpointsClient(g.client("192.0.2.2", "relay", "switchyard:relays")).Next(t.Context(), &localnetv1.NextFilter{})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := deaf.Recv(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(18 * time.Minute)
		synctest.Wait()
		if n := w.server.Clients(); n > 0 {
			t.Errorf("%d connections are open", n)
		}
	})
}

// TestConnectionsWithoutAgeLimit: plain connections last, and so do connections of a server without an age limit.
func TestConnectionsWithoutAgeLimit(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxAge = -1 }, func(t *testing.T, w *world) {
		w.sink.Complete()
		g := openGate(t, w)
		s := watch(t, t.Context(), localnetv1.NewEndpointsClient(g.client("192.0.2.1", "relay", "switchyard:relays")), subscribe)
		s.expect("1 full node")
		time.Sleep(50 * time.Minute)
		if !s.open() {
			t.Error("the stream has ended")
		}
	})
	bubble(t, func(o *server.Options) { o.MaxAge = time.Minute }, func(t *testing.T, w *world) {
		w.sink.Complete()
		s := watch(t, t.Context(), w.client(), subscribe)
		s.expect("1 full node")
		time.Sleep(50 * time.Hour)
		if !s.open() {
			t.Error("a plain stream has ended")
		}
	})
}
