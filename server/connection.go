package server

import (
	"net"
	"sync"
	"sync/atomic"
)

// connection is an accepted connection. gRPC closes some connections itself before it serves them, without the wrappers
// that the handshake has added. So the cleanup at the end of a connection happens here.
type connection struct {
	net.Conn                // counts in the rooms
	sent     *atomic.Uint64 // bytes; nil if they are not counted

	mu     sync.Mutex // guards all below
	closed bool
	after  []func()
}

// NetConn returns the connection as it was accepted.
func (c *connection) NetConn() net.Conn { return c.Conn }

// Write implements [net.Conn].
func (c *connection) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	if c.sent != nil {
		c.sent.Add(uint64(n))
	}
	return n, err
}

// afterwards has f called once the connection is closed, at once if it is.
func (c *connection) afterwards(f func()) {
	c.mu.Lock()
	if !c.closed {
		c.after = append(c.after, f)
		f = func() {}
	}
	c.mu.Unlock()
	f()
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.mu.Lock()
	after := c.after
	c.closed, c.after = true, nil
	c.mu.Unlock()
	err := c.Conn.Close()
	for _, f := range after {
		f()
	}
	return err
}

// accepting is a listener that returns a *connection each time.
type accepting struct {
	net.Listener
	sent *atomic.Uint64
}

// Accept implements [net.Listener].
func (l accepting) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &connection{Conn: c, sent: l.sent}, nil
}
