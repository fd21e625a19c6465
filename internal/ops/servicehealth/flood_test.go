package servicehealth

import (
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// TestFloodOfOnePort: connections that never ask take the room of one port, and others go on to answer, as does the flooded one.
func TestFloodOfOnePort(t *testing.T) {
	var open, closed atomic.Int64
	s := serveWith(t, Options{Healthy: func() bool { return true }, MaxConnections: 64, OpenConnections: &open, ClosedConnections: &closed})
	flooded, other := freePort(t), freePort(t)
	s.Update(full(record("a", flooded, 1, 1), record("b", other, 1, 1)))
	get(t, "127.0.0.1", flooded)
	get(t, "127.0.0.1", other)
	const n, most = 200, 16 // a quarter of all
	left := make(chan error, n)
	for range n {
		c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", flooded))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		fmt.Fprint(c, "GET / HTTP/1.1\r\nX: ")
		go func() {
			_, err := io.Copy(io.Discard, c)
			left <- err
		}()
	}
	for range n - most {
		<-left // those that have to make room are closed
	}
	for _, port := range []uint16{other, flooded} {
		if resp, _ := get(t, "127.0.0.1", port); resp.StatusCode != 200 {
			t.Errorf("got %v", resp.Status)
		}
	}
	if got := open.Load(); got > most+4 || closed.Load() < n-most {
		t.Errorf("%d connections are open and %d were closed, want %d at most at the flooded port", got, closed.Load(), most)
	}
}

// TestTooManySockets: a bound socket stays, services beyond the limit have a problem, and get their sockets when others have gone.
func TestTooManySockets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, n, events := startWith(t, Options{MaxSockets: 4})
		s.SetAddresses(AllAddresses(state.IPv4, state.IPv6))
		s.Update(full(record("b", 102), record("c", 103), record("d", 104)))
		synctest.Wait()
		const both102and103 = "tcp4 0.0.0.0:102, tcp4 0.0.0.0:103, tcp6 [::]:102, tcp6 [::]:103"
		if got := n.listening(); got != both102and103 {
			t.Errorf("listens on %s, want the first ports", got)
		}
		s.Update(delta(record("a", 101)))
		synctest.Wait()
		if got := n.listening(); got != both102and103 {
			t.Errorf("listens on %s after one more came: bound sockets should stay", got)
		}
		problems := s.Problems()
		if len(problems) != 4 || !errors.Is(problems[0], errTooManySockets) || problems[0].Service.Name != "a" || problems[3].Service.Name != "d" ||
			!strings.Contains(problems[0].Error(), "limit of open files") {
			t.Errorf("problems are %v", problems)
		}
		if len(*events) != 4 {
			t.Errorf("%d problems were reported, want 4: %v", len(*events), *events)
		}
		s.Update(removed("c"))
		time.Sleep(maxPause)
		synctest.Wait()
		if got := n.listening(); got != "tcp4 0.0.0.0:101, tcp4 0.0.0.0:102, tcp6 [::]:101, tcp6 [::]:102" {
			t.Errorf("listens on %s after one has gone", got)
		}
	})
}

// BenchmarkReport has many problems, none of which is new.
func BenchmarkReport(b *testing.B) {
	for _, n := range []int{100, 1000, 10000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			s := New(Options{Healthy: func() bool { return true }})
			var records []*state.Service
			for i := range n {
				records = append(records, record(fmt.Sprintf("%05d", i), uint16(1000+i%(n/2))))
			}
			s.Update(full(records...))
			r := &runner{Server: s}
			for b.Loop() {
				r.report()
			}
		})
	}
}
