package ruleset

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// icmp is the number of ICMP for IPv4.
const icmp state.Protocol = 1

// pingClients are clients of each kind: from outside, and from pods.
var pingClients = []netip.Addr{addr("192.0.2.100"), addr("192.0.2.9"), addr("198.51.100.7"), addr("10.244.9.9"), addr("10.244.0.1")}

// pingRecord returns one of two services that have addresses in common, at ports of their own.
func pingRecord(rng *rand.Rand, n int) *state.Service {
	eps := forward(endpointsOf(state.IPv4, 1, 1))
	route := func() state.Route {
		return []state.Route{eps, eps, {Verdict: state.Reject}, {Verdict: state.Drop}}[rng.IntN(4)]
	}
	var frontends []state.Frontend
	for _, a := range []string{"10.96.0.1", "203.0.113.1", "203.0.113.2"} {
		f := state.Frontend{Kind: state.LoadBalancer, Addr: addr(a), Port: uint16(80 + n), Ping: rng.IntN(3) > 0}
		switch {
		case a == "10.96.0.1":
			f.Kind = state.ClusterIP
		case rng.IntN(2) == 0:
			f.Restricted = true
			f.Sources = [][]netip.Prefix{nil, {prefix("192.0.2.100/32")}, {prefix("192.0.2.0/24")}, {prefix("10.0.0.0/8"), prefix("198.51.100.0/25")}}[rng.IntN(4)]
		}
		if rng.IntN(5) > 0 {
			frontends = append(frontends, f)
		}
	}
	if len(frontends) == 0 || rng.IntN(6) == 0 {
		return nil
	}
	p := state.Port{Name: "p", Protocol: state.TCP, Family: state.IPv4, Frontends: frontends}
	for _, t := range []*state.Traffic{&p.Internal, &p.External} {
		t.Inside = route()
		if t.Outside = t.Inside; rng.IntN(2) == 0 {
			t.Outside = route()
		}
	}
	return serviceOf([]string{"a", "b"}[n], p)
}

// wantPing is what happens to an echo request, by the records alone.
func wantPing(services []*state.Service, dst, client netip.Addr) string {
	isPod := prefix("10.244.0.0/16").Contains(client)
	asked, clusterIP := false, false
	for _, s := range services {
		if s == nil {
			continue
		}
		for p, f := range s.Frontends() {
			if f.Addr != dst {
				continue
			}
			clusterIP = clusterIP || f.Kind == state.ClusterIP
			t := &p.External
			if f.Kind == state.ClusterIP {
				t = &p.Internal
			}
			r := &t.Outside
			if isPod {
				r = &t.Inside
			}
			asked = asked || f.Ping
			admits := !f.Restricted || slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(client) })
			if f.Ping && admits && r.Verdict == state.Forward {
				return "answered"
			}
		}
	}
	switch {
	case asked || !clusterIP && prefix("10.96.0.0/16").Contains(dst):
		return "dropped"
	case clusterIP:
		return "rejected"
	}
	return "passed"
}

// pingWorld is two services in a table.
type pingWorld struct {
	services []*state.Service
	contents contents
	rules    map[string]nft.Chain
}

func (w *pingWorld) send(other *pingWorld, at int, dst, client netip.Addr, icmpType byte) (string, *interpreter) {
	in := &interpreter{
		rng: rand.New(rand.NewPCG(1, 1)), before: w.contents, after: other.contents, rules: [2]map[string]nft.Chain{w.rules, other.rules}, commitAt: at,
		src: netip.AddrPortFrom(client, 0), origDst: netip.AddrPortFrom(dst, 0), proto: icmp, icmpType: icmpType,
		local: []netip.Addr{nodeAddr(state.IPv4)}, affinity: map[string]string{}, mark: foreignMark,
	}
	in.dst = in.origDst
	in.outcome = outcome{verdict: "passed"}
	in.call(in.skeleton(), "prerouting")
	return in.outcome.verdict, in
}

// TestPing changes two services with common addresses at random. After each change, an address must answer exactly the clients that a frontend with
// Ping admits and forwards. With the change between any two lookups of a packet, it must answer clients that it answers before and after, and no
// client that it answers neither before nor after.
func TestPing(t *testing.T) {
	o := testSettings(state.IPv4)
	seen := map[string]int{}
	for seed := range uint64(8) {
		rng := rand.New(rand.NewPCG(seed, 7))
		m := NewMirror()
		m.node = testNode
		was := &pingWorld{services: make([]*state.Service, 2), contents: contents{}, rules: rulesOf(o, m)}
		for step := range 9 {
			u := &state.Update{Node: testNode}
			is := &pingWorld{services: slices.Clone(was.services)}
			for n := range is.services {
				if rng.IntN(3) == 0 {
					continue
				}
				s := pingRecord(rng, n)
				switch {
				case s != nil:
					u.Changed = append(u.Changed, s)
				case is.services[n] != nil:
					u.Removed = append(u.Removed, is.services[n].Name)
				}
				is.services[n] = s
			}
			ahead := *was
			p := elementsOnly(m, o, u, m.nodePorts)
			is.contents = was.contents.carriedOut(p)
			if p.lengthens { // the rules are committed first
				grown := *m
				grown.shape = p.shape.clone()
				ahead.rules = rulesOf(o, &grown)
			}
			p.Commit()
			is.rules = rulesOf(o, m)
			checkFull(t, o, is)
			for _, dst := range []string{"10.96.0.1", "203.0.113.1", "203.0.113.2", "10.96.0.9"} {
				for _, client := range pingClients {
					before, after := wantPing(was.services, addr(dst), client), wantPing(is.services, addr(dst), client)
					seen[after]++
					if got, _ := is.send(is, 0, addr(dst), client, 8); got != after {
						t.Fatalf("seed %d step %d: %v to %s: %s, want %s", seed, step, client, dst, got, after)
					}
					if got, _ := is.send(is, 0, addr(dst), client, 13); got == "answered" {
						t.Fatalf("seed %d step %d: %v to %s: a timestamp request is answered", seed, step, client, dst)
					}
					for at, more := 0, true; more; at++ {
						got, in := ahead.send(is, at, addr(dst), client, 8)
						more = in.lookups > at
						is, may := got == "answered", before == "answered" || after == "answered"
						if must := before == "answered" && after == "answered"; is && !may || must && !is {
							t.Errorf("seed %d step %d: %v to %s: %s before lookup %d, want %s or %s", seed, step, client, dst, got, at, before, after)
						}
					}
				}
			}
			was = is
		}
	}
	for _, outcome := range []string{"answered", "dropped", "rejected", "passed"} {
		if seen[outcome] == 0 {
			t.Errorf("no packet was %s", outcome)
		}
	}
}

// checkFull compares what changes have left in a table with a full load.
func checkFull(t *testing.T, o *Settings, w *pingWorld) {
	t.Helper()
	m := NewMirror()
	u := &state.Update{Node: testNode}
	for _, s := range w.services {
		if s != nil {
			u.Changed = append(u.Changed, s)
		}
	}
	full := contents{}.carriedOut(elementsOnly(m, o, u, nil))
	for _, c := range []contents{full, w.contents} {
		maps.DeleteFunc(c, func(_ string, elements map[string]string) bool { return len(elements) == 0 })
	}
	if !maps.EqualFunc(full, w.contents, maps.Equal) {
		t.Fatalf("changes have left %v, and a full load writes %v", w.contents, full)
	}
}

// TestPingUnused: a table whose addresses answer no echo requests has no set, chain or rule for them, and no rule without an address of the
// node. A chain stays then, as all that was ever needed.
func TestPingUnused(t *testing.T) {
	o := testSettings(state.IPv4)
	m := NewMirror()
	m.node = testNode
	s := pingRecord(rand.New(rand.NewPCG(3, 3)), 0)
	for i := range s.Ports[0].Frontends {
		s.Ports[0].Frontends[i].Ping = false
	}
	p := elementsOnly(m, o, &state.Update{Node: testNode, Changed: []*state.Service{s}}, nil)
	p.Commit()
	if m.shape.ping != ([2]pingShape{}) || m.pings != nil || rulesOf(o, m)[chainPing].Name != "" {
		t.Errorf("shape %v, elements %v", m.shape.ping[0].used, m.pings)
	}
	s = pingRecord(rand.New(rand.NewPCG(3, 3)), 0)
	s.Ports[0].Frontends[0].Ping = true
	p = elementsOnly(m, o, &state.Update{Node: testNode, Changed: []*state.Service{s}}, nil)
	p.Commit()
	if rulesOf(o, m)[chainPing].Name == "" || m.shape.ping[1].used {
		t.Error("no chain for IPv4, or one for IPv6")
	}
	m.node = &state.Node{Addresses: []netip.Addr{addr("2001:db8::1")}}
	if rules := rulesOf(o, m); rules[chainPing].Name == "" || len(rules[chainPing].Rules)+len(rules[inside.infix()+chainPing].Rules) > 0 {
		t.Error("no chain, or rules without an address that could answer")
	}
}
