package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"
)

const (
	// guardPeriod is how often a connection is looked after. It begins at a random time, so that the peers of many connections that
	// end for the same reason do not come back together.
	guardPeriod = 10 * time.Second
	// readPause is how long the files need not be read again for it: they are the same for all connections.
	readPause = 5 * time.Second
)

// Peer is the other end of a connection whose handshake is over.
type Peer struct {
	// Config is the configuration of the handshake, from [Config.Current].
	Config *tls.Config
	// State is the state of the connection. The handshake has verified its facts about the peer.
	State tls.ConnectionState
	// Options returns how chains are verified with another configuration: the authorities, and the purpose of the
	// certificate.
	Options func(*tls.Config) x509.VerifyOptions
}

// Guard returns a connection that breaks when a certificate of the peer's chain expires. It also breaks within 15
// seconds after a replacement of files that no longer verify the peer's certificate. Reads then fail with an error that
// wraps the error of [x509.Certificate.Verify]. A peer without a verified certificate is not checked.
func (c *Config) Guard(conn net.Conn, peer Peer) *Guarded {
	g := &Guarded{Conn: conn, files: c, peer: peer, verified: peer.Config, until: goodUntil(peer.State.VerifiedChains)}
	if len(peer.State.VerifiedChains) == 0 {
		return g
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(g.pause(rand.N(guardPeriod)), g.check)
	return g
}

// Guarded is a connection that is looked after until it is closed, or Stop is called.
type Guarded struct {
	net.Conn
	files *Config
	peer  Peer

	mu       sync.Mutex  // guards all below
	timer    *time.Timer // nil if it is not looked after
	verified *tls.Config // with which the peer was verified last
	until    time.Time   // when the certificates expire then
	stopped  bool
	broken   error // why it was closed here
}

// pause is how long to wait until the next check: usual, or less if the certificates expire before.
func (g *Guarded) pause(usual time.Duration) time.Duration {
	return max(0, min(usual, time.Until(g.until))) + time.Millisecond
}

// check closes the connection if the peer's certificates are no longer good.
func (g *Guarded) check() {
	if err := g.checked(g.files.recent()); err != nil {
		g.files.ended(err)
		_ = g.Conn.Close()
	}
}

// checked returns why the connection must be closed. If there is no reason, it is checked again later.
func (g *Guarded) checked(config *tls.Config) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped {
		return nil
	}
	err := g.verify(config)
	if err == nil {
		g.timer.Reset(g.pause(guardPeriod))
		return nil
	}
	leaf := g.peer.State.PeerCertificates[0]
	g.stopped, g.broken = true, fmt.Errorf("the certificate of the other end, %.256q, is no longer valid: %w", leaf.Subject.String(), err)
	return g.broken
}

// verify verifies the peer's certificates again if the configuration has changed or they have expired. The caller holds mu.
func (g *Guarded) verify(config *tls.Config) error {
	if config == g.verified && !time.Now().After(g.until) {
		return nil
	}
	certificates := g.peer.State.PeerCertificates
	options := g.peer.Options(config)
	options.Intermediates = x509.NewCertPool()
	for _, c := range certificates[1:] {
		options.Intermediates.AddCert(c)
	}
	chains, err := certificates[0].Verify(options)
	if err != nil {
		return err
	}
	g.verified, g.until = config, goodUntil(chains)
	return nil
}

// goodUntil is when the last of the chains expires.
func goodUntil(chains [][]*x509.Certificate) (until time.Time) {
	for _, chain := range chains {
		first := chain[0].NotAfter
		for _, c := range chain {
			if c.NotAfter.Before(first) {
				first = c.NotAfter
			}
		}
		if first.After(until) {
			until = first
		}
	}
	return until
}

// Read implements [net.Conn].
func (g *Guarded) Read(b []byte) (int, error) {
	n, err := g.Conn.Read(b)
	if err != nil {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.broken != nil {
			err = g.broken
		}
	}
	return n, err
}

// Stop ends the watch over the connection, for callers that close the connection below it.
func (g *Guarded) Stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	if g.timer != nil {
		g.timer.Stop()
	}
}

// Close implements [net.Conn].
func (g *Guarded) Close() error {
	g.Stop()
	return g.Conn.Close()
}
