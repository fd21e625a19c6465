//go:build linux

package nftables

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// stepNow does what the goroutine does from time to time. There are at least so many flows.
func stepNow(t *testing.T, b *Backend, crowd int) {
	t.Helper()
	b.step(nil, func(counts least.Counts) (int, error) {
		flows, err := b.countFlows(counts)
		if err != nil {
			t.Error(err)
		}
		return max(flows, crowd), err
	})
	if b.mu.Lock(); b.counting.failing {
		t.Error("the step has failed")
	}
	b.mu.Unlock()
}

// TestLeastConnections makes real connections to an endpoint that has many already. It gets few more, until shares are even because there are too many
// flows. The shares outlive changes and comparisons. Nothing is counted unless a service asks for it.
func TestLeastConnections(t *testing.T) {
	t.Parallel()
	ns := newDrawNode(t)
	b := newBackend(t, ns, Options{})
	if b.Features()&state.Balances == 0 {
		t.Skipf("this kernel does not have %s", nft.Hashing.Name)
	}
	defer closeBackend(b)
	asking := func(endpoints int) *state.Service {
		s := drawnService(forward(endpointsOf(state.IPv4, 1, endpoints)))
		s.Ports[0].Balance = state.LeastConnections
		return s
	}
	busy, made := endpointsOf(state.IPv4, 1, 1)[0].Addr, 0
	share := func() float64 {
		t.Helper()
		const n = 1000
		got := 0
		for _, to := range draw(t, ns, 1, made, n) {
			if to == busy {
				got++
			}
		}
		made += n
		return float64(got) / n
	}
	expect := func(what string, from, to float64) {
		t.Helper()
		if got := share(); got < from || got > to {
			t.Errorf("%s: %.1f%% of connections go to the busy endpoint, want %.1f to %.1f%%", what, 100*got, 100*from, 100*to)
		}
	}
	apply(t, b, full(drawnService(forward(endpointsOf(state.IPv4, 1, 1)))))
	if share() != 1 || b.counting.stop != nil {
		t.Fatal("nobody asks, and something is counted, or connections go elsewhere")
	}
	apply(t, b, full(asking(4)))
	if b.counting.stop == nil {
		t.Fatal("nothing is counted")
	}
	// From here on, only this test counts, however long it takes.
	close(b.counting.stop)
	b.counting.running.Wait()
	b.counting.stop = make(chan struct{})
	expect("before the first count", 0.20, 0.30)
	for range 12 {
		stepNow(t, b, 0)
	}
	expect("after some counts", 0.001, 0.05)
	if result := apply(t, b, full(asking(4))); result.Written > 0 {
		t.Errorf("comparing writes %d", result.Written)
	}
	apply(t, b, delta(asking(5)))
	expect("with one endpoint more", 0.001, 0.05)
	if p := b.Problems(); len(p) > 0 {
		t.Error(p)
	}

	stepNow(t, b, mostFlows+1)
	expect("with too many flows", 0.15, 0.25)
	stepNow(t, b, fewFlows+1)
	if p := b.Problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "the first is test/drawn, share new connections evenly") {
		t.Errorf("with too many flows: %v", p)
	}
	stepNow(t, b, 0)
	expect("with few flows again", 0.001, 0.06)
	if p := b.Problems(); len(p) > 0 {
		t.Error(p)
	}

	stop := b.counting.stop
	apply(t, b, delta(asking(1)))
	select {
	case <-stop:
	default:
		t.Error("one endpoint is counted")
	}
	if b.counting.running.Wait(); b.counting.stop != nil {
		t.Error("something is counted for nobody")
	}
	apply(t, b, delta(asking(129)))
	if p := b.Problems(); len(p) != 1 || !strings.Contains(p[0].Error(), "one of their ports has too many") || b.counting.stop != nil {
		t.Errorf("too many endpoints: %v", p)
	}
}

// TestHashOfTooMany: services with more endpoints than a table of a hash can have draw them at random, and are reported.
func TestHashOfTooMany(t *testing.T) {
	t.Parallel()
	ns := newDrawNode(t)
	b := newBackend(t, ns, Options{})
	if b.Features()&state.Balances == 0 {
		t.Skipf("this kernel does not have %s", nft.Hashing.Name)
	}
	defer closeBackend(b)
	for _, n := range []int{4092, 4093} {
		list := make([]state.Endpoint, n)
		for i := range list {
			list[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 250, byte(i >> 8), byte(i)}), 80)
		}
		s := drawnService(forward(list))
		s.Ports[0].Balance = state.HashClient
		apply(t, b, full(s))
		p := b.Problems()
		if n == 4092 && len(p) > 0 || n > 4092 && (len(p) != 1 || !strings.Contains(p[0].Error(), "1 services, the first is test/drawn, draw endpoints at random")) {
			t.Errorf("%d endpoints: %v", n, p)
		}
	}
}
