package ebpf

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// Inspect reads back what the base shows.
func (b *base) Inspect(q backend.Query) (held backend.Held, err error) {
	for _, s := range b.Shown() {
		for _, p := range s.Ports {
			for _, f := range p.Frontends {
				if p.Key(&f) != q.Frontend {
					continue
				}
				t := &p.External
				if f.Kind == state.ClusterIP {
					t = &p.Internal
				}
				r := &t.Inside
				if q.Outside {
					r = &t.Outside
				}
				held.Verdict, held.Objects = r.Verdict, []string{"the base"}
				for _, e := range r.Endpoints {
					held.Endpoints = append(held.Endpoints, e.Addr)
				}
			}
		}
	}
	return held, nil
}

// TestInspect: after random changes, what is read back is what was applied, through hooks or past them. Where somebody changes the maps, or
// the base has something else, that shows.
func TestInspect(t *testing.T) {
	f := newFixture(t)
	for _, family := range recordtest.Families {
		f.setAddr(recordtest.NodeAddr(family), true)
	}
	inspect := func(q backend.Query) backend.Held {
		t.Helper()
		held, err := f.Inspect(q)
		f.check(err)
		return held
	}
	isHooked := func(held backend.Held) bool {
		return slices.ContainsFunc(held.Objects, func(o string) bool { return strings.HasSuffix(o, " in map routes") })
	}
	rng := rand.New(rand.NewPCG(1, 2))
	services := make([]*state.Service, 4)
	hooked, atNodePorts := 0, 0
	next := func(i int) *state.Service {
		s := recordtest.EveryKind(string(rune('a'+i)), i+1, rng.IntN(6), time.Duration(rng.IntN(2))*time.Minute)
		if rng.IntN(4) == 0 {
			for j := range s.Ports {
				s.Ports[j].Protocol = state.UDP // is left to the base
			}
		}
		return s
	}
	for round, u := range recordtest.Rounds(8, rng, services, next) {
		f.apply(u)
		for _, q := range recordtest.Questions(services...) {
			for range 2 {
				held := inspect(q.Query)
				if difference := q.Check(held); difference != "" {
					t.Fatalf("round %d: %s", round, difference)
				}
				if isHooked(held) {
					if hooked++; !q.Frontend.Addr.IsValid() {
						atNodePorts++
					}
				}
				q.Node = false // a pod, if it is not outside
			}
		}
	}
	if hooked < 50 || atNodePorts < 10 {
		t.Errorf("%d answers are of hooks, %d of them of NodePorts: the changes do not test what they should", hooked, atNodePorts)
	}

	web := recordtest.EveryKind("a", 1, 2, 0)
	f.apply(recordtest.Full(web))
	q := recordtest.Questions(web)[0]
	dst := netip.AddrPortFrom(q.Dst, q.Frontend.Port)
	found, _, err := f.hooks.find(dst, true)
	f.check(err)
	f.check(f.hooks.programs.Maps["slots4"].Put(found.Base, []byte{192, 0, 2, 99, 0, 1, 0, 0}))
	held := inspect(q.Query)
	if q.Check(held) == "" || !slices.Contains(held.Endpoints, netip.MustParseAddrPort("192.0.2.99:1")) || len(held.Differences) != 2 {
		t.Errorf("with another endpoint in a slot: %+v", held)
	}
	f.verify()
	if difference := q.Check(inspect(q.Query)); difference != "" {
		t.Error(difference)
	}
	rejecting := recordtest.EveryKind("a", 1, 0, 0)
	_, err = f.base.Apply(t.Context(), recordtest.Delta(rejecting))
	f.check(err)
	if held := inspect(q.Query); held.Verdict != state.Forward || len(held.Differences) != 1 || !strings.Contains(held.Differences[0], "Reject") {
		t.Errorf("above a base that rejects: %+v", held)
	}
	f.check(f.unload())
	if held := inspect(q.Query); held.Verdict != state.Reject || len(held.Differences) > 0 {
		t.Errorf("without hooks: %+v", held)
	}
	if _, err := (&Backend{base: backend.None{}}).Inspect(q.Query); err == nil || !strings.Contains(err.Error(), "the dataplane below does not read back single connections") {
		t.Errorf("with a base that reads nothing back: %v", err)
	}
}
