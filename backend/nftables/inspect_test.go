//go:build linux

package nftables

import (
	"net/netip"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestInspect reads back what the kernel holds for each frontend of services of all kinds, and for clients inside and outside: it is what was
// applied. An element that somebody deletes is missed.
func TestInspect(t *testing.T) {
	ns := netnstest.New(t)
	b := newSharedBackend(t, ns, Options{})
	b.inspector.finder = dial(t, ns)
	services := []*state.Service{
		recordtest.EveryKind("none", 1, 0, 0), recordtest.EveryKind("one", 2, 1, 0), recordtest.EveryKind("three", 3, 3, 0),
		recordtest.EveryKind("many", 4, 40, 0), recordtest.EveryKind("sticky", 5, 5, time.Minute),
	}
	apply(t, b, full(services...))
	inspect := func(q backend.Query) backend.Held {
		t.Helper()
		held, err := b.Inspect(q)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	questions := recordtest.Questions(services...)
	for _, q := range questions {
		if difference := q.Check(inspect(q.Query)); difference != "" {
			t.Error(difference)
		}
	}
	if len(questions) == 0 {
		t.Fatal("no frontend was looked at")
	}
	missing := state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: netip.MustParseAddr("10.96.99.99"), Port: 1}
	if held := inspect(backend.Query{Frontend: missing, Dst: missing.Addr}); held.Verdict != state.Unused || len(held.Objects) > 0 {
		t.Errorf("a frontend that nobody has: %+v", held)
	}

	p := &services[2].Ports[0]
	q := backend.Query{Frontend: p.Key(&p.Frontends[0]), Dst: p.Frontends[0].Addr}
	before := inspect(q)
	var batch nft.Batch
	batch.FlushSet(table(p.Family), "service-slots")
	if err := dial(t, ns).Commit(&batch); err != nil {
		t.Fatal(err)
	}
	if after := inspect(q); len(before.Endpoints) != 3 || after.Verdict != state.Unused || len(after.Endpoints) != 0 {
		t.Errorf("before somebody flushes the slots: %+v, after it: %+v", before, after)
	}
}

// fakeFinder finds nothing, and notices if it is used while it is closed.
type fakeFinder struct {
	*testing.T
	used, asked atomic.Int64
	closed      atomic.Bool
}

func (f *fakeFinder) look() error {
	f.used.Add(1)
	defer f.used.Add(-1)
	f.asked.Add(1)
	runtime.Gosched()
	if f.closed.Load() {
		f.Error("a socket is used that is closed")
	}
	return nil
}

func (f *fakeFinder) Find(nft.Table, string, int, []byte, func(int, []byte)) error { return f.look() }
func (f *fakeFinder) HasAll(nft.Table, string, int, []byte) (bool, error)          { return false, f.look() }
func (f *fakeFinder) FindElems(nft.Table, string, int, []byte, func(int, nft.Elem)) error {
	return f.look()
}
func (f *fakeFinder) Fill(nft.Table, string) (nft.Fill, bool, error) {
	return nft.Fill{}, false, f.look()
}

func (f *fakeFinder) Close() error {
	if f.closed.Swap(true) || f.used.Load() > 0 {
		f.Error("a socket is closed that is in use, or closed")
	}
	return nil
}

// TestInspectDuringClose: while another mode replaces the dataplane, and afterwards, questions use no closed socket.
// Its number may be another socket's by then.
func TestInspectDuringClose(t *testing.T) {
	b, f := newSharedBackend(t, netnstest.New(t), Options{}), &fakeFinder{T: t}
	b.inspector.finder = f
	key := state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	var asking sync.WaitGroup
	for range 4 {
		asking.Go(func() {
			questions := []func() error{
				func() error { _, err := b.Inspect(backend.Query{Frontend: key, Dst: key.Addr}); return err },
				func() error { _, err := b.AffinityClients(); return err },
				func() error { _, err := b.Counts([]state.FrontendKey{key}); return err },
			}
			for open := true; open; {
				for _, ask := range questions {
					open = ask() == nil // the last one fails as soon as the socket is closed
				}
			}
			for _, ask := range questions {
				if err := ask(); err == nil || !strings.Contains(err.Error(), "ask again") {
					t.Errorf("the error is %v", err)
				}
			}
		})
	}
	for f.asked.Load() < 100 {
		runtime.Gosched()
	}
	closeBackend(b)
	asking.Wait()
}
