//go:build linux

package bench

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// servedAPI is a server on loopback.
type servedAPI struct {
	target string
	close  func()
}

// serveAPI serves, and counts what goes over its connections.
func serveAPI(ctx context.Context, o server.Options, count *traffic) (*servedAPI, error) {
	s, err := server.New(o)
	if err != nil {
		return nil, err
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	l := &countedListener{tcp, count}
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = s.Serve(ctx, l, nil) // it fails only if l does, which its clients notice
	}()
	return &servedAPI{"tcp://" + l.Addr().String(), func() {
		cancel()
		<-done
	}}, nil
}

// serveStore serves the states of a node.
func serveStore(ctx context.Context, s *store.Store, count *traffic) (*servedAPI, error) {
	return serveAPI(ctx, server.Options{Feed: func(string) (state.Feed, error) { return s, nil }, Node: NodeName}, count)
}

// changeOfOne returns an error unless an update is the change of one service.
func changeOfOne(u *client.Update) error {
	if u == nil || u.Full || len(u.Changed) != 1 {
		return errors.New("an update is not the change of one service")
	}
	return nil
}

// watched is a client that follows a node.
type watched struct {
	updates <-chan *client.Update // closed at the end
	at      time.Time             // when the last one came, written before it is sent
	close   func()
}

func watchAPI(ctx context.Context, o client.Options) (*watched, error) {
	watcher, err := client.NewWatcher(o)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	updates := make(chan *client.Update)
	w := &watched{updates: updates, close: func() {
		cancel()
		for range updates {
		}
	}}
	go func() {
		defer close(updates)
		for u := range watcher.Updates(ctx) {
			w.at = time.Now()
			select {
			case updates <- u:
			case <-ctx.Done():
			}
		}
	}()
	return w, nil
}

// traffic counts the bytes on connections, in both directions.
type traffic struct{ n atomic.Int64 }

func (t *traffic) bytes() int64 { return t.n.Load() }

// settle waits until nothing more is on the wire, and returns how much there was.
func (t *traffic) settle() int64 {
	for last := int64(-1); last != t.bytes(); {
		last = t.bytes()
		time.Sleep(50 * time.Millisecond)
	}
	return t.bytes()
}

type countedListener struct {
	net.Listener
	traffic *traffic
}

func (l *countedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &countedConn{conn, l.traffic}, nil
}

type countedConn struct {
	net.Conn
	traffic *traffic
}

func (c *countedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.traffic.n.Add(int64(n))
	return n, err
}

func (c *countedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	c.traffic.n.Add(int64(n))
	return n, err
}
