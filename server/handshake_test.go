package server

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/test/bufconn"

	"github.com/switchyard-net/switchyard/test/certtest"
)

// shaking is a server's handshakes.
type shaking struct {
	*handshakes
	authority *certtest.Authority
}

func newShaking(t *testing.T) *shaking {
	s := &shaking{authority: certtest.NewAuthority()}
	config := &tls.Config{
		MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{s.issue(t)}, ClientAuth: tls.RequireAndVerifyClientCert,
		ClientCAs: s.authority.Pool(), NextProtos: []string{"h2"},
	}
	s.handshakes = newHandshakes(func() *tls.Config { return config })
	return s
}

func (s *shaking) issue(t *testing.T) tls.Certificate {
	cert, key := s.authority.Issue(time.Hour, pkix.Name{CommonName: "x"}, "x")
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

// client connects a client, over a connection that may be changed for it, and returns a channel with the server's
// response to its handshake.
func (s *shaking) client(t *testing.T, change func(net.Conn) net.Conn) <-chan error {
	here, there := connected(t)
	done := make(chan error, 1)
	client := tls.Client(change(here), &tls.Config{
		RootCAs: s.authority.Pool(), ServerName: "x", Certificates: []tls.Certificate{s.issue(t)}, NextProtos: []string{"h2"},
	})
	go func() {
		if client.Handshake() == nil {
			_, _ = client.Read(make([]byte, 1)) // what the server may say after it
		}
		here.Close()
	}()
	go func() {
		conn, _, _, err := s.shake(there)
		done <- err
		if err == nil {
			conn.Close()
		}
		there.Close()
	}()
	return done
}

// connected returns both ends of a connection.
func connected(t *testing.T) (here, there net.Conn) {
	l := bufconn.Listen(64 << 10)
	accepted := make(chan net.Conn)
	go func() {
		c, _ := l.Accept()
		accepted <- c
	}()
	here, err := l.Dial()
	if err != nil {
		t.Fatal(err)
	}
	there = <-accepted
	t.Cleanup(func() {
		here.Close()
		l.Close()
	})
	return here, there
}

func asItIs(c net.Conn) net.Conn { return c }

// silent is a client that stops after its first message.
type silent struct {
	net.Conn
	spoken bool
	closed <-chan struct{}
}

func (s *silent) Write(b []byte) (n int, err error) {
	if s.spoken {
		<-s.closed
		return 0, net.ErrClosed
	}
	s.spoken = true
	return s.Conn.Write(b)
}

// TestTurnsGoToTheNewest: as many have a turn as may, the next one to get one is the newest, and who gives up gets none.
func TestTurnsGoToTheNewest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := turns{free: 2}
		var mu sync.Mutex // guards got
		var got []int
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 7 {
			go func() {
				who := t.Context()
				if i == 5 {
					who = ctx
				}
				if turns.take(who) == nil {
					mu.Lock()
					defer mu.Unlock()
					got = append(got, i)
				}
			}()
			synctest.Wait()
		}
		cancel()
		synctest.Wait()
		for range 4 {
			turns.leave()
			synctest.Wait()
		}
		if want := []int{0, 1, 6, 4, 3, 2}; !slices.Equal(got, want) {
			t.Errorf("turns went to %v, want %v", got, want)
		}
		turns.leave()
		turns.leave()
		if turns.free != 2 || turns.waiting.Len() > 0 {
			t.Errorf("%d turns are free and %d wait, want 2 and none", turns.free, turns.waiting.Len())
		}
	})
}

// TestHandshakesEndTheirTurns, whether they succeed or fail, and wait for one: but not for longer than clients do.
func TestHandshakesEndTheirTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaking(t)
		s.turns.free = 1
		for range 10 {
			if err := <-s.client(t, asItIs); err != nil {
				t.Fatal(err)
			}
			other := newShaking(t)
			other.handshakes = s.handshakes
			if err := <-other.client(t, asItIs); err == nil {
				t.Fatal("a client with a certificate of another authority has shaken hands")
			}
		}
		if s.turns.free != 1 {
			t.Fatalf("%d turns are free, want 1", s.turns.free)
		}
		s.turns.free = 0
		var waiting []<-chan error
		for range 5 {
			waiting = append(waiting, s.client(t, asItIs))
		}
		synctest.Wait()
		if n := s.turns.waiting.Len(); n != len(waiting) {
			t.Errorf("%d of %d handshakes wait for a turn", n, len(waiting))
		}
		s.turns.leave()
		synctest.Wait()
		for i, done := range waiting {
			if err := <-done; err != nil {
				t.Errorf("handshake %d: %v", i, err)
			}
		}
		s.turns.free = 0
		late := s.client(t, asItIs)
		if err := <-late; err == nil {
			t.Error("a handshake went on without a turn")
		}
	})
}

// TestSilentClientsTakeNoTurns: clients that stop within their handshake, or before it, keep nobody waiting.
func TestSilentClientsTakeNoTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShaking(t)
		s.turns.free = 1
		for range 5 {
			_, there := connected(t)
			go func() { _, _, _, _ = s.shake(there) }()
			closed := make(chan struct{})
			t.Cleanup(func() { close(closed) })
			s.client(t, func(c net.Conn) net.Conn { return &silent{Conn: c, closed: closed} })
		}
		synctest.Wait()
		begun := time.Now()
		if err := <-s.client(t, asItIs); err != nil {
			t.Error(err)
		}
		if took := time.Since(begun); took > 0 {
			t.Errorf("a client had to wait for %v", took)
		}
	})
}
