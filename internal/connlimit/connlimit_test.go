package connlimit

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// fakeConn is a connection whose addresses alone count.
type fakeConn struct {
	net.Conn
	local, remote net.Addr
	closed        atomic.Bool
}

func (c *fakeConn) LocalAddr() net.Addr  { return c.local }
func (c *fakeConn) RemoteAddr() net.Addr { return c.remote }
func (c *fakeConn) Close() error         { c.closed.Store(true); return nil }

func from(ip string) *fakeConn {
	local, remote := netip.MustParseAddr("192.0.2.255"), netip.MustParseAddr(ip)
	return &fakeConn{local: net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, 80)), remote: net.TCPAddrFromAddrPort(netip.AddrPortFrom(remote, 1))}
}

func discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestClients(t *testing.T) {
	for _, e := range []struct{ remote, client string }{
		{"192.0.2.1", "192.0.2.1/32"},
		{"::ffff:192.0.2.1", "192.0.2.1/32"},
		{"2001:db8::1", "2001:db8::/64"},
		{"2001:db8::ffff:1:2:3", "2001:db8::/64"},
		{"2001:db8:0:1::1", "2001:db8:0:1::/64"},
		{"fe80::1%eth0", "fe80::/64"},
		{"127.0.0.9", "this machine"},
		{"::1", "this machine"},
		{"::ffff:127.0.0.1", "this machine"},
		{"192.0.2.255", "this machine"}, // the address that it connects to
	} {
		if got := clientOf(from(e.remote)).String(); got != e.client {
			t.Errorf("%s is client %s, want %s", e.remote, got, e.client)
		}
	}
	unix := &fakeConn{local: &net.UnixAddr{Name: "s"}, remote: &net.UnixAddr{}}
	if got := clientOf(unix); got.isKnown() {
		t.Errorf("a unix socket's client is %v", got)
	}
}

// crowd is some connections that come to a pool.
type crowd struct {
	t     *testing.T
	pool  *Pool
	conns map[string][]*conn
}

// come lets n connections come, and returns how many of them are admitted.
func (c *crowd) come(n int, ip string) (admitted int) {
	for range n {
		if got := c.pool.admit(from(ip)); got != nil {
			c.conns[ip] = append(c.conns[ip], got)
			admitted++
		}
	}
	return admitted
}

// open returns how many connections from an address are open.
func (c *crowd) open(ip string) (n int) {
	for _, own := range c.conns[ip] {
		if !own.Conn.(*fakeConn).closed.Load() {
			n++
		}
	}
	return n
}

func (c *crowd) expect(want map[string]int) {
	c.t.Helper()
	for ip, n := range want {
		if got := c.open(ip); got != n {
			c.t.Errorf("%d connections from %s are open, want %d", got, ip, n)
		}
	}
}

func newCrowd(t *testing.T, o Options) *crowd {
	o.Logger = discard()
	return &crowd{t, New(o), map[string][]*conn{}}
}

func TestRefused(t *testing.T) {
	c := newCrowd(t, Options{Max: 10, PerClient: 4, Open: new(atomic.Int64)})
	for _, e := range []struct {
		ip          string
		n, admitted int
	}{{"192.0.2.1", 6, 4}, {"2001:db8::1", 3, 3}, {"2001:db8::2", 3, 1}, {"192.0.2.3", 4, 2}, {"127.0.0.1", 1, 0}} {
		if got := c.come(e.n, e.ip); got != e.admitted {
			t.Errorf("%d of %d from %s are admitted, want %d", got, e.n, e.ip, e.admitted)
		}
	}
	_ = c.conns["192.0.2.1"][0].Close()
	_ = c.conns["192.0.2.1"][0].Close() // counts once
	if got := c.come(2, "127.0.0.1"); got != 1 || c.pool.o.Open.Load() != 10 {
		t.Errorf("%d are admitted after one has gone, and %d are counted", got, c.pool.o.Open.Load())
	}
}

// TestReplaced: each client is its own victim first, and the pool's heaviest ones make room for those with fewer connections.
func TestReplaced(t *testing.T) {
	c := newCrowd(t, Options{Max: 10, PerClient: 6, ThisMachine: 2, Replace: true})
	c.come(6, "192.0.2.1")
	first := c.conns["192.0.2.1"][0]
	Used(first)
	c.come(1, "192.0.2.1")
	c.expect(map[string]int{"192.0.2.1": 6})
	if !c.conns["192.0.2.1"][1].Conn.(*fakeConn).closed.Load() || first.Conn.(*fakeConn).closed.Load() {
		t.Error("the connection that was used least recently should have been closed, and only that")
	}
	c.come(100, "2001:db8::1")
	c.come(1, "2001:db8::2") // the same /64
	c.expect(map[string]int{"192.0.2.1": 5, "2001:db8::1": 4, "2001:db8::2": 1})
	c.come(1, "192.0.2.3")
	c.come(1, "192.0.2.4")
	c.expect(map[string]int{"192.0.2.3": 1, "192.0.2.4": 1})
	c.come(100, "127.0.0.1")
	c.expect(map[string]int{"127.0.0.1": 2, "192.0.2.3": 1, "192.0.2.4": 1})

	// More clients than places: those that are used stay.
	for i := range 1000 {
		Used(c.conns["192.0.2.3"][0])
		c.come(1, fmt.Sprintf("2001:db8:1:%x::1", i))
	}
	c.expect(map[string]int{"192.0.2.3": 1, "192.0.2.4": 0, "127.0.0.1": 2})
}

// TestParts: one part of a pool takes no more than its limit, and parts together no more than the pool's.
func TestParts(t *testing.T) {
	whole := New(Options{Max: 10, Replace: true, Logger: discard(), Open: new(atomic.Int64)})
	one := &crowd{t, whole.Part(Options{Max: 6, PerClient: 4, Replace: true, Logger: discard()}), map[string][]*conn{}}
	two := &crowd{t, whole.Part(Options{Max: 6, PerClient: 4, Replace: true, Logger: discard()}), map[string][]*conn{}}
	one.come(10, "192.0.2.1")
	one.come(10, "192.0.2.2")
	one.expect(map[string]int{"192.0.2.1": 3, "192.0.2.2": 3})
	two.come(10, "192.0.2.3")
	two.come(1, "192.0.2.4")
	// The part has room for one more, the pool does not.
	if n := whole.o.Open.Load(); n != 10 {
		t.Errorf("%d connections are open in all, want 10", n)
	}
	two.expect(map[string]int{"192.0.2.3": 3, "192.0.2.4": 1})
	for _, c := range slices.Concat(one.conns["192.0.2.1"], one.conns["192.0.2.2"], two.conns["192.0.2.3"], two.conns["192.0.2.4"]) {
		_ = c.Close()
	}
	if whole.open != 0 || len(whole.of) != 0 || one.pool.open != 0 || two.pool.open != 0 || whole.o.Open.Load() != 0 {
		t.Errorf("after all have gone, %d connections of %d clients are known", whole.open, len(whole.of))
	}
}

// naive is a pool in the simplest way: its connections in the order of use.
type naive struct {
	o     Options
	conns []*fakeConn
}

func (n *naive) count(client clientKey) (sum int) {
	for _, c := range n.conns {
		if clientOf(c) == client {
			sum++
		}
	}
	return sum
}

func (n *naive) oldest(client clientKey) *fakeConn {
	for _, c := range n.conns {
		if clientOf(c) == client {
			return c
		}
	}
	return nil
}

// victims are the connections that may have to make room for a new one. If there are none, there is room.
func (n *naive) victims(client clientKey) (victims []*fakeConn) {
	own, most := n.count(client), 0
	for _, c := range n.conns {
		most = max(most, n.count(clientOf(c)))
	}
	switch {
	case own >= n.o.PerClient, len(n.conns) >= n.o.Max && own == most:
		return []*fakeConn{n.oldest(client)}
	case len(n.conns) >= n.o.Max:
		for _, c := range n.conns {
			if n.count(clientOf(c)) == most && n.oldest(clientOf(c)) == c {
				victims = append(victims, c)
			}
		}
	}
	return victims
}

func (n *naive) remove(c *fakeConn) {
	n.conns = slices.DeleteFunc(n.conns, func(o *fakeConn) bool { return o == c })
}

// TestAgreesWithANaivePool takes random histories, and compares which connection is closed.
func TestAgreesWithANaivePool(t *testing.T) {
	replaced := 0
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 0))
		o := Options{Max: 1 + r.IntN(12), PerClient: 1 + r.IntN(6), Replace: true, Logger: discard()}
		p, dumb := New(o), naive{o: o}
		wrapped := map[*fakeConn]*conn{}
		for range 300 {
			what := r.IntN(10)
			if what < 4 && len(dumb.conns) > 0 {
				c := dumb.conns[r.IntN(len(dumb.conns))]
				dumb.remove(c)
				if what < 2 {
					_ = wrapped[c].Close()
				} else {
					Used(wrapped[c])
					dumb.conns = append(dumb.conns, c)
				}
				continue
			}
			c := from(fmt.Sprintf("192.0.2.%d", 1+r.IntN(8)))
			victims := dumb.victims(clientOf(c))
			wrapped[c] = p.admit(c)
			gone := slices.DeleteFunc(slices.Clone(dumb.conns), func(c *fakeConn) bool { return !c.closed.Load() })
			if len(gone) != min(len(victims), 1) || len(gone) == 1 && !slices.Contains(victims, gone[0]) {
				t.Fatalf("seed %d: %d connections were closed, and there are %d that might have been", seed, len(gone), len(victims))
			}
			for _, c := range gone {
				dumb.remove(c)
				replaced++
			}
			dumb.conns = append(dumb.conns, c)
			if p.open != len(dumb.conns) || p.of[clientOf(c)].conns.Len() != dumb.count(clientOf(c)) {
				t.Fatalf("seed %d: %d connections are counted, want %d", seed, p.open, len(dumb.conns))
			}
		}
	}
	if replaced < 1000 {
		t.Errorf("only %d connections had to make room", replaced)
	}
}

func TestWarnsOnceAMinute(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		p := New(Options{Name: "health", Max: 2, Replace: true, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		time.Sleep(time.Hour)
		for range 12 {
			p.admit(from("192.0.2.1"))
			time.Sleep(10 * time.Second)
		}
		if n := strings.Count(log.String(), "too many connections; closing"); n != 2 {
			t.Errorf("%d warnings in two minutes, want 2:\n%s", n, &log)
		}
		for _, what := range []string{"server=health", "closedSinceLastWarning=1\n", "closedSinceLastWarning=6\n", "clientWithMost=192.0.2.1/32"} {
			if !strings.Contains(log.String(), what) {
				t.Errorf("the log does not have %q:\n%s", what, &log)
			}
		}
	})
}

// scripted is a listener that returns the items of its list.
type scripted struct {
	net.Listener
	conns []net.Conn
}

func (s *scripted) Accept() (net.Conn, error) {
	if len(s.conns) == 0 {
		return nil, errors.New("no more")
	}
	c := s.conns[0]
	s.conns = s.conns[1:]
	return c, nil
}

// TestListener closes connections beyond the limits, and passes errors on.
func TestListener(t *testing.T) {
	a, b, c := from("192.0.2.1"), from("192.0.2.1"), from("192.0.2.2")
	l := New(Options{Max: 2, PerClient: 1, Logger: discard()}).Listener(&scripted{conns: []net.Conn{a, b, c}})
	for _, want := range []*fakeConn{a, c} {
		if got, err := l.Accept(); err != nil || got.(*conn).Conn != want {
			t.Fatalf("Accept = %v, %v", got, err)
		}
	}
	if !b.closed.Load() || a.closed.Load() || c.closed.Load() {
		t.Error("the second connection of a client should be closed, and only that")
	}
	if _, err := l.Accept(); err == nil || err.Error() != "no more" {
		t.Errorf("Accept = %v", err)
	}
}

func BenchmarkAdmitToAFullPool(b *testing.B) {
	for _, size := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			p := New(Options{Max: size, PerClient: 8, Replace: true, Logger: discard()})
			conns := make([]*fakeConn, 2*size)
			for i := range conns {
				conns[i] = from(fmt.Sprintf("2001:db8:0:%x::1", i))
				p.admit(conns[i])
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p.admit(conns[i%len(conns)])
			}
		})
	}
}
