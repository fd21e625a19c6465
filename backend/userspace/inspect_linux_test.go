package userspace_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestInspect: after random changes, what is read back is what was applied, through the relay or past it. The endpoints of the
// base count once the relay has left new connections to it.
func TestInspect(t *testing.T) {
	l := newLab(t, userspace.Options{})
	inspect := func(q backend.Query) backend.Held {
		t.Helper()
		held, err := l.pair.Inspect(q)
		if err != nil {
			t.Fatal(err)
		}
		return held
	}
	rng := rand.New(rand.NewPCG(1, 2))
	services := make([]*state.Service, 4)
	next := func(i int) *state.Service {
		s := recordtest.EveryKind(string(rune('a'+i)), i+1, rng.IntN(6), time.Duration(rng.IntN(2))*time.Minute)
		if rng.IntN(3) == 0 {
			for j := range s.Ports {
				s.Ports[j].Protocol = state.SCTP // is left to the base
			}
		}
		return s
	}
	for round, u := range recordtest.Rounds(8, rng, services, next) {
		if result, err := l.pair.Apply(t.Context(), u); err != nil || len(result.Failed) > 0 {
			t.Fatal(result, err)
		}
		for _, q := range recordtest.Questions(services...) {
			if difference := q.Check(inspect(q.Query)); difference != "" {
				t.Fatalf("round %d: %s", round, difference)
			}
		}
	}

	astray := recordtest.EveryKind("a", 1, 1, 0)
	astray.Ports[0].Internal.Inside.Endpoints[0].Addr = netip.MustParseAddrPort("192.0.2.99:1")
	if _, err := l.pair.base.Apply(t.Context(), recordtest.Delta(astray)); err != nil {
		t.Fatal(err)
	}
	q := recordtest.Questions(astray)[0]
	if held := inspect(q.Query); held.Verdict == state.Forward && q.Check(held) == "" {
		t.Errorf("while the relay serves a Service, endpoints of the base count: %+v", held)
	}
	if err := l.pair.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	if held, err := l.pair.base.Inspect(q.Query); err != nil || q.Check(held) != "" {
		t.Errorf("once the relay has left it, they do not: %+v, %v", held, err)
	}
}

// TestInspectConnections: those that the relay carries are listed with the server that answers.
func TestInspectConnections(t *testing.T) {
	l := newLab(t, userspace.Options{})
	l.apply(nil, l.at(answers))
	c := l.dial(frontend)
	if _, err := c.Write([]byte("x")); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddrPort(frontend)
	q := backend.Query{Frontend: state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: at.Addr(), Port: at.Port()}, Dst: at.Addr()}
	for source, want := range map[netip.Addr]int{{}: 1, l.visitor.Addrs[0]: 1, l.pod.Addrs[0]: 0} {
		q.Source = source
		held, err := l.pair.Inspect(q)
		if err != nil || held.Count != want || want > 0 && held.Connections[0].Server != l.at(answers).Addr {
			t.Errorf("from %v: %+v, %v; want %d connections", source, held, err, want)
		}
	}
}
