//go:build linux

package loadcheck

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

var zero = time.Unix(1000, 0)

func at(ms int) time.Time { return zero.Add(time.Duration(ms) * time.Millisecond) }

func aStream() *stream {
	return &stream{Stream: &Stream{From: &topology.Host{Name: "x"}}, o: &Options{}}
}

// TestGapOfFailures: from the beginning of the first that fails to the answer of one that began later.
func TestGapOfFailures(t *testing.T) {
	r := record{stream: aStream()}
	lengths := func() (list []int) {
		for _, w := range r.waits {
			list = append(list, int(w.length()/time.Millisecond))
		}
		return list
	}
	r.success(at(0), at(0), time.Second)
	// Those that begin at 10 and 20 are lost, which is known at 110 and 120. One that begins at 40 takes 5.
	r.failure(at(10))
	r.failure(at(20))
	r.success(at(5), at(30), time.Second) // began before
	r.success(at(40), at(45), time.Second)
	r.success(at(50), at(50), time.Second)
	if got, want := lengths(), []int{25, 5, 35}; !slices.Equal(got, want) {
		t.Errorf("noticed at once: %v, want %v", got, want)
	}
	r = record{stream: aStream()}
	r.success(at(30), at(45), time.Second)
	r.success(at(46), at(48), time.Second)
	r.failure(at(10)) // noticed late
	if got, want := lengths(), []int{15, 2, 35}; !slices.Equal(got, want) {
		t.Errorf("noticed late: %v, want %v", got, want)
	}
	r.failure(at(100))
	r.end(at(170))
	if got, want := lengths(), []int{15, 2, 35, 70}; !slices.Equal(got, want) {
		t.Errorf("not over: %v, want %v", got, want)
	}
}

// TestControlExplains: a gap counts as far as the control had none at the moment.
func TestControlExplains(t *testing.T) {
	s := aStream()
	w := func(since, until int) wait { return wait{s, at(since), at(until)} }
	for _, c := range []struct {
		name                       string
		waits, control, stalls     []wait
		longest, ours, unexplained int
	}{
		{"none", nil, nil, nil, 0, 0, 0},
		{"no control", []wait{w(0, 7), w(50, 52)}, nil, nil, 7, 7, 0},
		{"the machine's", []wait{w(0, 7), w(500, 502)}, []wait{w(1, 9)}, nil, 7, 2, 8},
		{"partly", []wait{w(0, 7)}, []wait{w(1, 3), w(4, 5)}, nil, 7, 4, 2},
		{"one upon the other", []wait{w(0, 17)}, []wait{w(1, 5), w(3, 8), w(4, 6)}, []wait{w(2, 10)}, 17, 8, 0},
		{"at another moment", []wait{w(0, 7)}, []wait{w(18, 100)}, nil, 7, 7, 82},
		{"just before", []wait{w(100, 107)}, []wait{w(80, 95)}, nil, 7, 2, 15},
		{"a processor stood still", []wait{w(0, 7), w(50, 52)}, []wait{w(0, 5)}, []wait{w(0, 6)}, 7, 2, 0},
	} {
		g := longest(c.waits, c.control, c.stalls, zero)
		if g.Unexplained != time.Duration(c.unexplained)*time.Millisecond {
			t.Errorf("%s: %v of the control are unexplained", c.name, g.Unexplained)
		}
		if g.Longest != time.Duration(c.longest)*time.Millisecond || g.Ours != time.Duration(c.ours)*time.Millisecond {
			t.Errorf("%s: %+v", c.name, g)
		}
		if g.Slow != min(len(c.waits), 1) || g.ControlSlow > len(c.control) {
			t.Errorf("%s: %d were slow, and %d of the control", c.name, g.Slow, g.ControlSlow)
		}
	}
}

// TestInterruption: what begins or ends while somebody has taken the proxy's work away, or was under way then.
func TestInterruption(t *testing.T) {
	i := interruption{began: at(1000), ended: at(1200)}
	open := interruption{began: at(1000)}
	for _, c := range []struct {
		since, until int
		covered      bool
		coveredOpen  bool
	}{
		{0, 500, false, false},
		{0, 1100, true, true},
		{0, 5000, false, true},
		{899, 5000, false, true},
		{900, 5000, true, true},
		{1100, 5000, true, true},
		{1201, 5000, false, true},
	} {
		if got := i.covers(at(c.since), at(c.until)); got != c.covered {
			t.Errorf("from %d to %d: %v", c.since, c.until, got)
		}
		if got := open.covers(at(c.since), at(c.until)); got != c.coveredOpen {
			t.Errorf("from %d to %d, while it goes on: %v", c.since, c.until, got)
		}
	}
	var l Ledger
	l.Change(&oracle.World{})
	interrupted := func(since, until time.Time) bool {
		return l.States(&Target{Addr: netip.MustParseAddrPort("10.96.0.1:80")}, probe.FromPod, netip.Addr{}, since, until)[0].Interrupted
	}
	if interrupted(time.Now(), time.Now()) {
		t.Error("there was none yet")
	}
	done := l.Interrupt()
	if !interrupted(time.Now(), time.Now()) {
		t.Error("it is not noticed")
	}
	done(time.Millisecond)
	time.Sleep(2 * time.Millisecond)
	if interrupted(time.Now(), time.Now()) {
		t.Error("it has no end")
	}
	l.Interrupt()
	if !interrupted(time.Now(), time.Now()) {
		t.Error("the second one is not noticed")
	}
}

// TestLedger: while a change is under way both states count, and afterwards the new one.
func TestLedger(t *testing.T) {
	vip := netip.MustParseAddr("10.96.0.1")
	world := func(pods ...string) *oracle.World {
		name := state.ServiceName{Namespace: "default", Name: "web"}
		slice := &model.EndpointSlice{Namespace: "default", Name: "web-1", Service: "web", Family: state.IPv4,
			Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}}}
		for _, pod := range pods {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(pod), Ready: true, Serving: true})
		}
		return &oracle.World{
			Services: []*model.Service{{Name: name, ClusterIPs: []netip.Addr{vip}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}}},
			Slices:   []*model.EndpointSlice{slice},
		}
	}
	target := &Target{Protocol: state.TCP, Addr: netip.AddrPortFrom(vip, 80), Service: state.ServiceName{Namespace: "default", Name: "web"}}
	var l Ledger
	ask := func(since, until time.Time) (allowed []string) {
		for _, s := range l.States(target, probe.FromPod, netip.MustParseAddr("10.0.0.9"), since, until) {
			for _, a := range s.Allowed {
				allowed = append(allowed, a.Addr().String())
			}
			if !slices.Equal(s.Allowed, s.Serving) {
				t.Errorf("allowed %v, serving %v", s.Allowed, s.Serving)
			}
		}
		return allowed
	}
	expect := func(when string, got []string, want ...string) {
		t.Helper()
		if !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	l.Change(world("10.0.0.1"))
	l.Acked()
	before := time.Now()
	expect("in peace", ask(before, before), "10.0.0.1")
	time.Sleep(time.Millisecond)
	l.Change(world("10.0.0.2"))
	l.Change(world("10.0.0.3"))
	expect("begun during changes", ask(time.Now(), time.Now()), "10.0.0.1", "10.0.0.2", "10.0.0.3")
	expect("ended before", ask(before, before), "10.0.0.1")
	expectPending := func(want int) {
		t.Helper()
		if text := l.Changes(); strings.Count(text, "told ") != 3 || strings.Count(text, "not taken over") != want {
			t.Errorf("%d of 3 changes are under way: %s", want, text)
		}
	}
	expectPending(2)
	l.Acked()
	expectPending(0)
	time.Sleep(time.Millisecond)
	expect("begun before and ended after", ask(before, time.Now()), "10.0.0.1", "10.0.0.2", "10.0.0.3")
	expect("begun after", ask(time.Now(), time.Now()), "10.0.0.3")
}

// TestLedgerOfKills: flows may be left uncut from a kill until somebody has served for as long as cutting takes.
func TestLedgerOfKills(t *testing.T) {
	var l Ledger
	l.Change(&oracle.World{})
	left := func(since time.Time) bool {
		states := l.States(&Target{Protocol: state.UDP, Addr: netip.MustParseAddrPort("10.96.0.1:53")}, probe.FromPod, netip.Addr{}, since, time.Now())
		return states[0].LeftFlows
	}
	if began := time.Now(); left(began) {
		t.Error("nobody was killed")
	}
	served := l.LeaveFlows()
	if !left(time.Now()) {
		t.Error("somebody was killed")
	}
	served(0)
	again := time.Now().Add(time.Nanosecond)
	if !left(again.Add(-time.Minute)) || left(again) {
		t.Error("another one serves, and has for no time")
	}
}
