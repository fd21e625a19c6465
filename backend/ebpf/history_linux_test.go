package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

// history is a random history of a pair. A model notes what each half must show.
type history struct {
	*fixture
	rng *rand.Rand
	// wanted is the state, and lost is what the base does not serve as it is to.
	wanted       map[state.ServiceName]*state.Service
	node         *state.Node
	lost, broken map[state.ServiceName]bool
	applied      int
	// reconciler is the reconciler of the pair, and refused is how many services the base has refused.
	reconciler *backend.Reconciler
	refused    int
	// counted is how many connections hooks have taken, if they count.
	counted map[state.FrontendKey]uint64
	// part checks that what the hooks have is in the state before the current update, and in the one after.
	part func()
}

var errRefused = errors.New("the base refuses it")

// TestRandomHistories: at every moment, what the hooks do is a part of what the base does, and after each update it is all that can be.
func TestRandomHistories(t *testing.T) {
	histories := uint64(25)
	if testing.Short() {
		histories = 5
	}
	for seed := range histories {
		h := &history{
			fixture: newFixture(t, func(o *Options) { o.Counters = seed%2 == 1 }), rng: rand.New(rand.NewPCG(seed, 1)), node: &state.Node{Name: "node"},
			wanted: map[state.ServiceName]*state.Service{}, lost: map[state.ServiceName]bool{},
			broken: map[state.ServiceName]bool{}, counted: map[state.FrontendKey]uint64{},
		}
		h.base.before = func(u *state.Update) { h.part = h.partOf(u); h.part() }
		h.base.after = func(*state.Update) { h.part() }
		h.base.SetRefusal(func(s *state.Service) error {
			if s.HealthCheck.LocalIPv4 < 0 {
				return errRefused
			}
			return nil
		})
		h.setAddr(nodeIP, true)
		h.reconciler = backend.NewReconciler(h.Backend)
		if _, err := h.reconciler.Apply(t.Context(), full()); err != nil {
			t.Fatal(err)
		}
		for step := range 60 {
			h.step(step)
			h.checkCounts()
			if t.Failed() {
				t.Fatalf("seed %d, step %d", seed, step)
			}
		}
		if h.applied < 10 || h.refused == 0 {
			t.Errorf("seed %d: %d updates were applied, %d services refused", seed, h.applied, h.refused)
		}
		h.check(h.Close())
	}
}

// shown is what the base does for certain.
func (h *history) shown() map[state.ServiceName]*state.Service {
	all := h.base.Shown()
	for name := range h.lost {
		delete(all, name)
	}
	return all
}

// contentOf is what hooks may do of a state: frontends, and the addresses at which they may serve NodePorts.
func (h *history) contentOf(services map[state.ServiceName]*state.Service, node *state.Node) (content, []netip.Addr) {
	settings := h.settings(node)
	owned := map[netip.Addr]bool{}
	for _, s := range slices.AppendSeq(slices.Collect(maps.Values(h.base.Wanted())), maps.Values(h.base.Shown())) { // also those that are lost
		for _, addr := range plan.Owned(nil, s, settings) {
			owned[addr] = true
		}
	}
	for _, s := range services {
		for _, addr := range plan.Owned(nil, s, settings) {
			owned[addr] = true
		}
	}
	serving := slices.DeleteFunc(slices.Clone(settings.NodePorts), func(a netip.Addr) bool { return owned[a] })
	return planned(settings, slices.Collect(maps.Values(services))...), serving
}

// partOf returns a check for before and after the base's work.
func (h *history) partOf(u *state.Update) func() {
	before, servingBefore := h.contentOf(h.shown(), h.node)
	after, servingAfter := before, servingBefore
	if u != nil {
		next := map[state.ServiceName]*state.Service{}
		if !u.Full {
			next = h.shown()
		}
		for _, s := range u.Changed {
			next[s.Name] = s
		}
		for _, name := range u.Removed {
			delete(next, name)
		}
		after, servingAfter = h.contentOf(next, u.Node)
	}
	return func() {
		for k, v := range h.content() {
			for when, c := range map[string]content{"before": before, "after": after} {
				if !c.covers(k, v) {
					h.t.Errorf("%v leads to %s, and %s the update to %q", k, v, when, c[k])
				}
			}
		}
		for addr := range h.nodePortAddrs() {
			if !slices.Contains(servingAfter, addr) || !slices.Contains(servingBefore, addr) {
				h.t.Errorf("NodePorts are served on %v, and not before and after the update", addr)
			}
		}
	}
}

// covers reports whether a frontend leads to all endpoints, for all clients, to which a route leads.
func (c content) covers(k key, route string) bool {
	mine, ok := c[k]
	if !ok || route[0]&^mine[0] != 0 { // a digit for the clients, and the list
		return false
	}
	endpoints := strings.Fields(mine[3 : len(mine)-1])
	return !slices.ContainsFunc(strings.Fields(route[3:len(route)-1]), func(e string) bool { return !slices.Contains(endpoints, e) })
}

// checkAll: when an update is done, the hooks do all that the base does for certain.
func (h *history) checkAll() {
	want, serving := h.contentOf(h.shown(), h.node)
	if got := h.content(); !reflect.DeepEqual(got, want) {
		h.t.Errorf("maps have\n%v, want\n%v", got, want)
	}
	got := slices.SortedFunc(maps.Keys(h.nodePortAddrs()), netip.Addr.Compare)
	if !slices.Equal(got, serving) {
		h.t.Errorf("NodePorts are served on %v, want %v", got, serving)
	}
	if s := h.Status(); s.State != On || s.Frontends != len(want) {
		h.t.Errorf("status is %+v, want %d frontends", s, len(want))
	}
}

// checkCounts has hooks take connections to some of their frontends, and checks that they count for as long as a record has the frontend.
func (h *history) checkCounts() {
	if !h.o.Counters {
		return
	}
	held := map[state.FrontendKey]bool{}
	for _, e := range h.services.byName {
		for _, s := range []*state.Service{e.record, e.had} {
			for p, f := range s.Frontends() {
				held[p.Key(f)] = true
			}
		}
	}
	maps.DeleteFunc(h.counted, func(k state.FrontendKey, _ uint64) bool { return !held[k] })
	for k := range h.content() {
		key := state.FrontendKey{Family: k.family, Protocol: state.TCP, Addr: k.Addr, Port: k.Port}
		if h.rng.IntN(2) == 0 {
			h.takes(h.hooks.programs.Maps[fmt.Sprintf("counts%d", k.family)], key, 1)
			h.counted[key]++
		}
	}
	keys := slices.Collect(maps.Keys(held))
	counts, err := h.Counts(keys)
	h.check(err)
	for i, key := range keys {
		if counts[i].Connections != h.counted[key] {
			h.t.Errorf("%v has counted %d connections, want %d", key, counts[i].Connections, h.counted[key])
		}
	}
}

func (h *history) step(step int) {
	h.base.SetFailureRate([]float64{0, 0, 0.5}[h.rng.IntN(3)])
	switch h.rng.IntN(10) {
	case 0:
		h.setAddr(netip.AddrFrom4([4]byte{10, 96, 0, byte(h.rng.IntN(4))}), true)
	case 1:
		for _, addr := range h.addrs.Addrs() {
			if addr.Is4() && addr.As4()[0] == 10 {
				h.setAddr(addr, false)
				break
			}
		}
	case 2, 3:
		name := nameOf(h.rng.IntN(8))
		if h.broken[name] {
			h.base.Fix(name)
		} else {
			h.base.Break(name)
		}
		h.broken[name] = !h.broken[name]
	}
	if h.rng.IntN(4) == 0 {
		r, err := h.Verify(context.Background())
		if err == nil {
			clear(h.lost)
			for name := range r.Failed {
				h.lost[name] = true
			}
			h.checkAll()
		} else if !errors.Is(err, backendtest.ErrInjected) {
			h.t.Error(err)
		}
		return
	}
	u := h.change()
	r, err := h.reconciler.Apply(context.Background(), u)
	if err != nil {
		if !errors.Is(err, backendtest.ErrInjected) {
			h.t.Error(err)
		}
		h.part()
		return
	}
	h.applied++
	h.node = u.Node
	about := names(u)
	for name := range h.base.Shown() {
		if u.Full {
			about[name] = true
		}
	}
	for name := range about {
		if !errors.Is(r.Failed[name], errRefused) {
			delete(h.lost, name)
		}
	}
	for name, err := range r.Failed {
		if errors.Is(err, errRefused) {
			h.refused++
		} else {
			h.lost[name] = true
		}
	}
	h.checkAll()
}

// change makes an update. No two services of a state have the same frontend.
func (h *history) change() *state.Update {
	u := delta()
	node := *h.node
	u.Node = &node
	switch h.rng.IntN(8) {
	case 0:
		node.LocalDetector = []*state.LocalDetector{nil, {}, {NodeCIDR: true}, {InterfacePrefix: "veth"}, &byCIDR}[h.rng.IntN(5)]
	case 1:
		node.PodCIDRs = []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	case 2:
		node.NodePorts = []*state.NodePortAddresses{nil, {CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}}, {CIDRs: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}}[h.rng.IntN(3)]
	}
	changed := map[state.ServiceName]bool{}
	for range h.rng.IntN(4) {
		name := nameOf(h.rng.IntN(8))
		if changed[name] {
			continue
		}
		changed[name] = true
		if h.wanted[name] != nil && h.rng.IntN(4) == 0 {
			delete(h.wanted, name)
			u.Removed = append(u.Removed, name)
			continue
		}
		delete(h.wanted, name)
		if s := h.random(name); s != nil {
			h.wanted[name] = s
			u.Changed = append(u.Changed, s)
		} else {
			u.Removed = append(u.Removed, name)
		}
	}
	// What the base has not taken comes again, as Run does it.
	for name := range h.wanted {
		if !changed[name] && (h.base.Shown()[name] == nil || !h.base.Shown()[name].Equal(h.wanted[name])) {
			u.Changed = append(u.Changed, h.wanted[name])
		}
	}
	for name := range h.base.Shown() {
		if !changed[name] && h.wanted[name] == nil {
			u.Removed = append(u.Removed, name)
		}
	}
	if h.rng.IntN(10) == 0 {
		u.Full, u.Changed, u.Removed = true, slices.Collect(maps.Values(h.wanted)), nil
	}
	slices.SortFunc(u.Changed, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	slices.SortFunc(u.Removed, state.ServiceName.Compare)
	return u
}

// random returns a service with frontends that no other one has, nil if there are none.
func (h *history) random(name state.ServiceName) *state.Service {
	taken := map[state.FrontendKey]bool{}
	for _, s := range h.wanted {
		for i := range s.Ports {
			for j := range s.Ports[i].Frontends {
				taken[s.Ports[i].Key(&s.Ports[i].Frontends[j])] = true
			}
		}
	}
	s := &state.Service{Name: name}
	if h.rng.IntN(8) == 0 {
		s.HealthCheck.LocalIPv4 = -1 // the base refuses it
	}
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		p := state.Port{Name: "a", Protocol: state.TCP, Family: family, Affinity: 0}
		for range 1 + h.rng.IntN(4) {
			n := byte(h.rng.IntN(6))
			f := state.Frontend{Kind: state.FrontendKind(1 + h.rng.IntN(4)), Port: 80}
			switch {
			case f.Kind == state.NodePort:
				f.Port = 30000 + uint16(n)
			case family == state.IPv6:
				f.Addr = netip.AddrFrom16([16]byte{0xfd, 14: byte(f.Kind) / 3, 15: n})
			case f.Kind == state.LoadBalancer && n == 0:
				f.Addr, f.Port = nodeIP, 30001
			default: // an external IP may be another one's cluster IP, at another time
				f.Addr = netip.AddrFrom4([4]byte{10, 96, 0, n})
			}
			f.Restricted = f.Kind == state.LoadBalancer && h.rng.IntN(3) == 0
			if k := p.Key(&f); !taken[k] {
				taken[k] = true
				p.Frontends = append(p.Frontends, f)
			}
		}
		if len(p.Frontends) == 0 {
			continue
		}
		slices.SortFunc(p.Frontends, state.Frontend.Compare)
		if h.rng.IntN(8) == 0 {
			p.Affinity = 1
		}
		for _, t := range []*state.Traffic{&p.Internal, &p.External} {
			var endpoints []int
			for n := range h.rng.IntN(4) {
				endpoints = append(endpoints, 10*n+h.rng.IntN(5))
			}
			t.Inside, t.Masquerade = forward(family, endpoints...), state.Masquerade(h.rng.IntN(4))
			if t.Outside = t.Inside; h.rng.IntN(3) == 0 {
				t.Outside = forward(family)
			}
		}
		s.Ports = append(s.Ports, p)
	}
	if len(s.Ports) == 0 {
		return nil
	}
	return s
}
