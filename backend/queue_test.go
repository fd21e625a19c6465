package backend

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

// plentiful are records that take many parts, of a few services that take frontends and ports from each other.
type plentiful struct {
	rng *rand.Rand
	// stay has frontends never go to another port or service.
	stay bool
	made int // frontends
}

const (
	queuedServices = 4
	queuedAddrs    = 60
)

func queuedName(n int) state.ServiceName {
	return state.ServiceName{Namespace: fmt.Sprintf("ns%d", n/2), Name: fmt.Sprintf("s%d", n)}
}

// next returns the next state: each frontend is one service's, if any.
func (p *plentiful) next(was map[state.ServiceName]*state.Service) map[state.ServiceName]*state.Service {
	next := maps.Clone(was)
	touched := map[int]bool{}
	for range 1 + p.rng.IntN(2) {
		touched[p.rng.IntN(queuedServices)] = true
	}
	var moved []state.Frontend
	for _, n := range slices.Sorted(maps.Keys(touched)) { // what they had may be any other's of them
		if s := was[queuedName(n)]; s != nil && !p.stay {
			for i := range s.Ports {
				moved = append(moved, s.Ports[i].Frontends...)
			}
		}
		delete(next, queuedName(n))
	}
	for len(moved) < 2*queuedAddrs {
		f := state.Frontend{Kind: state.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, 96, byte(p.made), byte(len(moved))}), Port: uint16(1 + p.rng.IntN(1000))}
		moved = append(moved, f)
	}
	if p.stay {
		p.made++
	}
	p.rng.Shuffle(len(moved), func(i, j int) { moved[i], moved[j] = moved[j], moved[i] })
	taken := map[state.FrontendKey]bool{}
	for _, s := range next {
		for i := range s.Ports {
			for j := range s.Ports[i].Frontends {
				taken[s.Ports[i].Key(&s.Ports[i].Frontends[j])] = true
			}
		}
	}
	for _, n := range slices.Sorted(maps.Keys(touched)) {
		if p.rng.IntN(6) == 0 {
			continue
		}
		s := &state.Service{Name: queuedName(n), HealthCheck: state.HealthCheck{LocalIPv4: p.rng.IntN(100)}}
		for i := range 1 + p.rng.IntN(4) {
			port := state.Port{Name: fmt.Sprintf("p%d", i), Protocol: state.TCP, Family: state.IPv4}
			for range p.rng.IntN(queuedAddrs) {
				if len(moved) == 0 {
					break
				}
				f := moved[0]
				moved = moved[1:]
				if p.rng.IntN(10) == 0 {
					f.Kind = state.ClusterIP + state.ExternalIP - f.Kind
				}
				if k := port.Key(&f); !taken[k] {
					taken[k] = true
					port.Frontends = append(port.Frontends, f)
				}
			}
			if len(port.Frontends) == 0 {
				continue
			}
			slices.SortFunc(port.Frontends, state.Frontend.Compare)
			route := p.route()
			both := state.Traffic{Inside: route, Outside: route}
			if p.rng.IntN(4) == 0 {
				both.Outside = p.route()
			}
			if port.Frontends[0].Kind == state.ClusterIP {
				port.Internal = both
			}
			if port.Frontends[len(port.Frontends)-1].Kind != state.ClusterIP {
				port.External = both
			}
			if p.rng.IntN(8) == 0 {
				port.Affinity = time.Hour
			}
			s.Ports = append(s.Ports, port)
		}
		if len(s.Ports) > 0 {
			next[s.Name] = s
		}
	}
	return next
}

func (p *plentiful) route() state.Route {
	var eps []state.Endpoint
	for i := range p.rng.IntN(60) {
		if p.rng.IntN(2) == 0 {
			eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 0, byte(i)}), 80), Local: p.rng.IntN(5) == 0})
		}
	}
	if len(eps) == 0 {
		return state.Route{Verdict: state.Reject}
	}
	return state.Route{Verdict: state.Forward, Endpoints: eps}
}

// frontendsOf are the frontends of a state, and where clients inside and outside go. It fails if two ports have one, or if a record is not as it must be.
func frontendsOf(t *testing.T, all map[state.ServiceName]*state.Service) map[state.FrontendKey]*heldBy {
	t.Helper()
	keys := map[state.FrontendKey]*heldBy{}
	for name, s := range all {
		if !slices.IsSortedFunc(s.Ports, func(a, b state.Port) int { return a.Compare(&b) }) {
			t.Fatalf("the ports of %v are not in order", name)
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			used := map[*state.Traffic]bool{}
			if len(p.Frontends) == 0 || !slices.IsSortedFunc(p.Frontends, state.Frontend.Compare) {
				t.Fatalf("the frontends of %v are %v", name, p.Frontends)
			}
			for j := range p.Frontends {
				k := p.Key(&p.Frontends[j])
				if keys[k] != nil {
					t.Fatalf("%v is there twice, once of %v", k, name)
				}
				tr := p.Traffic(p.Frontends[j].Kind)
				keys[k] = &heldBy{tr, fmt.Sprint(name, p.Name, p.Frontends[j].Kind == state.ClusterIP), name, p.Name, p.Frontends[j].Kind}
				used[tr] = true
			}
			for _, tr := range []*state.Traffic{&p.Internal, &p.External} {
				if used[tr] == isUnused(tr) {
					t.Fatalf("traffic of %v is used: %v, but it is %+v", name, used[tr], tr)
				}
				for _, r := range []*state.Route{&tr.Inside, &tr.Outside} {
					sorted := slices.IsSortedFunc(r.Endpoints, state.Endpoint.Compare)
					if (r.Verdict == state.Forward) != (len(r.Endpoints) > 0) || !sorted || len(slices.CompactFunc(slices.Clone(r.Endpoints), func(a, b state.Endpoint) bool { return a.Addr == b.Addr })) != len(r.Endpoints) {
						t.Fatalf("a route of %v is %+v", name, r)
					}
				}
			}
		}
	}
	return keys
}

// between fails unless a route goes where one of two others does.
func between(t *testing.T, k state.FrontendKey, got, a, b *state.Route) {
	t.Helper()
	has := func(r *state.Route, e state.Endpoint) bool { return slices.Contains(r.Endpoints, e) }
	for _, e := range got.Endpoints {
		if !has(a, e) && !has(b, e) {
			t.Fatalf("%v leads to %v, which it does neither before nor after", k, e)
		}
	}
	if got.Verdict != a.Verdict && got.Verdict != b.Verdict {
		t.Fatalf("%v has verdict %v, neither %v nor %v", k, got.Verdict, a.Verdict, b.Verdict)
	}
}

// TestPartsAreBetween applies random changes in parts. In each state in between, no frontend is missing, or there twice, or leads elsewhere than
// before or after; and in the end, all is as it is to be.
func TestPartsAreBetween(t *testing.T) {
	parts := 0
	for seed := range uint64(12) {
		p := &plentiful{rng: rand.New(rand.NewPCG(seed, 1)), stay: seed%2 == 0}
		now := time.Unix(0, 0)
		node := &state.Node{Name: "n1"}
		q := newQueue([]int{usualPart, 100, 10}[seed%3], newHeld(0))
		q.replace(&state.Update{Revision: 1, Node: node})
		was := map[state.ServiceName]*state.Service{}
		for step := range 6 {
			next := p.next(was)
			u := &state.Update{Revision: q.got + 1, Node: node}
			for n := range queuedServices {
				name := queuedName(n)
				switch {
				case next[name] == was[name]:
				case next[name] == nil:
					u.Removed = append(u.Removed, name)
				default:
					u.Changed = append(u.Changed, next[name])
				}
			}
			before, after := frontendsOf(t, q.held.records), frontendsOf(t, next)
			missing := map[routed]bool{} // endpoints that ports have before and after, and have to have in between
			last := endpointsOf(next)
			for e := range endpointsOf(was) {
				if p.stay && last[e] {
					missing[e] = true
				}
			}
			q.add(u, now)
			for rounds := 0; ; rounds++ {
				if !q.isReady(u.Revision, node, now) {
					if wakes := q.wakes(); !wakes.IsZero() {
						now = wakes
						continue
					}
					break
				}
				b := q.take(node)
				if rounds > 100_000 {
					t.Fatalf("seed %d step %d: nothing more happens, with %d services left", seed, step, len(q.wants))
				}
				if len(b.steps) == 0 {
					continue
				}
				parts++
				q.show(b, time.Millisecond, now)
				got := frontendsOf(t, q.held.records)
				for k, is := range got {
					a, c := before[k], after[k]
					switch {
					case a == nil && c == nil:
						t.Fatalf("seed %d step %d: %v is there neither before nor after", seed, step, k)
					case a == nil:
						a = c
					case c == nil || a.name != c.name:
						// As long as it stays where it was, it goes where the others of that port do.
						if a.name == is.name {
							c = port(next, a)
						} else {
							a = c
						}
					}
					between(t, k, &is.Inside, &a.Inside, &c.Inside)
					between(t, k, &is.Outside, &a.Outside, &c.Outside)
				}
				if len(missing) > 0 {
					there := endpointsOf(q.held.records)
					for e := range missing {
						if !there[e] {
							t.Fatalf("seed %d step %d: %v is missing for a while", seed, step, e)
						}
					}
				}
				for k := range before {
					if after[k] != nil && got[k] == nil {
						t.Fatalf("seed %d step %d: %v is missing for a while", seed, step, k)
					}
				}
			}
			if len(q.wants) > 0 || len(q.arrivals) > 0 || len(q.coming)+len(q.leaving) > 0 {
				t.Fatalf("seed %d step %d: %d services are left", seed, step, len(q.wants))
			}
			for _, s := range next {
				if !sameRecord(q.held.records[s.Name], s) {
					t.Fatalf("seed %d step %d: %v is not as it is to be", seed, step, s.Name)
				}
			}
			if len(q.held.records) != len(next) {
				t.Fatalf("seed %d step %d: there are %d services, want %d", seed, step, len(q.held.records), len(next))
			}
			was = next
		}
	}
	if parts < 300 {
		t.Errorf("there were %d parts only", parts)
	}
}

// show applies a batch, in some time.
func (q *queue) show(b *batch, took time.Duration, now time.Time) {
	u := b.update(1, q.node)
	q.held.note(u, u, &refusals{}, nil)
	q.applied(b, nil, took, now)
}

// heldBy is the traffic of a frontend, and whose it is.
type heldBy struct {
	*state.Traffic
	name    string
	service state.ServiceName
	port    string
	kind    state.FrontendKind
}

// port returns the traffic in a state of the port that had a frontend, or that itself if it has none.
func port(all map[state.ServiceName]*state.Service, h *heldBy) *heldBy {
	if s := all[h.service]; s != nil {
		for i := range s.Ports {
			if p := &s.Ports[i]; p.Name == h.port {
				if tr := p.Traffic(h.kind); !isUnused(tr) {
					return &heldBy{Traffic: tr}
				}
			}
		}
	}
	return h
}

func sameRecord(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}

// routed is an endpoint of one of the routes of a port.
type routed struct {
	service  state.ServiceName
	port     string
	route    int
	endpoint netip.AddrPort
}

// endpointsOf are the endpoints of all ports.
func endpointsOf(all map[state.ServiceName]*state.Service) map[routed]bool {
	found := map[routed]bool{}
	for name, s := range all {
		for i := range s.Ports {
			p := &s.Ports[i]
			for n, r := range p.Routes() {
				for _, e := range r.Endpoints {
					found[routed{name, p.Name, n, e.Addr}] = true
				}
			}
		}
	}
	return found
}

// TestEndpointsStay: an endpoint of a service before and after a change is one in all states between, so that its connections go on.
func TestEndpointsStay(t *testing.T) {
	endpoints := func(local bool) (eps []state.Endpoint) {
		for i := range 3 * usualPart {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)})
			eps = append(eps, state.Endpoint{Addr: netip.AddrPortFrom(addr, 80), Local: local})
		}
		return eps
	}
	record := func(name string, local bool, frontends ...uint16) *state.Service {
		route := state.Route{Verdict: state.Forward, Endpoints: endpoints(local)}
		p := state.Port{Name: name, Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: route, Outside: route}}
		for _, number := range frontends {
			p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: number})
		}
		return &state.Service{Name: queuedName(0), Ports: []state.Port{p}}
	}
	some := record("http", true, 80)
	some.Ports[0].Internal.Inside.Endpoints = endpoints(true)[2*usualPart:]
	some.Ports[0].Internal.Outside = some.Ports[0].Internal.Inside
	for what, c := range map[string]struct{ from, to *state.Service }{
		"another number":          {record("http", true, 80), record("http", true, 81)},
		"other numbers":           {record("http", true, 80, 90, 100), record("http", true, 81, 91)},
		"another name and number": {record("http", true, 80), record("web", true, 81)},
		"another name":            {record("web", true, 80), record("http", true, 80)},
		"elsewhere":               {some, record("http", false, 80)},
	} {
		t.Run(what, func(t *testing.T) {
			node, now := &state.Node{Name: "n1"}, time.Unix(0, 0)
			q := newQueue(usualPart, newHeld(0))
			q.held.set(c.from.Name, c.from)
			q.replace(&state.Update{Revision: 1, Node: node})
			q.add(&state.Update{Revision: 2, Node: node, Changed: []*state.Service{c.to}}, now)
			for q.isReady(2, node, now) {
				q.show(q.take(node), time.Millisecond, now)
				found := map[netip.AddrPort]bool{}
				for i := range q.held.records[c.to.Name].Ports {
					for _, e := range q.held.records[c.to.Name].Ports[i].Internal.Inside.Endpoints {
						found[e.Addr] = true
					}
				}
				for _, e := range c.from.Ports[0].Internal.Inside.Endpoints {
					if !found[e.Addr] {
						t.Fatalf("of the endpoints of before and after, %d are there in a state between, but not %v", len(found), e.Addr)
					}
				}
			}
			if !sameRecord(q.held.records[c.to.Name], c.to) {
				t.Error("the service is not as it is to be")
			}
		})
	}
}
