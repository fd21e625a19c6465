package connlimit

import (
	"math/rand/v2"
	"net"
	"sync/atomic"
	"testing"
)

// TestMove: a connection that has moved leaves its room to others, and counts once in the pool around both parts.
func TestMove(t *testing.T) {
	whole := New(Options{Max: 100, Logger: discard(), Open: new(atomic.Int64)})
	waiting := &crowd{t, whole.Part(Options{Max: 2, Replace: true, Logger: discard()}), map[string][]*conn{}}
	inside := whole.Part(Options{Max: 3, PerClient: 2, Logger: discard()})
	for i, e := range []struct {
		ip    string
		moved bool
	}{{"192.0.2.1", true}, {"192.0.2.1", true}, {"192.0.2.1", false}, {"192.0.2.2", true}, {"192.0.2.3", false}} {
		waiting.come(1, e.ip)
		c := waiting.conns[e.ip][len(waiting.conns[e.ip])-1]
		if got := Move(c, inside); got != e.moved {
			t.Errorf("connection %d from %s has moved: %v, want %v", i, e.ip, got, e.moved)
		}
	}
	if !Move(waiting.conns["192.0.2.2"][0], inside) {
		t.Error("a connection that is there already has no room")
	}
	if whole.open != 5 || waiting.pool.open != 2 || inside.open != 3 || whole.o.Open.Load() != 5 {
		t.Errorf("%d, %d and %d connections are counted, want 5, 2 and 3", whole.open, waiting.pool.open, inside.open)
	}
	// Those that have moved stay, and of those that wait each client keeps one.
	waiting.come(10, "192.0.2.9")
	waiting.expect(map[string]int{"192.0.2.1": 2, "192.0.2.2": 1, "192.0.2.3": 1, "192.0.2.9": 1})
	for _, conns := range waiting.conns {
		for _, c := range conns {
			_ = c.Close()
			if !Move(c, inside) {
				t.Error("a closed connection takes room")
			}
		}
	}
	if whole.open != 0 || waiting.pool.open != 0 || inside.open != 0 || whole.o.Open.Load() != 0 || len(inside.of) != 0 {
		t.Errorf("after all have gone, %d, %d and %d connections are counted", whole.open, waiting.pool.open, inside.open)
	}
	if !Move(from("192.0.2.1"), inside) {
		t.Error("a connection of no pool has no room")
	}
}

// TestMoveAtRandom compares with counters.
func TestMoveAtRandom(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		whole := New(Options{Max: 100, Logger: discard()})
		waiting, inside := whole.Part(Options{Max: 1 + r.IntN(6), Replace: true, Logger: discard()}), whole.Part(Options{Max: 1 + r.IntN(6), Logger: discard()})
		moved := map[*conn]bool{}
		for range 200 {
			if r.IntN(2) == 0 {
				moved[waiting.admit(from("192.0.2.1"))] = false
				continue
			}
			for c, in := range moved { // one of them
				switch {
				case r.IntN(3) == 0:
					_ = c.Close()
				case !in && !c.Conn.(*fakeConn).closed.Load():
					moved[c] = Move(c, inside)
				}
				break
			}
			var open [2]int
			for c, in := range moved {
				if !c.Conn.(*fakeConn).closed.Load() {
					open[map[bool]int{false: 0, true: 1}[in]]++
				}
			}
			if waiting.open != open[0] || inside.open != open[1] || whole.open != open[0]+open[1] || inside.open > inside.o.Max || waiting.open > waiting.o.Max {
				t.Fatalf("seed %d: %d wait and %d are inside of %d; want %v", seed, waiting.open, inside.open, whole.open, open)
			}
		}
	}
}

// TestListenChooses the pool for each connection.
func TestListenChooses(t *testing.T) {
	few, many := New(Options{Max: 1, Logger: discard()}), New(Options{Max: 10, Logger: discard()})
	conns := []net.Conn{from("192.0.2.1"), from("192.0.2.2"), from("192.0.2.1"), from("192.0.2.2")}
	l := Listen(&scripted{conns: conns}, func(c net.Conn) []*Pool {
		if clientOf(c) == clientOf(from("192.0.2.1")) {
			return []*Pool{few}
		}
		return []*Pool{many}
	})
	for range 3 {
		if _, err := l.Accept(); err != nil {
			t.Fatal(err)
		}
	}
	if few.open != 1 || many.open != 2 {
		t.Errorf("%d and %d connections are counted, want 1 and 2", few.open, many.open)
	}
}
