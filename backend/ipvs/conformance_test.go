//go:build linux

package ipvs_test

import (
	"context"
	"errors"
	"os"
	"sync/atomic"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/conformance"
	kernel "github.com/switchyard-net/switchyard/internal/kernel/ipvs"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(conformance.Main(m)) }

// needIPVS skips a test on kernels without it, and with -short.
func needIPVS(t testing.TB) {
	t.Helper()
	netnstest.Need(t)
	c, err := kernel.Dial()
	if errors.Is(err, kernel.ErrNoIPVS) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	c.Close()
}

// pair is IPVS above nftables.
type pair struct {
	*ipvs.Backend
	base *nftables.Backend
}

func newPair(ctx context.Context, base nftables.Options, o ipvs.Options) (*pair, error) {
	var above atomic.Pointer[ipvs.Backend]
	base.Elsewhere = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Serves(k) }
	base.Scheduled = func(k state.FrontendKey) bool { b := above.Load(); return b != nil && b.Scheduled(k) }
	base.Schedules = func() bool { b := above.Load(); return b != nil && b.Schedules() }
	n, err := nftables.New(ctx, base)
	if err != nil {
		return nil, err
	}
	o.Commit = n.Commit
	b, err := ipvs.New(n, o)
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	above.Store(b)
	return &pair{b, n}, nil
}

func (p *pair) Close() error { return errors.Join(p.Backend.Close(), p.base.Close()) }

// TestConformance also sees that IPVS has served connections: a pair whose IPVS does nothing passes the suite as well.
func TestConformance(t *testing.T) {
	needIPVS(t)
	var served atomic.Uint64
	conformance.Run(t, conformance.Dataplane{
		Name: "ipvs",
		New: func(s conformance.Settings) (backend.Backend, error) {
			return newPair(t.Context(), nftables.Options{Logger: s.Logger}, ipvs.Options{Logger: s.Logger})
		},
		CheckHost: func(t testing.TB) { served.Add(connections(t)) },
	})
	if n := served.Load(); n < 50 && !t.Failed() {
		t.Errorf("IPVS has served %d connections, want some at least", n)
	}
}

// connections counts those that the virtual servers of the calling thread's network namespace have, also those that have just ended.
func connections(t testing.TB) (n uint64) {
	t.Helper()
	c, err := kernel.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	servers, err := c.Servers()
	if err != nil {
		t.Fatal(err)
	}
	for i := range servers {
		dests, err := c.Dests(&servers[i])
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range dests {
			n += uint64(d.Active + d.Inactive)
		}
	}
	return n
}
