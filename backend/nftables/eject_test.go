//go:build linux

package nftables

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ejection"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// fakeWorld is a kernel and a network for an ejector.
type fakeWorld struct {
	mu       sync.Mutex
	suspects map[netip.AddrPort]time.Time
	silent   map[netip.AddrPort]bool
	families [2]bool
	freed    []netip.AddrPort
	// readErr and freeErr are errors of Suspects and Free, and freeing is how long Free takes.
	readErr, freeErr error
	freeing          time.Duration
	reads            []time.Time
	probes, most     int
	closed           []bool
}

func (w *fakeWorld) do(fn func()) {
	w.mu.Lock()
	defer w.mu.Unlock()
	fn()
}

func (w *fakeWorld) Suspects(families [2]bool) (list []ruleset.Suspect, err error) {
	w.do(func() {
		w.families, w.reads, err = families, append(w.reads, time.Now()), w.readErr
		for addr, since := range w.suspects {
			list = append(list, ruleset.Suspect{Endpoint: addr, Age: time.Since(since)})
		}
	})
	if err != nil {
		return nil, err
	}
	return list, nil
}

func (w *fakeWorld) Forget(list []netip.AddrPort) error {
	w.do(func() {
		for _, addr := range list {
			delete(w.suspects, addr)
		}
	})
	return nil
}

func (w *fakeWorld) Probe(ctx context.Context, endpoint netip.AddrPort) (o ejection.Outcome) {
	w.do(func() { w.probes++; w.most = max(w.most, w.probes) })
	defer w.do(func() { w.probes-- })
	select {
	case <-time.After(time.Millisecond):
	case <-ctx.Done():
	}
	silent := false
	w.do(func() { silent = w.silent[endpoint] })
	if silent {
		<-ctx.Done()
		return ejection.Silent
	}
	w.do(func() { delete(w.suspects, endpoint) })
	return ejection.Answered
}

func (w *fakeWorld) Free(list []netip.AddrPort) (err error) {
	time.Sleep(w.freeing)
	w.do(func() {
		if err = w.freeErr; err == nil {
			w.freed = append(w.freed, list...)
		}
	})
	return err
}

func (w *fakeWorld) Close(stays bool) error {
	w.do(func() { w.closed = append(w.closed, stays) })
	return nil
}

// ejectable is a service whose port ejects.
func ejectable(name string, endpoints []state.Endpoint) *state.Service {
	p := clusterIPPort(state.FamilyOf(endpoints[0].Addr.Addr()), state.TCP, 10, endpoints)
	p.Ejection = true
	return serviceOf(name, p)
}

// ejectorBench is an ejector in a bubble, with the goroutine that applies.
type ejectorBench struct {
	*ejector
	world   *fakeWorld
	asked   chan struct{}
	results map[ProbeResult]int
	added   int
	now     int
}

func newEjectorBench(t *testing.T, services ...*state.Service) *ejectorBench {
	b := &ejectorBench{
		world: &fakeWorld{suspects: map[netip.AddrPort]time.Time{}, silent: map[netip.AddrPort]bool{}}, asked: make(chan struct{}, 100),
		results: map[ProbeResult]int{},
	}
	var mu sync.Mutex
	b.ejector = startEjector(&ejector{
		log: slog.New(slog.DiscardHandler), world: b.world, timeout: time.Second, ask: func() { b.asked <- struct{}{} },
		observe: func(r ProbeResult) { mu.Lock(); defer mu.Unlock(); b.results[r]++ },
		report:  func(added, now int) { b.added, b.now = b.added+added, now },
	})
	for _, s := range services {
		b.set(s.Name, s)
	}
	t.Cleanup(func() {
		if err := b.end(false); err != nil {
			t.Error(err)
		}
	})
	return b
}

func (b *ejectorBench) silence(addr netip.AddrPort) {
	b.world.do(func() { b.world.silent[addr], b.world.suspects[addr] = true, time.Now() })
}

// apply waits until the ejector asks for a plan, and carries it out: these endpoints leave.
func (b *ejectorBench) apply(left ...state.Endpoint) {
	<-b.asked
	for _, e := range left {
		b.free([]netip.AddrPort{e.Addr})
	}
}

// pause lets a time pass, and all goroutines of the bubble do what is due.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// TestEjectorEjects: a silent endpoint is ejected before the third SYN of any client, which comes 2 s after the second one, and its flows are deleted once
// that is programmed. It returns with its first answer.
func TestEjectorEjects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eps := endpointsOf(state.IPv4, 1, 3)
		b := newEjectorBench(t, ejectable("web", eps))
		pause(17 * time.Millisecond)
		began := time.Now()
		b.silence(eps[0].Addr)
		<-b.asked
		if d := time.Since(began); d < time.Second || d > 1300*time.Millisecond {
			t.Errorf("ejected after %v", d)
		}
		pause(time.Minute)
		if len(b.world.freed) > 0 {
			t.Errorf("the flows to %v were deleted before it was ejected", b.world.freed)
		}
		b.free([]netip.AddrPort{eps[0].Addr})
		synctest.Wait()
		if !slices.Equal(b.world.freed, []netip.AddrPort{eps[0].Addr}) {
			t.Errorf("flows to %v were deleted", b.world.freed)
		}
		b.mu.Lock()
		list := b.list
		b.mu.Unlock()
		if len(list) != 1 || list[0].Endpoint != eps[0].Addr || !list[0].Since.Equal(began) || list[0].Probes < 10 || b.added != 1 || b.now != 1 {
			t.Errorf("%+v, %d added, %d now", list, b.added, b.now)
		}
		b.world.do(func() { delete(b.world.silent, eps[0].Addr) })
		answers := time.Now()
		b.apply()
		if d := time.Since(answers); b.ejected() != nil || d > ejection.ReturnPeriod+ejection.Period {
			t.Errorf("it returned after %v", d)
		}
		synctest.Wait()
		if b.now != 0 || b.results[ProbeSilent] < 10 || b.results[ProbeAnswered] < 2 {
			t.Errorf("%d are ejected, results %v", b.now, b.results)
		}
	})
}

// TestEjectorWithoutReading: while suspects cannot be read, nobody is ejected, and the ejected return.
func TestEjectorWithoutReading(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eps := endpointsOf(state.IPv4, 1, 3)
		b := newEjectorBench(t, ejectable("web", eps))
		b.silence(eps[0].Addr)
		b.apply()
		b.world.do(func() { b.world.readErr = errors.New("planted") })
		b.silence(eps[1].Addr)
		pause(10 * time.Second)
		if b.ejected().Has(ruleset.PortEndpoint{Service: serviceOf("web").Name, Port: "p10", Endpoint: eps[1].Addr}) || len(b.asked) > 0 {
			t.Error("an endpoint was ejected whose suspicion could not be read")
		}
		b.world.do(func() { clear(b.world.silent) })
		b.apply()
		if b.ejected() != nil {
			t.Error("the ejected one did not return")
		}
	})
}

// TestEjectorFrees: a failed deletion of flows is made again. A long one is followed by a longer pause.
func TestEjectorFrees(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eps := endpointsOf(state.IPv4, 1, 3)
		b := newEjectorBench(t, ejectable("web", eps))
		b.world.do(func() { b.world.freeErr = errors.New("planted") })
		b.silence(eps[0].Addr)
		b.apply(eps[0], eps[0])
		pause(3 * time.Second)
		b.world.do(func() { b.world.freeErr, b.world.freeing = nil, 2*time.Second })
		pause(3 * time.Second)
		var last time.Time
		b.world.do(func() { last = b.world.reads[len(b.world.reads)-1] })
		pause(10 * time.Second)
		var next time.Time
		b.world.do(func() {
			if n := len(b.world.freed); n != 1 {
				t.Errorf("flows to %v were deleted, want those of one endpoint", b.world.freed)
			}
			next = b.world.reads[slices.Index(b.world.reads, last)+1]
		})
		if gap := next.Sub(last); gap < 8*time.Second {
			t.Errorf("%v from the begin of a deletion of 2 s to the next reading", gap)
		}
	})
}

// TestEjectorLeavesFlows: after leaveFlows has returned, no flows are deleted. Pending deletions follow once the ejector goes on.
func TestEjectorLeavesFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		eps := endpointsOf(state.IPv4, 1, 3)
		b := newEjectorBench(t, ejectable("web", eps))
		freed := func(when string, want ...netip.AddrPort) {
			t.Helper()
			b.world.do(func() {
				if !slices.Equal(b.world.freed, want) {
					t.Errorf("%s: flows to %v were deleted, want %v", when, b.world.freed, want)
				}
			})
		}
		b.world.do(func() { b.world.freeing = 2 * time.Second })
		b.free([]netip.AddrPort{eps[0].Addr})
		synctest.Wait()
		b.leaveFlows()
		freed("when leaveFlows returns", eps[0].Addr)
		b.free([]netip.AddrPort{eps[1].Addr})
		pause(time.Minute)
		freed("while flows are left alone", eps[0].Addr)
		b.resumeFlows()
		pause(time.Minute)
		freed("afterwards", eps[0].Addr, eps[1].Addr)
	})
}

// TestLeaveFlowsLeavesSilentEndpoints: a backend leaves flows to ejected endpoints alone as well, until it applies a state again.
func TestLeaveFlowsLeavesSilentEndpoints(t *testing.T) {
	b := newBackend(t, netnstest.New(t), Options{})
	eps := endpointsOf(state.IPv4, 1, 2)
	world := &fakeWorld{}
	b.ejector.Store(startEjector(&ejector{
		log: b.log, world: world, ask: func() {}, timeout: time.Second, observe: func(ProbeResult) {}, report: func(int, int) {},
	}))
	apply(t, b, full(ejectable("web", eps)))
	until := func(what string, is func() bool) {
		t.Helper()
		await.Until(t, what, func() (yes bool) { world.do(func() { yes = is() }); return yes })
	}
	b.LeaveFlows()
	b.ejector.Load().free([]netip.AddrPort{eps[0].Addr})
	var before int
	world.do(func() { before = len(world.reads) })
	until("the loop of the ejector goes around", func() bool { return len(world.reads) > before+2 })
	world.do(func() {
		if len(world.freed) > 0 {
			t.Errorf("flows to %v were deleted", world.freed)
		}
	})
	apply(t, b, delta(ejectable("web", eps[:1])))
	until("the flows are deleted", func() bool { return len(world.freed) > 0 })
}

// TestEjectorEnds: it ends while probes are under way, and says that nothing is ejected.
func TestEjectorEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEjectorBench(t, ejectable("web", endpointsOf(state.IPv4, 1, 200)))
		for _, e := range endpointsOf(state.IPv4, 1, 199) {
			b.silence(e.Addr)
		}
		pause(700 * time.Millisecond)
		if b.world.most > ejection.MaxProbes || b.world.probes == 0 {
			t.Errorf("%d probes at a time, and %d now", b.world.most, b.world.probes)
		}
		b.set(serviceOf("web").Name, nil)
		if !b.isIdle() || b.families != [2]int{} || len(b.services) > 0 {
			t.Errorf("services %v, families %v", b.services, b.families)
		}
	})
}

// TestProbeResults: results have the names that metrics have.
func TestProbeResults(t *testing.T) {
	if got := fmt.Sprint(ProbeAnswered, ProbeSilent, ProbeFailed, ProbeResult(9)); got != "answered silent failed ProbeResult(9)" {
		t.Error(got)
	}
}
