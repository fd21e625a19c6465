package server

import (
	"log/slog"
	"net"
	"sync"
	"time"
)

// warnPause is the least time between two warnings about too many clients.
const warnPause = time.Minute

// limiter bounds the number of connections over all listeners.
type limiter struct {
	limit int
	log   *slog.Logger

	mu      sync.Mutex // guards all below
	open    int
	refused int // since the last warning
	warned  time.Time
}

func (m *limiter) len() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.open
}

// admit counts one more connection, unless there are too many.
func (m *limiter) admit(l net.Listener) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open < m.limit {
		m.open++
		return true
	}
	m.refused++
	if now := time.Now(); now.Sub(m.warned) >= warnPause {
		m.log.Warn("too many clients; new connections are closed", "listener", l.Addr().String(), "limit", m.limit,
			"refusedSinceLastWarning", m.refused, "remedy", "find out who connects so often, or raise the limit")
		m.warned, m.refused = now, 0
	}
	return false
}

func (m *limiter) release() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.open--
}

// limitedListener accepts connections as far as the limiter lets it.
type limitedListener struct {
	net.Listener
	limiter *limiter
}

func (l limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.limiter.admit(l.Listener) {
			return &limitedConn{Conn: c, release: sync.OnceFunc(l.limiter.release)}, nil
		}
		_ = c.Close()
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
