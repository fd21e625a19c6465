package node

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/server"
)

// TestShares: servers and a relay together leave a quarter of all descriptors, at least 64, to the rest of the process.
func TestShares(t *testing.T) {
	for limit := uint64(96); limit < 1<<22; limit += 1 + limit/50 {
		for _, withRelay := range []bool{false, true} {
			s := sharesOf(limit, withRelay)
			relay := 0
			if withRelay {
				relay = s.relay
			}
			checkShares(t, limit, &s, relay)
		}
	}
	if s := sharesOf(1<<20, true); s.health != 128 || s.ports != 512 || s.portSockets != 16384 || s.apiClients(0, 4, nil) != server.DefaultMaxClients {
		t.Errorf("with a usual limit, shares are %+v", s)
	}
	if s := sharesOf(relayFrom, true); s.health != 128 || s.ports != 512 || s.portSockets < 16000 || s.apiClients(0, 1, nil) != server.DefaultMaxClients {
		t.Errorf("with the least limit at which a relay has a share in any mode, shares are %+v", s)
	}
}

// TestSharesOfFew: a relay has a share of few descriptors, too: without one it could not begin.
func TestSharesOfFew(t *testing.T) {
	for limit := range uint64(96) {
		if s := sharesOf(limit, true); s.relay < 1 {
			t.Errorf("of %d, a relay has %d", limit, s.relay)
		}
	}
}

// checkShares checks the shares of a limit, of which a relay has so many.
func checkShares(t *testing.T, limit uint64, s *shares, relay int) {
	t.Helper()
	sum := relay
	for name, n := range map[string]int{
		"health": s.health, "healthOwn": s.healthOwn, "metrics": s.metrics, "metricsOwn": s.metricsOwn,
		"ports": s.ports, "portSockets": s.portSockets, "api": s.api,
	} {
		if n < 1 {
			t.Errorf("of %d, %s has %d", limit, name, n)
		}
		sum += n
	}
	files := int(min(limit, 1<<20))
	for _, sum := range []int{sum, s.health + s.healthOwn + s.metrics + s.metricsOwn + s.serve} {
		if kept := files - sum; kept < 64 || kept < min(files/4, 1024) {
			t.Errorf("of %d, servers have %d and leave %d", limit, sum, kept)
		}
	}
}

// TestServeShares: a relay has room for nodes where the servers of a node's proxy would have taken it.
func TestServeShares(t *testing.T) {
	if s := sharesOf(20_000, false); s.forServe().apiClients(0, 1, nil) != server.DefaultMaxClients {
		t.Errorf("with 20,000 open files a relay has %+v, want room for %d nodes", s, server.DefaultMaxClients)
	}
}

func TestAPIClients(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	s := sharesOf(4096, false)
	there := server.ClientsOf(s.api / 2)
	for _, e := range []struct{ asked, n int }{{0, there}, {10, 10}, {there, there}} {
		if got := s.apiClients(e.asked, 2, log); got != e.n || text.Len() > 0 {
			t.Errorf("of %d asked for, there are %d; want %d, and no warning:\n%s", e.asked, got, e.n, &text)
		}
	}
	if got := s.apiClients(there+1, 2, log); got != there || !strings.Contains(text.String(), "open files") {
		t.Errorf("of more than there are, there are %d, and the log says %q", got, &text)
	}
}
