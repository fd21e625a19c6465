package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// TestHistoryDoesNotMatter plays random histories. At the end of each, three states must be equal: the state of a
// consumer that took updates at random times, the snapshot, and the state of a new store that gets the final objects in
// one Update.
func TestHistoryDoesNotMatter(t *testing.T) {
	for seed := range randcluster.Seeds(100, 4000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		s := New(Options{Brain: brain.Config{NodeName: "n1", Edge: randomEdge(rng)}})
		defer s.Close()
		sink := s.Source("test")
		s.objects.edge.pause = 0
		s.feed.SetLimit(1 + rng.IntN(20))
		objects := make(map[model.Ref]model.Object)
		held := replica{}
		completeAt := rng.IntN(10)
		for step := range 80 {
			set, deleted := randomUpdate(rng, objects)
			sink.Update(set, deleted)
			if step == completeAt {
				sink.Complete()
			}
			if rng.IntN(10) == 0 {
				cfg, budgets := randomBudgets(rng)
				cfg.MasqueradeAll = rng.IntN(2) == 0
				cfg.LocalDetector, cfg.NodePorts.Primary = state.LocalDetector{NodeCIDR: rng.IntN(2) == 0}, rng.IntN(2) == 0
				cfg.NodeHealth, cfg.Edge = randomNodeHealth(rng), randomEdge(rng)
				s.Reconfigure(cfg, budgets)
			}
			if before := held.revision; rng.IntN(3) == 0 && s.Snapshot().Revision() > before {
				held.apply(t, s)
			}
			if snapshot := s.Snapshot(); step%20 == 19 {
				noFrontendTwice(t, snapshot)
			}
		}
		if s.Snapshot().Revision() > held.revision {
			held.apply(t, s)
		}

		all := slices.Collect(maps.Values(objects))
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		fresh := New(Options{Brain: s.brain, Budgets: s.ledger.budgets})
		defer fresh.Close()
		freshSink := fresh.Source("test")
		freshSink.Update(all, nil)
		freshSink.Complete()

		want := fresh.Snapshot()
		if err := sameStates(held.services, held.node, want); err != nil {
			t.Fatalf("seed %d: a consumer of the updates is not where a fresh store is: %v", seed, err)
		}
		taken := make(map[state.ServiceName]*state.Service)
		for r := range s.Snapshot().Services() {
			taken[r.Name] = r
		}
		if err := sameStates(taken, s.Snapshot().Node(), want); err != nil {
			t.Fatalf("seed %d: the snapshot is not that of a fresh store: %v", seed, err)
		}
		if was, is := s.problems.of, fresh.problems.of; !maps.EqualFunc(was, is, slices.Equal) {
			t.Fatalf("seed %d: the problems are\n%v\nthose of a fresh store\n%v", seed, was, is)
		}
	}
}

// randomNodeHealth returns a rule that is off, or for which the small cluster has too many unready Nodes or not.
func randomNodeHealth(rng *rand.Rand) brain.NodeHealth {
	return brain.NodeHealth{Enabled: rng.IntN(3) > 0, NotReadyAfter: time.Minute, IgnoreAbove: []int{40, 50, 100}[rng.IntN(3)]}
}

// randomEdge returns a rule that is off, or takes some services.
func randomEdge(rng *rand.Rand) brain.Edge {
	return brain.Edge{Enabled: rng.IntN(2) == 0, Annotated: rng.IntN(4) == 0, Kinds: []state.FrontendKinds{0, state.KindsOf(state.NodePort)}[rng.IntN(2)]}
}

// TestReconfigure publishes what another configuration makes different, and nothing else.
func TestReconfigure(t *testing.T) {
	s, sink := newStore(t)
	set(t, sink, "service ns/a 10.0.0.1:80; slice ns/a-1 a 10.1.0.1; namespace off disabled; service off/b 10.0.0.2:80")
	s.Reconfigure(brain.Config{MasqueradeAll: true}, Budgets{})
	if r := s.Snapshot().Revision(); r != 0 {
		t.Fatalf("revision %d was published before the source is complete", r)
	}
	sink.Complete()
	masqueraded := func() bool {
		return s.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: "a"}).Ports[0].Internal.Masquerade == state.MasqueradeAlways
	}
	if !masqueraded() {
		t.Error("what was configured before the first state does not count")
	}
	for _, step := range []struct {
		c       brain.Config
		changed bool
	}{
		{brain.Config{MasqueradeAll: true, NodeName: "other"}, false},
		{brain.Config{}, true},
		{brain.Config{MasqueradeAll: true}, true},
		{brain.Config{MasqueradeAll: true, Ping: true}, true},
		{brain.Config{MasqueradeAll: true}, true},
	} {
		before := s.Snapshot().Revision()
		s.Reconfigure(step.c, Budgets{})
		if changed := s.Snapshot().Revision() != before; changed != step.changed {
			t.Fatalf("%+v: published is %v, want %v", step.c, changed, step.changed)
		}
		if masqueraded() != step.c.MasqueradeAll {
			t.Errorf("%+v: masqueraded is %v", step.c, masqueraded())
		}
		if f := s.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: "a"}).Ports[0].Frontends[0]; f.Ping != step.c.Ping {
			t.Errorf("%+v: answers echo requests: %v", step.c, f.Ping)
		}
		if !step.changed {
			continue
		}
		if u, err := s.Next(t.Context(), before); err != nil || u.Full || len(u.Changed) != 1 {
			t.Errorf("%+v: the update is %+v, %v, want one of the service a alone", step.c, u, err)
		}
	}
	if s.Snapshot().Node().Name != "n1" {
		t.Error("the store is another node's")
	}
}

// TestNothingIsLeft deletes everything after random histories, and the store must then be empty.
func TestNothingIsLeft(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 3))
		s := New(Options{Brain: brain.Config{NodeName: "n1", Edge: brain.Edge{Enabled: true}}})
		defer s.Close()
		sink := s.Source("test")
		sink.Complete()
		objects := make(map[model.Ref]model.Object)
		for range 50 {
			set, deleted := randomUpdate(rng, objects)
			for _, obj := range set {
				if svc, ok := obj.(*model.Service); ok && rng.IntN(2) == 0 {
					svc.Annotations = append(svc.Annotations, model.Annotation{Name: model.SlowStartAnnotation, Value: "1h"})
				}
			}
			sink.Update(set, deleted)
		}
		sink.Update(nil, slices.Collect(maps.Keys(objects)))
		if n := s.Snapshot().Len(); n > 0 {
			t.Errorf("seed %d: %d services are still published", seed, n)
		}
		s.mu.Lock() // who takes part in the edge may be judged at any time
		o, a := &s.objects, &s.arbiter
		if n := len(o.namespaces) + len(o.serviceCIDRs) + len(o.dirty) + len(a.sole) + len(a.contested) +
			len(o.addresses.of) + len(o.addresses.nodes) + len(o.addresses.externals) + len(s.own) + len(s.problems.of) + len(s.ledger.accounts) + len(s.excess) +
			s.ramps.followed + len(s.ramps.byNamespace) + len(s.ramps.queue) + len(o.places) + len(o.edge.known) + len(o.edge.faults) + o.edge.bytes; n > 0 {
			t.Errorf("seed %d: left over: %v %v %v %v", seed, o, a, s.own, s.problems.of)
		}
		s.mu.Unlock()
	}
}

// replica is what a consumer has after applying updates.
type replica struct {
	revision state.Revision
	node     *state.Node
	services map[state.ServiceName]*state.Service
}

// apply takes the next update and reports whether there was one.
func (r *replica) apply(t *testing.T, feed state.Feed) bool {
	u, err := feed.Next(t.Context(), r.revision)
	if err != nil {
		t.Errorf("no update: %v", err)
		return false
	}
	if u.Revision <= r.revision {
		t.Errorf("revision %d came after %d", u.Revision, r.revision)
	}
	if u.Full || r.services == nil {
		r.services = make(map[state.ServiceName]*state.Service)
	}
	if !slices.IsSortedFunc(u.Changed, func(a, b *state.Service) int { return a.Name.Compare(b.Name) }) ||
		!slices.IsSortedFunc(u.Removed, state.ServiceName.Compare) {
		t.Errorf("an update is not ordered by name: %+v", u)
	}
	for _, s := range u.Changed {
		r.services[s.Name] = s
	}
	for _, name := range u.Removed {
		delete(r.services, name)
	}
	r.revision, r.node = u.Revision, u.Node
	return true
}

func sameStates(got map[state.ServiceName]*state.Service, node *state.Node, want *Snapshot) error {
	if !node.Equal(want.Node()) {
		return fmt.Errorf("node %+v, want %+v", node, want.Node())
	}
	if len(got) != want.Len() {
		return fmt.Errorf("%d services, want %d", len(got), want.Len())
	}
	for r := range want.Services() {
		if have := got[r.Name]; have == nil || !have.Equal(r) {
			return fmt.Errorf("record %+v, want %+v", have, r)
		}
	}
	return nil
}

func noFrontendTwice(t *testing.T, s *Snapshot) {
	holders := make(map[state.FrontendKey]state.ServiceName)
	for r := range s.Services() {
		eachClaim(r, func(c state.FrontendKey, _ state.FrontendKind) {
			if other, ok := holders[c]; ok && other != r.Name {
				t.Errorf("%v is held by %v and %v", c, other, r.Name)
			}
			holders[c] = r.Name
		})
	}
}

// randomUpdate changes a few objects of a small cluster in which everything gets in each other's way.
func randomUpdate(rng *rand.Rand, objects map[model.Ref]model.Object) (set []model.Object, deleted []model.Ref) {
	for range 1 + rng.IntN(4) {
		obj := randomObject(rng)
		ref := obj.Ref()
		if slices.ContainsFunc(set, func(o model.Object) bool { return o.Ref() == ref }) {
			continue
		}
		if rng.IntN(4) == 0 {
			deleted = append(deleted, ref)
			delete(objects, ref)
		} else if !slices.Contains(deleted, ref) {
			set = append(set, obj)
			objects[ref] = obj
		}
	}
	return set, deleted
}

func randomObject(rng *rand.Rand) model.Object {
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	namespace := pick("default", "dev")
	switch rng.IntN(12) {
	case 0:
		return &model.Namespace{Name: namespace, ProxyDisabled: rng.IntN(2) == 0}
	case 1:
		n := &model.Node{Name: pick("n1", "n1", "n2"), Zone: pick("", "z1", "z2"), Addresses: []netip.Addr{netip.MustParseAddr(pick("192.0.2.1", "192.0.2.2"))}}
		if n.Health = []model.NodeHealth{model.NodeReady, model.NodeNotReady, model.NodeShuttingDown}[rng.IntN(3)]; n.Health != model.NodeReady {
			n.HealthSince = time.Unix(1e9, 0).UTC()
		}
		n.Edge = pick("v1,7635", "v1,7635", "v1,7636", "", "v2,7635")
		return n
	case 2:
		return &model.ServiceCIDR{Name: pick("a", "b"), CIDRs: []netip.Prefix{netip.MustParsePrefix(pick("10.96.0.0/16", "10.97.0.0/16"))}}
	case 3, 4, 5, 6:
		s := &model.Service{
			Name:         state.ServiceName{Namespace: namespace, Name: pick("a", "b", "c")},
			Type:         model.ServiceType(rng.IntN(4)),
			Headless:     rng.IntN(10) == 0,
			HasProxyName: rng.IntN(10) == 0,
			ClusterIPs:   []netip.Addr{netip.MustParseAddr(pick("10.96.0.1", "10.96.0.2", "192.0.2.9"))},
			ExternalIPs:  []netip.Addr{netip.MustParseAddr(pick("192.0.2.8", "192.0.2.9"))},
			Ports:        []model.ServicePort{{Protocol: []state.Protocol{state.TCP, state.UDP}[rng.IntN(2)], Port: 80, NodePort: uint16(30000 + rng.IntN(2))}},
		}
		s.HealthCheckNodePort = uint16(30000 + rng.IntN(3))
		s.InternalLocal, s.ExternalLocal = rng.IntN(4) == 0, rng.IntN(4) == 0
		if value := pick("", "", "a=10-20", "a=15-30/UDP,b=70-90/TCP", "all=*", "none"); value != "" {
			s.Annotations = []model.Annotation{{Name: model.PortRangesAnnotation, Value: value}}
			s.LoadBalancerIPs = []netip.Addr{netip.MustParseAddr(pick("192.0.2.1", "192.0.2.8"))}
		}
		if rng.IntN(3) == 0 {
			s.Annotations = append(s.Annotations, model.Annotation{Name: model.ZoneWeightsAnnotation, Value: pick("same=4,other=1", "same=1,other=0")})
		}
		if rng.IntN(3) == 0 {
			s.Annotations = append(s.Annotations, model.Annotation{Name: model.EdgeAnnotation, Value: pick("true", "true", "false", "yes")})
		}
		return s
	}
	slice := &model.EndpointSlice{
		Namespace: namespace, Name: pick("s", "t", "u", "v"), Service: pick("", "a", "b", "c"), Headless: rng.IntN(10) == 0, HasProxyName: rng.IntN(20) == 0,
		Family: []state.Family{state.IPv4, state.IPv4, state.IPv4, state.IPv6, 0}[rng.IntN(5)],
		Ports:  []model.EndpointPort{{Protocol: state.TCP, Port: 8080}, {Protocol: state.UDP, Port: 8080}},
	}
	for range rng.IntN(4) {
		addr := pick("10.0.0.1", "10.0.0.2", "10.0.0.3")
		if slice.Family == state.IPv6 {
			addr = pick("fd00::1", "fd00::2")
		}
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{
			Addr: netip.MustParseAddr(addr), NodeName: pick("n1", "n2"), Zone: pick("z1", "z2"), ZoneHints: []string{pick("z1", "z2")},
			Ready: rng.IntN(3) > 0, Serving: rng.IntN(3) > 0, Terminating: rng.IntN(3) == 0,
		})
	}
	return slice
}
