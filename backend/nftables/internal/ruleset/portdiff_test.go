package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// anyRecord returns a record of a few ports, near to the one that a service had: most of it is the same memory.
func anyRecord(rng *rand.Rand, previous *state.Service, name string, number int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}}
	for i := range 3 {
		portName := fmt.Sprintf("p%d", i)
		var was *state.Port
		if previous != nil {
			if at := slices.IndexFunc(previous.Ports, func(p state.Port) bool { return p.Name == portName }); at >= 0 {
				was = &previous.Ports[at]
			}
		}
		switch {
		case rng.IntN(8) == 0:
			continue
		case was != nil && rng.IntN(3) > 0:
			s.Ports = append(s.Ports, *was)
		default:
			s.Ports = append(s.Ports, anyPort(rng, was, portName, number, i))
		}
	}
	if len(s.Ports) == 0 {
		return nil
	}
	return s
}

func anyPort(rng *rand.Rand, was *state.Port, name string, number, i int) state.Port {
	p := state.Port{Name: name, Protocol: state.TCP, Family: state.IPv4}
	isRange := i == 2
	if was != nil {
		p = *was
	}
	if was == nil || rng.IntN(3) == 0 {
		p.Frontends = []state.Frontend{{Kind: state.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, 96, byte(number), 1}), Port: uint16(80 + i)}}
		p.Frontends[0].Ping = rng.IntN(3) == 0
		for n := range 4 {
			f := state.Frontend{Kind: state.ExternalIP, Addr: netip.AddrFrom4([4]byte{203, 0, byte(number), byte(n)}), Port: uint16(80 + i)}
			if rng.IntN(6) == 0 {
				f.Kind, f.Restricted, f.Sources = state.LoadBalancer, true, []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(rng.IntN(2))}), 32)}
			}
			f.Ping = rng.IntN(3) == 0
			if rng.IntN(3) > 0 {
				p.Frontends = append(p.Frontends, f)
			}
		}
		if isRange {
			first := uint16(1000 + rng.IntN(3))
			for i := range p.Frontends {
				p.Frontends[i].Port, p.Frontends[i].LastPort = first, first+1+uint16(rng.IntN(40))
			}
		}
		slices.SortFunc(p.Frontends, state.Frontend.Compare)
	}
	eps := endpointsOf(state.IPv4, 0, 40)
	pick := func(r state.Route) state.Route {
		var out []state.Endpoint
		share := []int{0, 2, 20, 39}[rng.IntN(4)]
		if len(r.Endpoints) > 0 && rng.IntN(3) > 0 { // near to what it was
			out = slices.Clone(r.Endpoints)
			out = slices.Delete(out, len(out)/2, len(out)/2+1)
			share = min(len(out)+rng.IntN(3), 39)
		}
		for len(out) < share {
			e := eps[rng.IntN(len(eps))]
			e.Local = rng.IntN(10) == 0
			if !slices.ContainsFunc(out, func(o state.Endpoint) bool { return o.Addr == e.Addr }) {
				out = append(out, e)
			}
		}
		slices.SortFunc(out, state.Endpoint.Compare)
		if len(out) > 0 && rng.IntN(3) == 0 {
			return anyRoute(rng, state.Route{Endpoints: out}, 40)
		}
		if len(out) == 0 {
			return state.Route{Verdict: []state.Verdict{state.Reject, state.Drop}[rng.IntN(2)]}
		}
		return state.Route{Verdict: state.Forward, Endpoints: out}
	}
	if isRange {
		pick = withoutPorts(pick)
	}
	for _, t := range []*state.Traffic{&p.Internal, &p.External} {
		if was != nil && rng.IntN(2) == 0 {
			continue
		}
		t.Inside = pick(t.Inside)
		t.Outside = t.Inside
		t.Masquerade = state.MasqueradeAlways
		if rng.IntN(4) == 0 {
			t.Outside, t.Masquerade = pick(t.Outside), state.MasqueradeNode
		}
	}
	if rng.IntN(16) == 0 {
		p.Balance = state.Balance(rng.IntN(3))
	}
	if rng.IntN(8) == 0 {
		p.Affinity = time.Duration(rng.IntN(2)) * time.Hour
	}
	switch {
	case isRange || p.Affinity > 0 || p.Balance != state.Random || rng.IntN(4) == 0:
		p.Edge = nil
	case p.Edge == nil || rng.IntN(2) == 0:
		e := state.Edge{Local: state.Route{Verdict: state.Drop}}
		if p.Edge != nil {
			e.Local = p.Edge.Local
		}
		if rng.IntN(2) == 0 {
			e.Local = pick(e.Local)
			e.Local.Refused = 0
		}
		if rng.IntN(3) == 0 {
			e.Except = state.KindsOf(state.LoadBalancer)
		}
		if rng.IntN(2) == 0 {
			e.Shares = []state.EdgeShare{{Node: 1, Weight: uint32(1 + rng.IntN(3))}}
		}
		p.Edge = &e
	}
	return p
}

// withoutPorts takes the ports out of the endpoints of routes, as ranges have them.
func withoutPorts(pick func(state.Route) state.Route) func(state.Route) state.Route {
	return func(r state.Route) state.Route {
		r = pick(r)
		r.Endpoints = slices.Clone(r.Endpoints)
		for i := range r.Endpoints {
			r.Endpoints[i].Addr = netip.AddrPortFrom(r.Endpoints[i].Addr.Addr(), 0)
		}
		slices.SortFunc(r.Endpoints, state.Endpoint.Compare)
		r.Endpoints = slices.CompactFunc(r.Endpoints, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
		return r
	}
}

// TestChangesAddUp: what changes write, one after the other, is what the records are as a whole, and nothing is deleted that is not there, or added
// that is.
func TestChangesAddUp(t *testing.T) {
	seeds := uint64(60)
	if testing.Short() {
		seeds = 6
	}
	for seed := range seeds {
		rng := rand.New(rand.NewPCG(seed, 1))
		settings := withTestEdge(testSettings(state.IPv4))
		m := NewMirror()
		held := map[elementKey][maxData]byte{}
		for step := range 60 {
			u := &state.Update{Node: testNode}
			for n, name := range []string{"a", "b"} {
				s := anyRecord(rng, m.Record(state.ServiceName{Namespace: "default", Name: name}), name, n)
				if s == nil {
					u.Removed = append(u.Removed, state.ServiceName{Namespace: "default", Name: name})
				} else {
					u.Changed = append(u.Changed, s)
				}
			}
			p := elementsOnly(m, settings, u, nil)
			for _, s := range p.order {
				for e := range s.all(&s.del) {
					if had, ok := held[e.id()]; !ok || had != e.data {
						t.Fatalf("seed %d step %d: element %v is deleted, but there is %v", seed, step, e, had)
					}
					delete(held, e.id())
				}
			}
			for _, s := range p.order {
				for e := range s.all(&s.add) {
					if _, ok := held[e.id()]; ok {
						t.Fatalf("seed %d step %d: element %v is added, but it is there", seed, step, e)
					}
					held[e.id()] = e.data
				}
			}
			m = p.Commit()
			if step%5 != 4 { // what is wrong stays, or is found when a later step deletes or adds it
				continue
			}
			want := make(map[elementKey][maxData]byte, len(held))
			r := renderer{settings: settings, shape: &m.shape}
			for _, a := range m.services {
				r.whole(&a)
			}
			for _, e := range r.own {
				want[e.id()] = e.data
			}
			for _, k := range r.shared {
				e := k.element()
				want[e.id()] = e.data
			}
			for _, k := range r.pings {
				want[k] = [maxData]byte{}
			}
			if !maps.Equal(held, want) {
				t.Fatalf("seed %d step %d: the tables hold %d elements, want %d", seed, step, len(held), len(want))
			}
		}
	}
}

// TestChangeOfOneEndpoint: a change of one endpoint in all ports of a large service looks at the slots that it changes, not at all others.
func TestChangeOfOneEndpoint(t *testing.T) {
	for _, affinity := range []time.Duration{0, time.Hour} {
		changeOneEndpoint(t, affinity)
	}
}

func changeOneEndpoint(t *testing.T, affinity time.Duration) {
	const ports, endpoints = 10, 1_000
	service := func(last int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "large"}}
		for i := range ports {
			eps := append(endpointsOf(state.IPv4, 0, endpoints-1), endpointsOf(state.IPv4, 0, last)[last-1])
			p := recordPort(i, eps)
			p.Affinity = affinity
			s.Ports = append(s.Ports, p)
		}
		return s
	}
	m := NewMirror()
	m = elementsOnly(m, testSettings(), delta(service(endpoints)), nil).Commit()
	p := elementsOnly(m, testSettings(), delta(service(endpoints+1)), nil)
	if n := len(p.old.own) + len(p.new.own) + len(p.old.shared) + len(p.new.shared); n > 20*ports {
		t.Errorf("%d elements are looked at, want some for each of %d ports", n, ports)
	}
	for _, s := range p.order {
		if n := s.del.n + s.add.n; n > 4*ports {
			t.Errorf("%d elements of %s are written, want a few for each of %d ports", n, s.set.name(), ports)
		}
	}
}

// TestChangeOfOneRange: a change of one range of a service looks at no endpoint, and goes along the list of ranges only.
func TestChangeOfOneRange(t *testing.T) {
	const endpoints, ranges = 1_000, 100
	service := func(last int) *state.Service {
		var sources []netip.Prefix
		for i := range ranges {
			if i == ranges-1 {
				i = last
			}
			sources = append(sources, netip.PrefixFrom(netip.AddrFrom4([4]byte{20, 0, byte(i), 0}), 24))
		}
		s := restrictedService("restricted", sources)
		s.Ports[0].Internal = state.Traffic{Inside: forward(endpointsOf(state.IPv4, 0, endpoints))}
		s.Ports[0].External = s.Ports[0].Internal
		return s
	}
	m := elementsOnly(NewMirror(), testSettings(), delta(service(ranges)), nil).Commit()
	p := elementsOnly(m, testSettings(), delta(service(ranges+1)), nil)
	if n := len(p.old.own) + len(p.new.own); n > 4 {
		t.Errorf("%d elements beside ranges are looked at, want those of the list's number", n)
	}
	for _, s := range p.order {
		if s.set.kind != allowed || s.del.n != 1 || s.add.n != 1 {
			t.Errorf("in %s, %d elements are deleted and %d added, want one range each", s.set.name(), s.del.n, s.add.n)
		}
	}
	if len(p.order) != 1 {
		t.Errorf("%d sets change, want 1", len(p.order))
	}
}

func recordPort(i int, eps []state.Endpoint) state.Port {
	p := state.Port{
		Name: fmt.Sprintf("p%02d", i), Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr("10.96.0.1"), Port: uint16(i + 1)}},
		Internal:  state.Traffic{Inside: forward(eps), Outside: forward(eps)},
	}
	return p
}

// TestReplaceFew: it places as place does.
func TestReplaceFew(t *testing.T) {
	taken := 0
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		list := func(part int) (eps []state.Endpoint) {
			for n := range 60 {
				if rng.IntN(60) < part {
					eps = append(eps, numbered(n))
				}
			}
			return eps
		}
		from := list(1 + rng.IntN(60))
		to := slices.Clone(from)
		for range rng.IntN(6) {
			if len(to) > 0 && rng.IntN(2) == 0 {
				at := rng.IntN(len(to))
				to = slices.Delete(to, at, at+1)
			} else if e := numbered(rng.IntN(80)); !slices.Contains(to, e) {
				to = append(to, e)
			}
		}
		slices.SortFunc(to, state.Endpoint.Compare)
		old := placeRoute(placeRoute(nil, &state.Route{Endpoints: list(30)}), &state.Route{Endpoints: from})
		before := slices.Clone(old)
		var targets []target
		for _, e := range to {
			targets = append(targets, target{e, 1})
		}
		got, ok := replaceFew(old, from, to)
		if !slices.Equal(old, before) {
			t.Fatalf("seed %d: it changed its argument", seed)
		}
		if !ok {
			continue
		}
		taken++
		if want := place(old, targets); !slices.Equal(got, want) {
			t.Fatalf("seed %d: got %v\nwant %v", seed, got, want)
		}
	}
	if taken < 500 {
		t.Errorf("only %d of the cases are of few changes", taken)
	}
}
