package ruleset

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// weightedRoute returns a route to endpoints 1 to n with these weights.
func weightedRoute(refused uint32, weights ...uint16) state.Route {
	r := forward(endpointsOf(state.IPv4, 1, len(weights)))
	r.Refused = refused
	for i, w := range weights {
		r.Endpoints[i].Weight = w
	}
	return r
}

// slotCounts returns how many slots each endpoint has, and how many have none.
func slotCounts(placed []state.Endpoint) (counts map[netip.AddrPort]int, holes int) {
	counts = map[netip.AddrPort]int{}
	for _, e := range placed {
		if e.Addr.IsValid() {
			counts[e.Addr]++
		} else {
			holes++
		}
	}
	return counts, holes
}

// misplaced returns which share of connections goes elsewhere than a route asks for.
func misplaced(r *state.Route, placed []state.Endpoint) float64 {
	counts, holes := slotCounts(placed)
	sum, n := float64(r.Refused), float64(len(placed))
	for _, e := range r.Endpoints {
		sum += float64(e.Weight)
	}
	off := math.Abs(float64(holes)/n - float64(r.Refused)/sum)
	for _, e := range r.Endpoints {
		off += math.Abs(float64(counts[e.Addr])/n - float64(e.Weight)/sum)
	}
	return off / 2
}

// TestWeightedSlots shows how many slots endpoints get.
func TestWeightedSlots(t *testing.T) {
	for _, c := range []struct {
		weights []uint16
		want    []int
	}{
		{[]uint16{7}, []int{1}},
		{[]uint16{9, 9}, []int{1, 1}},
		{slices.Repeat([]uint16{9}, 20), slices.Repeat([]int{1}, 20)}, // in 24 slots, as without weights
		{[]uint16{300, 100}, []int{48, 16}},
		{[]uint16{95, 5}, []int{61, 3}},
		{[]uint16{80, 15, 5}, []int{51, 10, 3}},
		{[]uint16{65535, 1}, []int{255, 1}},
	} {
		r := weightedRoute(0, c.weights...)
		counts, _ := slotCounts(placeRoute(nil, &r))
		var got []int
		for _, e := range r.Endpoints {
			got = append(got, counts[e.Addr])
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("weights %v: slots %v, want %v", c.weights, got, c.want)
		}
	}
}

// TestRefusedSlots shows how many slots are left empty.
func TestRefusedSlots(t *testing.T) {
	for _, c := range []struct {
		refused     uint32
		weights     []uint16
		want, class int
	}{
		{80, []uint16{20}, 51, 64}, {20, []uint16{40, 40}, 13, 64}, {1, []uint16{65535}, 1, 256}, {1 << 31, []uint16{1}, 255, 256},
		{100, slices.Repeat([]uint16{1}, 300), 250, 1024},
	} {
		r := weightedRoute(c.refused, c.weights...)
		placed := placeRoute(nil, &r)
		if _, holes := slotCounts(placed); holes != c.want || len(placed) != c.class || !placed[0].Addr.IsValid() {
			t.Errorf("%d refused next to %d endpoints: %d of %d slots are empty, want %d of %d", c.refused, len(c.weights), holes, len(placed), c.want, c.class)
		}
	}
}

// anyRoute changes some of the endpoints and weights of a route of at most limit endpoints.
func anyRoute(rng *rand.Rand, r state.Route, limit int) state.Route {
	eps := slices.Clone(r.Endpoints)
	for range 1 + rng.IntN(3) {
		switch e := numbered(rng.IntN(limit)); {
		case len(eps) > 1 && rng.IntN(3) == 0:
			at := rng.IntN(len(eps))
			eps = slices.Delete(eps, at, at+1)
		case !slices.ContainsFunc(eps, func(o state.Endpoint) bool { return o.Addr == e.Addr }):
			eps = append(eps, e)
		}
	}
	weighted := rng.IntN(8) > 0
	for i := range eps {
		switch w := &eps[i].Weight; {
		case !weighted:
			*w = 0
		case *w == 0 || rng.IntN(4) == 0:
			*w = uint16(1 + rng.IntN([]int{3, 100, 65535}[rng.IntN(3)]))
		}
	}
	slices.SortFunc(eps, state.Endpoint.Compare)
	next := state.Route{Verdict: state.Forward, Endpoints: eps}
	if weighted && rng.IntN(3) == 0 {
		next.Refused = uint32(1 + rng.IntN(200))
	}
	return next
}

// TestPlaceWeights changes endpoints and weights again and again. All slots are filled, connections are shared by weight, and as few slots change
// as can be.
func TestPlaceWeights(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 7))
		limit := []int{2, 6, 40}[rng.IntN(3)]
		var old []state.Endpoint
		r := state.Route{}
		for step := range 30 {
			r = anyRoute(rng, r, limit)
			before := slices.Clone(r.Endpoints)
			placed := placeRoute(old, &r)
			if err := checkWeighted(&r, old, placed); err != nil || !slices.Equal(before, r.Endpoints) {
				t.Fatalf("seed %d step %d: %v\nold    %v\nroute  %v\nplaced %v", seed, step, err, old, r, placed)
			}
			if again := placeRoute(placed, &r); !slices.Equal(again, placed) {
				t.Fatalf("seed %d step %d: placing the same again moves slots", seed, step)
			}
			old = placed
		}
	}
}

func checkWeighted(r *state.Route, old, placed []state.Endpoint) error {
	counts, holes := slotCounts(placed)
	want := map[state.Endpoint]int{}
	for _, e := range r.Endpoints {
		if counts[e.Addr] == 0 {
			return fmt.Errorf("%v has no slot", e.Addr)
		}
		want[withoutWeight(e)] = counts[e.Addr]
	}
	even := r.Even() || !r.Weighted()
	switch {
	case len(counts) != len(r.Endpoints):
		return fmt.Errorf("%d endpoints have slots", len(counts))
	case !even && holes > 0 != (r.Refused > 0):
		return fmt.Errorf("%d slots are empty", holes)
	case even && len(placed) != slotsFor(len(r.Endpoints)):
		return fmt.Errorf("%d slots for equal weights", len(placed))
	case len(placed) > mostWeighted:
		return fmt.Errorf("%d slots", len(placed))
	}
	if !even && !slices.Contains(shareClasses, uint32(len(placed))) {
		return fmt.Errorf("%d slots for weights", len(placed))
	}
	if off := misplaced(r, placed); !even && len(placed) < mostWeighted && off > 0.02 {
		return fmt.Errorf("%.1f%% of connections are misplaced in %d slots", 100*off, len(placed))
	}
	if r.Refused > 0 {
		return nil // the first slot may have to be filled
	}
	return checkKept(old, want, placed)
}

// mostWeighted is the largest class for fewer endpoints than that.
const mostWeighted = 256

// TestLeavingWeights: while the class stays, an endpoint that leaves gives away its own slots, and all others keep theirs.
func TestLeavingWeights(t *testing.T) {
	r := weightedRoute(0, 80, 15, 5, 44, 61)
	all := placeRoute(nil, &r)
	for i := range r.Endpoints {
		left := r
		left.Endpoints = slices.Delete(slices.Clone(r.Endpoints), i, i+1)
		placed := placeRoute(all, &left)
		if len(placed) != len(all) {
			t.Fatalf("the class changes from %d to %d", len(all), len(placed))
		}
		for j := range all {
			if all[j].Addr != r.Endpoints[i].Addr && placed[j] != all[j] {
				t.Errorf("%v leaves, and slot %d of %v changes", r.Endpoints[i].Addr, j, all[j].Addr)
			}
		}
	}
}

// weightedService is a service of n frontends whose slots are of class 256.
func weightedService(namespace, name string, frontends int) *state.Service {
	r := weightedRoute(0, 1, 255)
	p := state.Port{Name: "p", Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r}}
	id := byte(len(namespace) + 10*len(name))
	for i := range frontends {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, id, byte(i >> 8), byte(i)}), Port: 80})
	}
	return &state.Service{Name: state.ServiceName{Namespace: namespace, Name: name}, Ports: []state.Port{p}}
}

// TestRoomForWeights: the slots of weights are bounded for a service, a namespace and the node. Services that come last share connections evenly
// until others go, also if all is compared.
func TestRoomForWeights(t *testing.T) {
	r := weightedRoute(0, 1, 255)
	each := len(placeRoute(nil, &r))
	most := apportion.MaxServiceSlots / each
	m := NewMirror()
	change := func(changed []*state.Service, removed ...state.ServiceName) {
		t.Helper()
		p := newPlan(testSettings(), m, m)
		p.update(&state.Update{Changed: changed, Removed: removed, Node: testNode})
		p.retry()
		m = p.Commit()
	}
	check := func(what string, slots int, lacking ...string) {
		t.Helper()
		var names []string
		for _, n := range m.Lacking() {
			names = append(names, n.String())
			if a := m.services[n]; a.record.Features() != 0 || a.slots != 0 || m.Record(n).Features() != state.Weights {
				t.Errorf("%s: %v is programmed with weights, or not to be", what, n)
			}
		}
		if !slices.Equal(names, lacking) || m.slots[""] != slots*each {
			t.Errorf("%s: %v lack room, want %v; %d slots are taken, want %d", what, names, lacking, m.slots[""], slots*each)
		}
	}
	change([]*state.Service{weightedService("a", "large", most+1)})
	check("a service is too large", 0, "a/large")
	change([]*state.Service{weightedService("a", "large", 1)})
	check("it has become smaller", 1)
	var services []*state.Service
	for _, name := range []string{"1", "22", "333", "4444", "55555"} {
		services = append(services, weightedService("b", name, most))
	}
	change(services)
	check("a namespace is full", 4*most+1, "b/55555")
	change([]*state.Service{weightedService("a", "others", 2)})
	check("another namespace has room", 4*most+3, "b/55555")
	change(nil, services[1].Name)
	check("there is room again", 4*most+3)
	change([]*state.Service{services[1]})
	check("the one that left comes back", 4*most+3, "b/22")
	// A comparison prefers those that have slots, though b/22 comes first by name.
	after := m.After(&state.Update{Node: testNode})
	ks := &kernelState{elements: map[elementKey][maxData]byte{}}
	for _, f := range families {
		ks.tables = append(ks.tables, tableState{family: f})
	}
	slices.SortFunc(after.Services, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
	p, err := m.difference(testSettings(), ks, after)
	if err != nil {
		t.Fatal(err)
	}
	m = p.Commit()
	check("compared", 4*most+3, "b/22")
	change(nil, services[0].Name, services[2].Name, services[3].Name, services[4].Name, state.ServiceName{Namespace: "a", Name: "large"})
	check("all others leave", most+2)
	change(nil, services[1].Name, state.ServiceName{Namespace: "a", Name: "others"})
	check("the last ones leave", 0)
	if len(m.slots) != 0 {
		t.Errorf("slots of nobody are left: %v", m.slots)
	}
}

// TestWeightsInFullClass: as many endpoints as a class has slots get weights. No slot changes then, but the class is another.
func TestWeightsInFullClass(t *testing.T) {
	service := func(weights ...uint16) *state.Service {
		p := recordPort(1, nil)
		r := weightedRoute(0, weights...)
		p.Internal = state.Traffic{Inside: r, Outside: r}
		return &state.Service{Name: state.ServiceName{Namespace: "default", Name: "full"}, Ports: []state.Port{p}}
	}
	m := elementsOnly(NewMirror(), testSettings(), delta(service(make([]uint16, 1024)...)), nil).Commit()
	p := elementsOnly(m, testSettings(), delta(service(append(slices.Repeat([]uint16{1}, 1023), 2)...)), nil)
	changes := map[string][2]int{}
	for _, s := range p.order {
		changes[s.set.name()] = [2]int{s.del.n, s.add.n}
	}
	if want := map[string][2]int{"service-endpoints-1024": {1, 0}, "service-shares-1024": {0, 1}}; !maps.Equal(changes, want) {
		t.Errorf("changes %v, want %v", changes, want)
	}
}

// TestShare: the shares of services move in turn, a bounded number in each step. What has no shares of its own, or the same as before, takes nothing.
func TestShare(t *testing.T) {
	c := &least.Controller{}
	settings := testSettings()
	settings.Shares = c.Shares
	counted := func(name string, endpoints int) *state.Service {
		s := weightedService("a", name, 1)
		r := weightedRoute(0, make([]uint16, endpoints)...)
		s.Ports[0].Balance, s.Ports[0].Internal = state.LeastConnections, state.Traffic{Inside: r, Outside: r}
		return s
	}
	var services []*state.Service
	counts := least.Counts{}
	for i := range 10 {
		services = append(services, counted(strings.Repeat("x", 1+i), 2)) // 128 slots each, which is the class of shares nonetheless
	}
	counts[least.Endpoint{Protocol: state.TCP, Addr: services[0].Ports[0].Internal.Inside.Endpoints[0].Addr}] = 1000
	alone, crowded := counted("one-of-them", 1), counted("many-of-them", least.MaxEndpoints+1)
	m := elementsOnly(NewMirror(), settings, delta(append(slices.Clone(services), alone, crowded)...), nil).Commit()
	if len(m.Counting()) != len(services) || len(m.Crowded()) != 1 || m.Crowded()[0].Name != "many-of-them" || m.slots[""] != 10*least.Slots {
		t.Fatalf("%v are counted, %v crowded, and %d slots in use", m.Counting(), m.Crowded(), m.slots[""])
	}
	if p, done := m.Share(settings, m.Counting(), 1); done != len(services) || p.elements() > 0 {
		t.Errorf("even shares move %d elements for %d services", p.elements(), done)
	}
	settings.Shares = c.Step(services, counts).Shares
	names, seen := m.Counting(), 0
	for len(names) > 0 {
		p, done := m.Share(settings, names, 150)
		if done == 0 || done > 3 || p.elements() == 0 || p.elements() > 150+2*least.Slots {
			t.Fatalf("a step moves %d elements of %d services", p.elements(), done)
		}
		for _, s := range p.order {
			if s.set.kind != slots {
				t.Errorf("a step changes %s", s.set.name())
			}
		}
		m, names, seen = p.Commit(), names[done:], seen+done
	}
	for _, s := range services {
		a := m.services[s.Name]
		has := map[state.Endpoint]int{}
		for _, e := range a.places[0][internalInside] {
			has[e]++
		}
		if busy := has[s.Ports[0].Internal.Inside.Endpoints[0]]; seen != len(services) || busy >= 100 || m.Record(s.Name) != s {
			t.Errorf("%v: the busy endpoint has %d slots", s.Name, busy)
		}
	}
	if p, _ := m.Share(settings, m.Counting(), 150); p.elements() > 0 {
		t.Errorf("shares that stay move %d elements", p.elements())
	}
	p := elementsOnly(m, settings, &state.Update{Removed: []state.ServiceName{services[0].Name, crowded.Name}, Node: testNode}, nil)
	if m = p.Commit(); len(m.Counting()) != len(services)-1 || len(m.Crowded()) != 0 {
		t.Errorf("%d are counted, and %v crowded, after two have gone", len(m.Counting()), m.Crowded())
	}
}
