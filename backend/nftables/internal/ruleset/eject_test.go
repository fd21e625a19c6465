//go:build linux

package ruleset

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// ejecting makes the ports of a service eject silent endpoints.
func ejecting(s *state.Service) *state.Service {
	for i := range s.Ports {
		s.Ports[i].Ejection = true
	}
	return s
}

// ejected are endpoints with these numbers, of the only port of a service.
func ejected(s *state.Service, numbers ...int) *Ejected {
	var list []PortEndpoint
	for _, n := range numbers {
		list = append(list, PortEndpoint{s.Name, s.Ports[0].Name, endpointsOf(s.Ports[0].Family, n, 1)[0].Addr})
	}
	return NewEjected(list...)
}

// TestEjectedRoutes shows which endpoints leave which routes.
func TestEjectedRoutes(t *testing.T) {
	eps := func(n, count int) []state.Endpoint { return endpointsOf(state.IPv4, n, count) }
	one := func() *state.Service { return ejecting(serviceOf("web", tcpPort(1, eps(1, 3), eps(1, 1)))) }
	web := one()
	routes := func(s *state.Service) (internal, external []state.Endpoint) {
		return s.Ports[0].Internal.Inside.Endpoints, s.Ports[0].External.Outside.Endpoints
	}
	for name, c := range map[string]struct {
		service            *state.Service
		ejected            *Ejected
		internal, external []state.Endpoint
	}{
		"none is ejected":                      {one(), nil, eps(1, 3), eps(1, 1)},
		"one leaves":                           {one(), ejected(web, 2), slices.Concat(eps(1, 1), eps(3, 1)), eps(1, 1)},
		"one leaves, but for where it is last": {one(), ejected(web, 1), eps(2, 2), eps(1, 1)},
		"all are silent, and all stay":         {one(), ejected(web, 1, 2, 3), eps(1, 3), eps(1, 1)},
		"one that is no endpoint":              {one(), ejected(web, 9), eps(1, 3), eps(1, 1)},
		"not of this port":                     {one(), NewEjected(PortEndpoint{web.Name, "other", eps(2, 1)[0].Addr}), eps(1, 3), eps(1, 1)},
		"not of this service":                  {one(), ejected(serviceOf("other", tcpPort(1, nil, nil)), 2), eps(1, 3), eps(1, 1)},
		"the port does not eject":              {serviceOf("web", tcpPort(1, eps(1, 3), eps(1, 1))), ejected(web, 2), eps(1, 3), eps(1, 1)},
		"the port is not of TCP": {func() *state.Service {
			s := one()
			s.Ports[0].Protocol = state.UDP
			return s
		}(), ejected(web, 2), eps(1, 3), eps(1, 1)},
	} {
		left := c.ejected.Without(c.service)
		internal, external := routes(left)
		if !slices.Equal(internal, c.internal) || !slices.Equal(external, c.external) {
			t.Errorf("%s: %v and %v are left, want %v and %v", name, internal, external, c.internal, c.external)
		}
		before, same := one(), left == c.service
		before.Ports[0].Protocol, before.Ports[0].Ejection = c.service.Ports[0].Protocol, c.service.Ports[0].Ejection
		if !c.service.Equal(before) || same != left.Equal(c.service) {
			t.Errorf("%s: the record itself was changed, or copied for nothing", name)
		}
	}
}

// TestEjectedWeights: the endpoints that stay have the shares that they had among themselves, and the refused share stays what it was.
func TestEjectedWeights(t *testing.T) {
	rng := rand.New(rand.NewPCG(30, 4))
	for range 2000 {
		var weights []uint16
		for range 2 + rng.IntN(6) {
			weights = append(weights, uint16(1+rng.IntN([]int{3, 100, math.MaxUint16}[rng.IntN(3)])))
		}
		refused := uint32(0)
		if rng.IntN(3) > 0 {
			refused = 1 + rng.Uint32N([]uint32{3, 1000, math.MaxUint32}[rng.IntN(3)])
		}
		r := weightedRoute(refused, weights...)
		s := ejecting(serviceOf("web", state.Port{Name: "p", Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r}}))
		left := &ejected(s, 1+rng.IntN(len(weights)), 1+rng.IntN(len(weights))).Without(s).Ports[0].Internal.Inside
		sum := func(r *state.Route) (n float64) {
			for _, e := range r.Endpoints {
				n += float64(e.Weight)
			}
			return n
		}
		was, is := float64(r.Refused)/(float64(r.Refused)+sum(&r)), float64(left.Refused)/(float64(left.Refused)+sum(left))
		// A refused share has a weight of at least 1, and the others have none above 65535.
		if math.Abs(was-is) > 1./math.MaxUint16 && left.Refused > 1 || (r.Refused == 0) != (left.Refused == 0) {
			t.Fatalf("weights %v, %d refused: %.6f was refused, and %.6f is (%v)", weights, refused, was, is, left)
		}
		for _, e := range left.Endpoints {
			before := r.Endpoints[slices.IndexFunc(r.Endpoints, func(o state.Endpoint) bool { return o.Addr == e.Addr })]
			if int(e.Weight)*int(r.Endpoints[0].Weight) == 0 || e.Weight%before.Weight != 0 || e.Weight/before.Weight != left.Endpoints[0].Weight/
				r.Endpoints[slices.IndexFunc(r.Endpoints, func(o state.Endpoint) bool { return o.Addr == left.Endpoints[0].Addr })].Weight {
				t.Fatalf("weights %v, %d refused: %v is left", weights, refused, left)
			}
		}
	}
}

// withEjected returns the world after a commit that ejects endpoints, and changes the service.
func (w *world) withEjected(o *Settings, s *state.Service, ejected *Ejected) *world {
	settings := *o
	settings.Ejected = ejected
	return w.changedTo(&settings, s)
}

// TestEjectionBetweenLookups ejects endpoints, and lets them return, between any two lookups of a packet, alone and in one commit with a change of the
// record. The outcome must be right before the commit or after it. No new connection after it gets an ejected endpoint, not even one of a known client.
func TestEjectionBetweenLookups(t *testing.T) {
	o := testSettings(state.IPv4)
	states := atomicStates()
	names := []string{"1-3", "4-6", "1-3 local 1", "3-6 sticky", "1-3 refusing", "2-5 hashed by port", "absent"}
	sets := [][]int{nil, {2}, {1, 3}, {1, 2, 3, 4, 5, 6}}
	for _, from := range names {
		for _, to := range names {
			before, after := states[from], states[to]
			for i, was := range sets {
				for j, is := range sets {
					if i > 0 && j > 0 || from != to && i+j > 2 {
						continue // nothing that others do not show
					}
					ejectedOf := func(s *state.Service, numbers []int) *Ejected {
						if s == nil {
							return nil
						}
						return ejected(s, numbers...)
					}
					checkEjection(t, o, fmt.Sprintf("%q without %v to %q without %v", from, was, to, is), nowEjecting(before), nowEjecting(after),
						ejectedOf(before, was), ejectedOf(after, is))
				}
			}
		}
	}
}

// nowEjecting is ejecting for a record that may be missing, and is not to be changed.
func nowEjecting(s *state.Service) *state.Service {
	if s == nil {
		return nil
	}
	clone := *s
	clone.Ports = slices.Clone(s.Ports)
	return ejecting(&clone)
}

func checkEjection(t *testing.T, o *Settings, name string, from, to *state.Service, was, is *Ejected) {
	t.Helper()
	base := newWorld(o).withEjected(o, from, was)
	for _, c := range atomicConnections() {
		before, remembered := base.connects(&c, 1)
		after := before.withEjected(o, to, is)
		// What is right follows from the records without ejected endpoints.
		if from != nil {
			before.service = was.Without(from)
		}
		if to != nil {
			after.service = is.Without(to)
		}
		if got := c.interpret(2, after, after, 0).run(); !after.want(o, &c, got, remembered) {
			t.Errorf("%s: %s: %v afterwards, remembered %v", name, c.name, got, remembered)
		}
		for at, more := 0, true; more; at++ {
			in := c.interpret(2, before, after, at)
			got := in.run()
			more = in.lookups > at
			itself := outcome{"to", got.endpoint, true} // ADR 6, as in TestCommitBetweenLookups
			exempt := got.endpoint.Addr() == c.src && before.want(o, &c, itself, remembered) && !after.want(o, &c, itself, remembered)
			if !exempt && !before.want(o, &c, got, remembered) && !after.want(o, &c, got, remembered) {
				t.Errorf("%s: %s: %v if the commit comes before lookup %d", name, c.name, got, at)
			}
		}
	}
}

// TestEjectionsAndHistories: after a random history of records and ejections, in which each change is one plan, the tables have exactly what a new table for
// the last record has, except for the order of slots.
func TestEjectionsAndHistories(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 30))
		o := testSettings(state.IPv4)
		m := NewMirror()
		held := contents{}
		states := map[string]*state.Service{}
		for step := range 40 {
			settings := *o
			settings.Ejected = m.Ejected()
			u := delta()
			if rng.IntN(2) == 0 {
				name := fmt.Sprint("s", rng.IntN(3))
				r := anyRoute(rng, state.Route{Verdict: state.Forward, Endpoints: endpointsOf(state.IPv4, 1, 2)}, 8)
				s := serviceOf(name, state.Port{
					Name: "p", Protocol: state.TCP, Family: state.IPv4, Ejection: rng.IntN(4) > 0, Internal: state.Traffic{Inside: r, Outside: r},
					Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr("10.96.0." + name[1:]), Port: 80}},
				})
				if rng.IntN(3) == 0 {
					s.Ports[0].Affinity = 1e10
				}
				states[name], u.Changed = s, []*state.Service{s}
			}
			if rng.IntN(2) == 0 {
				var list []PortEndpoint
				for range rng.IntN(6) {
					list = append(list, PortEndpoint{serviceOf(fmt.Sprint("s", rng.IntN(3))).Name, "p", numbered(rng.IntN(8)).Addr})
				}
				settings.Ejected = NewEjected(list...)
			}
			p := elementsOnly(m, &settings, u, nil)
			held = held.carriedOut(p)
			m = p.Commit()
			for name, s := range states {
				if got := m.Record(s.Name); got != s {
					t.Fatalf("seed %d, step %d: %s has record %v, want that of the state", seed, step, name, got)
				}
				a := m.services[s.Name]
				want := settings.Ejected.Without(s)
				if !a.record.Equal(want) {
					t.Fatalf("seed %d, step %d: %s is programmed as %v, want %v", seed, step, name, a.record, want)
				}
			}
			fresh := NewMirror()
			all := elementsOnly(fresh, &settings, delta(slices.Collect(maps.Values(states))...), nil)
			if got, want := sizes(held), sizes(contents{}.carriedOut(all)); got["hairpins"] != want["hairpins"] || got["endpoint-numbers"] != want["endpoint-numbers"] {
				t.Fatalf("seed %d, step %d: %v elements, want %v", seed, step, got, want)
			}
		}
	}
}

// sizes returns how many elements each set has.
func sizes(c contents) map[string]int {
	n := map[string]int{}
	for set, elements := range c {
		n[set] = len(elements)
	}
	return n
}

// TestLeft: endpoints leave a route when they are ejected, and also when a record brings another endpoint, or one of the others returns.
func TestLeft(t *testing.T) {
	eps := endpointsOf(state.IPv4, 1, 3)
	web := func(eps ...state.Endpoint) *state.Service { return ejecting(serviceOf("web", tcpPort(1, eps, eps))) }
	m := NewMirror()
	for i, step := range []struct {
		record  []state.Endpoint
		ejected []int
		want    []state.Endpoint
	}{
		{eps[:2], nil, nil},
		{eps[:2], []int{1}, eps[:1]},
		{eps[:2], []int{1}, nil},
		{eps[:2], []int{1, 2}, nil}, // all come back
		{eps[:2], []int{2}, eps[1:2]},
		{eps[1:2], []int{2}, nil}, // the last one
		{eps[1:], []int{2}, eps[1:2]},
		{eps[:1], []int{2}, nil},
		{eps, []int{2}, nil}, // it was not there before
		{eps, nil, nil},
	} {
		s := web(step.record...)
		settings := *testSettings(state.IPv4)
		settings.Ejected = ejected(s, step.ejected...)
		p := elementsOnly(m, &settings, delta(s), nil)
		var want []netip.AddrPort
		for _, e := range step.want {
			want = append(want, e.Addr)
		}
		if got := p.Left(); !slices.Equal(got, want) {
			t.Errorf("step %d: %v leave, want %v", i+1, got, want)
		}
		m = p.Commit()
	}
}

// TestNoEjectionNoElement: Ejection alone, without an ejected endpoint, changes nothing in the tables.
func TestNoEjectionNoElement(t *testing.T) {
	web := func() *state.Service {
		return serviceOf("web", tcpPort(1, endpointsOf(state.IPv4, 1, 3), endpointsOf(state.IPv4, 1, 1)))
	}
	m := NewMirror()
	elementsOnly(m, testSettings(), delta(web()), nil).Commit()
	var b nft.Batch
	m.Change(testSettings(), delta(ejecting(web())), nil).Write(&b)
	if b.Len() > 0 {
		t.Errorf("%d objects are written", b.Len())
	}
}
