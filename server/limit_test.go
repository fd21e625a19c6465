package server_test

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/switchyard-net/switchyard/server"
)

// strangers is a listener to which silent connections come from any address.
type strangers struct {
	arrive chan net.Conn
	once   sync.Once
	closed chan struct{}
}

type connFrom struct {
	net.Conn
	remote net.Addr
}

func (c connFrom) RemoteAddr() net.Addr { return c.remote }

func (c *strangers) Accept() (net.Conn, error) {
	select {
	case conn := <-c.arrive:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

func (c *strangers) Close() error {
	c.once.Do(func() { close(c.closed) })
	return nil
}

func (c *strangers) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

// come lets n connections come from an address, and returns how many of them are not closed.
func (c *strangers) come(t *testing.T, n int, from string) (open int) {
	t.Helper()
	closed := make(chan struct{}, n)
	for range n {
		here, there := net.Pipe()
		t.Cleanup(func() { _ = here.Close() })
		go func() {
			_, _ = io.Copy(io.Discard, here)
			closed <- struct{}{}
		}()
		c.arrive <- connFrom{there, &net.TCPAddr{IP: net.ParseIP(from), Port: 1}}
	}
	synctest.Wait()
	return n - len(closed)
}

// TestSilentStrangers: a client that can reach a listener takes no place from clients elsewhere, at other listeners, and for long.
func TestSilentStrangers(t *testing.T) {
	bubble(t, func(o *server.Options) { o.MaxClients = 400 }, func(t *testing.T, w *world) {
		c := &strangers{arrive: make(chan net.Conn), closed: make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.server.Serve(ctx, c, nil) }()
		for _, e := range []struct {
			from    string
			n, open int
		}{
			{"192.0.2.1", 150, 100},
			{"::ffff:192.0.2.1", 10, 0}, // the same
			{"2001:db8::1", 150, 100},
			{"2001:db8::ffff:1", 10, 0}, // the same /64
			{"127.0.0.1", 190, 190},     // no share
			{"192.0.2.2", 50, 10},       // what is left
			{"127.0.0.1", 10, 0},
		} {
			if open := c.come(t, e.n, e.from); open != e.open {
				t.Errorf("of %d from %s, %d are open; want %d", e.n, e.from, open, e.open)
			}
		}
		w.sink.Complete()
		watch(t, t.Context(), w.client(), subscribe).expect("1 full node") // at the other listener
		if n := w.server.Clients(); n != 401 {
			t.Errorf("%d clients are counted, want 401", n)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if n := w.server.Clients(); n != 1 {
			t.Errorf("%d clients are counted after a while, want 1", n)
		}
		if open := c.come(t, 100, "192.0.2.1"); open != 100 {
			t.Errorf("of 100 from where there are no more, %d are open", open)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// TestListenerFails: Serve reports it, also while there is no state yet.
func TestListenerFails(t *testing.T) {
	for name, change := range map[string]func(*server.Options){
		"feed without a state": nil,
		"not ready":            func(o *server.Options) { o.Ready = make(chan struct{}) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, change, func(t *testing.T, w *world) {
				l := bufconn.Listen(1)
				ended := make(chan error, 1)
				go func() { ended <- w.server.Serve(t.Context(), l, nil) }()
				synctest.Wait()
				_ = l.Close()
				select {
				case err := <-ended:
					if err == nil || errors.Is(err, context.Canceled) {
						t.Errorf("Serve ended with %v", err)
					}
				case <-time.After(time.Minute):
					t.Error("Serve goes on without a listener")
				}
			})
		})
	}
}
