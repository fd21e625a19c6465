package backend_test

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// large returns a record of ports with so many frontends and endpoints each; all frontends, or all endpoints, of two versions differ.
func large(namespace, n string, ports, frontends, endpoints, version int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: namespace, Name: n}}
	route := state.Route{Verdict: state.Reject}
	for i := range endpoints {
		route.Verdict = state.Forward
		addr := netip.AddrFrom4([4]byte{10, byte(version), byte(i >> 8), byte(i)})
		route.Endpoints = append(route.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr, 80)})
	}
	for i := range ports {
		p := state.Port{Name: fmt.Sprintf("p%04d", i), Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: route, Outside: route}}
		for j := range frontends {
			addr := netip.AddrFrom4([4]byte{172, byte(len(namespace)), 0, byte(j)})
			if endpoints == 0 {
				addr = netip.AddrFrom4([4]byte{172, byte(len(namespace)), byte(version), byte(j)})
			}
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: addr, Port: uint16(i + 1)})
		}
		s.Ports = append(s.Ports, p)
	}
	return s
}

// touched returns how many frontends, and endpoints behind them, differ between two records.
func touched(a, b *state.Service) (n int) {
	type entry struct {
		key state.FrontendKey
		to  netip.AddrPort
	}
	entries := func(s *state.Service) map[entry]bool {
		all := map[entry]bool{}
		if s == nil {
			return all
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				k := p.Key(&p.Frontends[j])
				all[entry{key: k}] = true
				for _, e := range p.Internal.Inside.Endpoints {
					all[entry{k, e.Addr}] = true
				}
			}
		}
		return all
	}
	before, after := entries(a), entries(b)
	for e := range before {
		if !after[e] {
			n++
		}
	}
	for e := range after {
		if !before[e] {
			n++
		}
	}
	return n
}

// TestPartsAreBounded: however much of a service changes, one Apply changes a bounded part of it.
func TestPartsAreBounded(t *testing.T) {
	for _, c := range []struct{ ports, frontends, endpoints int }{{60, 50, 0}, {3, 1, 3_000}, {1, 10, 400}} {
		start(t, backend.RunOptions{}, func(b *bench) {
			was := large("tenant", "large", c.ports, c.frontends, c.endpoints, 0)
			b.publish(service("small", 0))
			b.after(0)
			b.backend.Calls()
			for version, next := range []*state.Service{was, large("tenant", "large", c.ports, c.frontends, c.endpoints, 1), nil} {
				if next == nil {
					b.feed.Publish(nil, was.Name)
				} else {
					b.publish(next)
				}
				b.after(time.Minute)
				var shown *state.Service
				if version > 0 {
					shown = was
				}
				calls := b.backend.Calls()
				if len(calls) < 4 {
					b.Errorf("%+v: version %d took %d parts", c, version, len(calls))
				}
				for _, call := range calls {
					if call.Update == nil {
						continue
					}
					var now *state.Service
					if len(call.Update.Changed) > 0 {
						now = call.Update.Changed[0]
					}
					// A frontend goes, or comes, with all its endpoints.
					if n := touched(shown, now); n > 1_000+c.endpoints {
						b.Errorf("%+v: version %d changes %d entries at once", c, version, n)
					}
					shown = now
				}
				was = next
				if was == nil {
					was = shown
				}
			}
			b.inStep()
			if s := b.currentStatus(); s.Applied != b.feed.Revision() || !s.Pending.IsZero() {
				b.Errorf("status is %+v, want revision %d", s, b.feed.Revision())
			}
		})
	}
}

// TestSmallServicesGoFirst: of one update, what is small does not wait for what is large, in whatever namespace.
func TestSmallServicesGoFirst(t *testing.T) {
	start(t, backend.RunOptions{}, func(b *bench) {
		b.publish(service("z", 0))
		b.after(0)
		b.backend.Calls()
		b.backend.SetLatency(time.Millisecond)
		b.publish(large("aa", "large", 100, 50, 0, 1), large("default", "large", 100, 50, 0, 1), service("y", 1), service("z", 1))
		b.after(time.Minute)
		first := map[string]int{}
		for i, c := range b.backend.Calls() {
			if c.Update == nil {
				continue
			}
			for _, s := range c.Update.Changed {
				if n := len(s.Ports); i == 0 && n > 20 {
					b.Errorf("%v comes with %d ports beside small services, want a part", s.Name, n)
				}
				if _, ok := first[s.Name.String()]; !ok {
					first[s.Name.String()] = i
				}
			}
		}
		if want := map[string]int{"aa/large": 0, "default/large": 0, "default/y": 0, "default/z": 0}; !maps.Equal(first, want) {
			b.Errorf("services come in calls %v, want %v", first, want)
		}
		b.inStep()
	})
}

// TestChangesGoBetweenParts: a change that comes while a large service is applied waits for one part, not for all of them; and services that change
// all the time neither delay others nor take all the time.
func TestChangesGoBetweenParts(t *testing.T) {
	const took = time.Millisecond // for a part
	start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
		b.publish(service("small", 0))
		b.after(0)
		cost := func(u *state.Update, shown map[state.ServiceName]*state.Service) (sum time.Duration) {
			if u == nil {
				return 0
			}
			for _, s := range u.Changed {
				sum += time.Duration(1+touched(shown[s.Name], s)) * took / 1000
			}
			return sum
		}
		b.backend.SetLatencyOf(cost)
		b.backend.Calls()
		began := time.Now()
		tenants := []string{"a", "bb", "ccc"}
		for version := 1; version <= 30; version++ {
			if version%3 == 0 { // each of them takes several parts
				for _, ns := range tenants {
					b.publish(large(ns, "large", 60, 50, 0, version/3))
				}
			}
			b.publish(service("small", version))
			b.after(5 * took / 2)
			if shown := b.backend.Shown()[name("small")]; !shown.Equal(service("small", version)) {
				b.Fatalf("%v after its change, version %d is not shown", 5*took/2, version)
			}
			b.after(15 * took / 2)
		}
		whole := time.Since(began)
		spent, shown := map[string]time.Duration{}, map[state.ServiceName]*state.Service{}
		for _, c := range b.backend.Calls() {
			if c.Update == nil {
				continue
			}
			for _, s := range c.Update.Changed {
				spent[s.Name.Namespace] += time.Duration(touched(shown[s.Name], s)) * took / 1000
				shown[s.Name] = s
			}
		}
		for _, ns := range tenants {
			if spent[ns] > whole/4 || spent[ns] == 0 {
				b.Errorf("the service of %s took %v of %v, want a fifth at most", ns, spent[ns], whole)
			}
		}
		b.after(time.Minute)
		b.inStep()
	})
}

// TestLargeServiceFails: what fails in a part is tried again as it is to be, and does not count as applied in part.
func TestLargeServiceFails(t *testing.T) {
	o := backend.RunOptions{MinBackoff: time.Second, MaxBackoff: time.Second, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		next := large("tenant", "large", 100, 50, 0, 1)
		b.publish(service("small", 0))
		b.after(0)
		b.backend.Break(next.Name)
		b.publish(next, service("small", 1))
		b.after(100 * time.Millisecond)
		if s := b.currentStatus(); s.Failed[next.Name] == nil || s.Applied != 2 || !s.Pending.IsZero() {
			b.Errorf("status is %+v, want that the service has failed", s)
		}
		b.backend.Fix(next.Name)
		b.after(2 * time.Second)
		b.inStep()
		if s := b.currentStatus(); len(s.Failed) > 0 {
			b.Errorf("services still fail: %v", s.Failed)
		}
	})
}

// TestRevisionsOfParts: a revision counts as applied once all of it is, and newer changes of other Services do not wait for it.
func TestRevisionsOfParts(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
		b.publish(service("small", 0))
		b.after(0)
		b.backend.SetLatency(time.Millisecond)
		b.publish(large("tenant", "large", 100, 50, 0, 1))
		b.after(5 * time.Millisecond / 2)
		b.publish(service("small", 1))
		b.after(5 * time.Millisecond / 2)
		s := b.currentStatus()
		if s.Applied != 1 || s.Pending.IsZero() {
			b.Errorf("with a part of revision 2 and all of revision 3, status is %+v, want revision 1", s)
		}
		if !b.backend.Shown()[name("small")].Equal(service("small", 1)) {
			b.Error("revision 3 waits for all of revision 2")
		}
		b.after(time.Second)
		if s := b.currentStatus(); s.Applied != 3 || !s.Pending.IsZero() {
			b.Errorf("status is %+v, want revision 3", s)
		}
	})
}

// TestEndlessChanges: a service that changes faster than it can be applied keeps no update waiting, and is as it is to be once it is left alone.
func TestEndlessChanges(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
		b.publish(service("small", 0))
		b.after(0)
		b.backend.SetLatency(200 * time.Millisecond)
		var versions []*state.Service
		for version := range 5 {
			versions = append(versions, large("tenant", "large", 60, 50, 0, version))
		}
		rng := rand.New(rand.NewPCG(1, 1))
		reached := map[string]map[netip.Addr]bool{} // the addresses that ports have had
		var small state.Revision
		for n := range 500 { // for five minutes
			b.publish(versions[rng.IntN(len(versions))])
			b.publish(service("small", n))
			small = b.feed.Revision()
			b.after(600 * time.Millisecond)
			if !b.backend.Shown()[name("small")].Equal(service("small", n)) {
				b.Fatalf("change %d of the small service waits for the large one", n)
			}
			s := b.currentStatus()
			if !s.Pending.IsZero() && time.Since(s.Pending) > 5*time.Second {
				b.Fatalf("an update waits for %v, want that one that is replaced by another does not count", time.Since(s.Pending))
			}
			if s.Applied+10 < small {
				b.Fatalf("revision %d is applied, want about %d", s.Applied, small)
			}
			if shown := b.backend.Shown()[versions[0].Name]; shown != nil {
				for i := range shown.Ports {
					p := &shown.Ports[i]
					if reached[p.Name] == nil {
						reached[p.Name] = map[netip.Addr]bool{}
					}
					reached[p.Name][p.Frontends[0].Addr] = true
				}
			}
		}
		for port, addrs := range reached {
			if len(addrs) < len(versions) {
				b.Errorf("port %s has had %d addresses in all that time", port, len(addrs))
			}
		}
		b.after(10 * time.Second)
		b.inStep()
		if s := b.currentStatus(); s.Applied != b.feed.Revision() || !s.Pending.IsZero() {
			b.Errorf("status is %+v, want revision %d", s, b.feed.Revision())
		}
	})
}

// TestMovesAreBounded: what ports lose whose frontends move to others counts for the part that takes these away.
func TestMovesAreBounded(t *testing.T) {
	before := large("tenant", "before", 2, 50, 190, 0)
	renamed := large("tenant", "before", 2, 50, 0, 0)
	for i := range renamed.Ports {
		renamed.Ports[i].Name = "q" + renamed.Ports[i].Name
	}
	for what, c := range map[string]struct {
		changed *state.Service
		removed []state.ServiceName
	}{
		"to another service": {large("tenant", "other", 2, 50, 0, 0), []state.ServiceName{before.Name}},
		"to other ports":     {changed: renamed},
	} {
		start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
			b.publish(before)
			b.after(0)
			b.backend.Calls()
			b.feed.Publish([]*state.Service{c.changed}, c.removed...)
			b.after(time.Minute)
			b.inStep()
			shown := map[state.ServiceName]*state.Service{before.Name: before}
			for _, call := range b.backend.Calls() {
				n := 0
				for _, s := range call.Update.Changed {
					n += touched(shown[s.Name], s)
					shown[s.Name] = s
				}
				for _, name := range call.Update.Removed {
					n += touched(shown[name], nil)
					delete(shown, name)
				}
				if n > 1_500 {
					b.Errorf("%s: one Apply changes %d entries", what, n)
				}
			}
		})
	}
}

// TestRetriesAreBounded: services that fail are tried again a few at a time, and others change in between.
func TestRetriesAreBounded(t *testing.T) {
	o := backend.RunOptions{MinBackoff: time.Second, MaxBackoff: time.Second, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		b.publish(service("small", 0))
		b.after(0)
		var failing []*state.Service
		for n := range 20 {
			s := large(strings.Repeat("n", n+1), "failing", 12, 50, 0, 1)
			b.backend.Break(s.Name)
			failing = append(failing, s)
		}
		b.publish(failing...)
		b.after(100 * time.Millisecond)
		if s := b.currentStatus(); len(s.Failed) != len(failing) || !s.Pending.IsZero() || s.Applied != 2 {
			b.Fatalf("status is %+v, want that all services have failed", s)
		}
		b.backend.Calls()
		b.backend.SetLatency(10 * time.Millisecond)
		b.after(time.Second)
		b.publish(service("small", 1))
		b.after(150 * time.Millisecond) // a turn of each namespace, in updates of at most two changes that failed
		if !b.backend.Shown()[name("small")].Equal(service("small", 1)) {
			b.Error("a change of another service waits for more than one turn of all that fail")
		}
		if s := b.currentStatus(); !s.Pending.IsZero() {
			b.Errorf("an update waits since %v for services that fail", s.Pending)
		}
		b.after(500 * time.Millisecond)
		tried := map[state.ServiceName]bool{}
		for _, c := range b.backend.Calls() {
			n := 0
			for _, s := range c.Update.Changed {
				tried[s.Name] = true
				n += touched(nil, s)
			}
			if n > 1_700 {
				b.Errorf("one Apply tries %d entries again", n)
			}
		}
		if len(tried) != len(failing)+1 {
			b.Errorf("%d services have changed or were tried again, want %d", len(tried), len(failing)+1)
		}
		for _, s := range failing {
			b.backend.Fix(s.Name)
		}
		b.after(5 * time.Second)
		b.inStep()
	})
}

// busyFeed has another update whenever it is asked, and ends the run in the end.
type busyFeed struct {
	updates []*state.Update
	end     func()
}

func (f *busyFeed) Next(ctx context.Context, after state.Revision) (*state.Update, error) {
	if int(after) == len(f.updates) {
		f.end()
		return nil, ctx.Err()
	}
	return f.updates[after], nil
}

// observer notes what it is asked to apply.
type observer struct {
	backend.None
	apply func(context.Context, *state.Update)
}

func (o observer) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	o.apply(ctx, u)
	return backend.Result{}, nil
}

// TestBusyFeed: a feed that always has more does not keep what it had from being applied, and nothing is applied after the end.
func TestBusyFeed(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	feed := &busyFeed{end: cancel}
	node := &state.Node{Name: "n1"}
	for n := range 100 {
		u := &state.Update{Revision: state.Revision(n + 1), Full: n == 0, Node: node, Changed: []*state.Service{service("small", n)}}
		if n == 99 {
			u.Changed = append(u.Changed, large("tenant", "large", 60, 50, 0, 0))
		}
		feed.updates = append(feed.updates, u)
	}
	applied := 0
	o := observer{apply: func(ctx context.Context, u *state.Update) {
		applied++
		if ctx.Err() != nil {
			t.Errorf("revision %d is applied after the end", u.Revision)
		}
	}}
	if err := backend.Run(ctx, feed, o, backend.RunOptions{}); err != nil {
		t.Fatal(err)
	}
	if applied != len(feed.updates) {
		t.Errorf("%d of %d updates are applied while there are more", applied, len(feed.updates))
	}
}

// TestNewPortIsBounded: a port of many endpoints comes in parts, too.
func TestNewPortIsBounded(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
		b.publish(service("small", 0))
		b.after(0)
		b.backend.Calls()
		b.publish(large("tenant", "large", 1, 1, 16_000, 0))
		b.after(time.Minute)
		b.inStep()
		var shown *state.Service
		for _, c := range b.backend.Calls() {
			if n := touched(shown, c.Update.Changed[0]); n > 1_001 {
				b.Errorf("one Apply adds %d entries", n)
			}
			shown = c.Update.Changed[0]
		}
	})
}
