package server

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"runtime"
	"sync"

	"google.golang.org/grpc/credentials"
)

// After a restart thousands of clients start handshakes at once. If all ran concurrently, each would take as long as
// all together. Clients would time out, reconnect, and never succeed. So the server computes as many handshakes at a
// time as it has processors, the newest first. Under overload, the handshakes that fail are the oldest ones, whose
// clients are about to give up.

var errHandshakes = errors.New("the server was busy with other clients' handshakes for too long")

// turns limits the concurrent handshakes.
type turns struct {
	mu      sync.Mutex // guards all below
	free    int
	waiting list.List // chan struct{}, closed when it is its turn; the newest last
}

// take waits for a turn.
func (t *turns) take(ctx context.Context) error {
	t.mu.Lock()
	if t.free > 0 {
		t.free--
		t.mu.Unlock()
		return nil
	}
	turn := make(chan struct{})
	place := t.waiting.PushBack(turn)
	t.mu.Unlock()
	select {
	case <-turn:
		return nil
	case <-ctx.Done():
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case <-turn: // in the last moment
		return nil
	default:
		t.waiting.Remove(place)
		return errHandshakes
	}
}

// leave ends a turn.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	newest := t.waiting.Back()
	if newest == nil {
		t.free++
		return
	}
	close(t.waiting.Remove(newest).(chan struct{}))
}

// handshakes are the handshakes of one listener.
type handshakes struct {
	credentials.TransportCredentials
	turns turns
}

// newHandshakes makes handshakes by TLS. current returns the configuration of the next one.
func newHandshakes(current func() *tls.Config) *handshakes {
	config := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}}
	config.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		h := hello.Conn.(*handshake)
		if err := h.begin(hello.Context()); err != nil {
			return nil, err
		}
		h.config = current()
		return h.config, nil
	}
	return &handshakes{TransportCredentials: credentials.NewTLS(config), turns: turns{free: runtime.GOMAXPROCS(0)}}
}

// shake performs the handshake with a client. It also returns the configuration that it used.
func (h *handshakes) shake(raw net.Conn) (net.Conn, credentials.AuthInfo, *tls.Config, error) {
	one := &handshake{Conn: raw, turns: &h.turns}
	defer one.end()
	conn, info, err := h.ServerHandshake(one)
	return conn, info, one.config, err
}

// handshake is a connection with its turn. The turn lasts from the client's first message until the server waits for
// the client, so that no client can prolong it.
type handshake struct {
	net.Conn
	turns  *turns
	turn   bool
	config *tls.Config
}

func (h *handshake) begin(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err := h.turns.take(ctx)
	h.turn = err == nil
	return err
}

func (h *handshake) end() {
	if h.turn {
		h.turn = false
		h.turns.leave()
	}
}

// Read implements [net.Conn].
func (h *handshake) Read(b []byte) (int, error) {
	h.end()
	return h.Conn.Read(b)
}
