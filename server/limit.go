package server

import (
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// warnPause is the least time between two warnings about too many clients.
	warnPause = time.Minute
	// minShare is how many connections a remote address may have however low the limit is, if the limit is not lower yet. Many
	// clients may share an address: those on one node, or behind one gateway.
	minShare = 64
)

// limiter bounds the number of connections of one listener, in all and from each remote address.
type limiter struct {
	net.Listener
	limit, share int
	log          *slog.Logger
	total        *atomic.Int64 // of all listeners

	mu      sync.Mutex // guards all below
	open    int
	from    map[netip.Addr]int
	refused int // since the last warning
	warned  time.Time
}

func limit(l net.Listener, s *Server) *limiter {
	return &limiter{
		Listener: l, limit: s.o.MaxClients, share: max(s.o.MaxClients/4, minShare), log: s.log, total: &s.clients,
		from: make(map[netip.Addr]int),
	}
}

// Accept returns the next connection within the limits, and closes those before it.
func (m *limiter) Accept() (net.Conn, error) {
	for {
		c, err := m.Listener.Accept()
		if err != nil {
			return nil, err
		}
		remote := remoteOf(c)
		if m.admit(remote) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(func() { m.release(remote) })}, nil
		}
		_ = c.Close()
	}
}

// remoteOf returns from which machine a connection comes, the zero Addr if it is a unix socket's or a loopback address's.
func remoteOf(c net.Conn) netip.Addr {
	a, ok := c.RemoteAddr().(*net.TCPAddr)
	if !ok || a.IP.IsLoopback() {
		return netip.Addr{}
	}
	return a.AddrPort().Addr().Unmap()
}

// admit counts one more connection, unless there are too many.
func (m *limiter) admit(remote netip.Addr) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	limit := m.limit
	if m.open < limit && remote.IsValid() {
		limit = m.share
	}
	if m.open < m.limit && (!remote.IsValid() || m.from[remote] < m.share) {
		m.open++
		m.total.Add(1)
		if remote.IsValid() {
			m.from[remote]++
		}
		return true
	}
	m.refused++
	if now := time.Now(); now.Sub(m.warned) >= warnPause {
		from := "this machine"
		if remote.IsValid() {
			from = remote.String()
		}
		m.log.Warn("too many clients; new connections are closed", "listener", m.Addr().String(), "limit", limit,
			"refusedSinceLastWarning", m.refused, "from", from, "remedy", "find out who connects so often, or raise the limit")
		m.warned, m.refused = now, 0
	}
	return false
}

func (m *limiter) release(remote netip.Addr) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
	m.total.Add(-1)
	if !remote.IsValid() {
		return
	}
	if m.from[remote]--; m.from[remote] == 0 {
		delete(m.from, remote)
	}
}

// limitedConn counts until it is closed.
type limitedConn struct {
	net.Conn
	release func()
}

func (c *limitedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
