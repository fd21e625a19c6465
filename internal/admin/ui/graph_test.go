package ui

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/state"
)

// TestGraph: a graph has the last 15 minutes, tells what is not known from what is 0, and is forgotten when it is flat.
func TestGraph(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		name := state.ServiceName{Namespace: "shop", Name: "web"}
		time.Sleep(time.Until(time.Now().Truncate(slotTime).Add(slotTime)))
		c := &Traffic{}
		c.Add(time.Now(), map[state.ServiceName]view.Counts{name: {Connections: 1000}}) // of any time before
		for range 8 {
			time.Sleep(30 * time.Second)
			c.Add(time.Now(), map[state.ServiceName]view.Counts{name: {Connections: 300, Rejects: 30}})
		}
		g := c.graph(name)
		for i, known := range g.Known {
			want := i >= slots-1-16 && i < slots-1 // the newest one has just begun
			if known != want || want && (g.Connections[i] != 10 || g.Refused[i] != 1) {
				t.Errorf("slot %d: known %v, %v connections, %v refused", i, known, g.Connections[i], g.Refused[i])
			}
		}
		if g.Dropped != nil || !g.End.Equal(time.Now().Add(slotTime)) {
			t.Errorf("graph %+v", g)
		}
		time.Sleep(maxGap + time.Second)
		c.Add(time.Now(), map[state.ServiceName]view.Counts{name: {Connections: 10_000}})
		if g := c.graph(name); g.Known[slots-1] || g.Known[slots-5] {
			t.Errorf("nobody has asked for two minutes, and the graph knows %v", g.Known)
		}
		for range 61 {
			time.Sleep(slotTime)
			c.Add(time.Now(), nil)
		}
		if g := c.graph(name); len(c.rings) != 0 || c.held.all != 0 || g.Connections != nil || !g.Known[0] {
			t.Errorf("after 15 quiet minutes, %d graphs are kept, and %+v is seen", len(c.rings), g)
		}
	})
}

// TestGraphsAreBounded: many Services of a namespace leave room for another one.
func TestGraphsAreBounded(t *testing.T) {
	c, now := &Traffic{}, time.Now()
	c.Add(now, nil)
	many := map[state.ServiceName]view.Counts{}
	for i := range 2 * maxRings {
		many[state.ServiceName{Namespace: "greedy", Name: fmt.Sprint(i)}] = view.Counts{Connections: 1, Rejects: 1, Drops: 1}
	}
	c.Add(now.Add(5*time.Second), many)
	other := state.ServiceName{Namespace: "shop", Name: "web"}
	c.Add(now.Add(10*time.Second), map[state.ServiceName]view.Counts{other: {Connections: 1}})
	if n := c.held.of["greedy"]; n > maxRings/2 || n < maxRings/2-1 || c.graph(other).Connections == nil {
		t.Errorf("one namespace has %d graphs", n)
	}
}

// TestComings: when endpoints came and went is kept for 15 minutes, of each Service in bounded number, and not across a whole new state.
func TestComings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		record := func(last byte) *state.Service {
			s := &state.Service{Name: state.ServiceName{Namespace: "shop", Name: "web"}, Ports: make([]state.Port, 1)}
			s.Ports[0].Internal.Inside.Endpoints = []state.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, last}), 80)}}
			return s
		}
		before := func(s *state.Service) map[state.ServiceName]*state.Service {
			return map[state.ServiceName]*state.Service{s.Name: s}
		}
		var c Changes
		name := record(1).Name
		if c.comings.get(name, time.Now()) != nil {
			t.Error("something is known before there is a state")
		}
		c.Attempted(backend.Attempt{Began: time.Now(), Update: &state.Update{Full: true, Changed: []*state.Service{record(1)}}})
		first := time.Now()
		turn := func() {
			time.Sleep(time.Second)
			c.Attempted(backend.Attempt{Began: time.Now(), Update: &state.Update{Changed: []*state.Service{record(2)}}, Before: before(record(1))})
		}
		turn()
		got := c.comings.get(name, time.Now())
		if !got.Since.Equal(first) || fmt.Sprint(got.Items) != fmt.Sprint([]Coming{{time.Now(), netip.MustParseAddr("10.0.0.1"), false}, {time.Now(), netip.MustParseAddr("10.0.0.2"), true}}) {
			t.Errorf("after one change: %+v", got)
		}
		for range 100 {
			turn()
		}
		got = c.comings.get(name, time.Now())
		if len(got.Items) != maxComingsOf || got.Items[0].At.Before(got.Since) || got.Since.Equal(first) || c.comings.held.all != maxComingsOf {
			t.Errorf("after 101 changes, %d are kept since %v", len(got.Items), got.Since)
		}
		failed := errors.New("no buffer space")
		c.Attempted(backend.Attempt{Began: time.Now(), Err: failed, Update: &state.Update{Changed: []*state.Service{record(3)}}, Before: before(record(2))})
		if again := c.comings.get(name, time.Now()); again.Items[maxComingsOf-1] != got.Items[maxComingsOf-1] {
			t.Error("a change that failed has brought an endpoint")
		}
		for i := range 2 * maxComings {
			other := record(1)
			other.Name.Name = fmt.Sprint("other-", i)
			c.Attempted(backend.Attempt{Began: time.Now(), Update: &state.Update{Changed: []*state.Service{other}}})
		}
		if lost := c.comings.get(name, time.Now()).Since; !lost.Equal(time.Now()) || c.comings.held.all > maxComings/2 {
			t.Errorf("the namespace has no room, and is complete since %v", lost)
		}
		time.Sleep(historySpan + time.Second)
		turn()
		if c.comings.held.all != 2 || len(c.comings.of) != 1 {
			t.Errorf("after 15 quiet minutes, %d are kept", c.comings.held.all)
		}
	})
}

// BenchmarkTraffic measures what an addition costs with 3,000 Services that all have connections: it comes with each reading of the counts, every five
// seconds at most.
func BenchmarkTraffic(b *testing.B) {
	c, now, grown := &Traffic{}, time.Now(), map[state.ServiceName]view.Counts{}
	for i := range 3000 {
		grown[state.ServiceName{Namespace: fmt.Sprint(i % 100), Name: fmt.Sprint(i)}] = view.Counts{Connections: 100, Rejects: 1}
	}
	for b.Loop() {
		now = now.Add(ratePeriod)
		c.Add(now, grown)
	}
}
