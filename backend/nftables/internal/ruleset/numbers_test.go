package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// planned commits an update to a mirror, without a kernel.
func planned(m *Mirror, u *state.Update) *Plan {
	p := elementsOnly(m, testSettings(), u, nil)
	p.Commit()
	return p
}

// TestNumbers: the numbers of a service follow from its name alone, unless somebody else has them; they stay when it changes, and are free
// when it goes.
func TestNumbers(t *testing.T) {
	s := restrictedService("a", recordtest.Prefixes("10.0.0.0/8"), recordtest.Prefixes("10.0.0.0/8"), recordtest.Prefixes("11.0.0.0/8"))
	m := NewMirror()
	planned(m, delta(s))
	first := maps.Clone(m.services[s.Name].numbers)
	if len(first) != 5 || len(m.numbers) != 5 { // three ports, two lists
		t.Fatalf("numbers %v, taken %v", first, m.numbers)
	}
	changed := restrictedService("a", recordtest.Prefixes("12.0.0.0/8", "13.0.0.0/8"), recordtest.Prefixes("12.0.0.0/8", "13.0.0.0/8"), recordtest.Prefixes("11.0.0.0/8"))
	planned(m, delta(changed))
	if now := m.services[s.Name].numbers; !maps.Equal(now, first) {
		t.Errorf("numbers %v after a change, %v before", now, first)
	}
	again := NewMirror()
	planned(again, delta(changed))
	if now := again.services[s.Name].numbers; !maps.Equal(now, first) {
		t.Errorf("numbers %v in another process, %v in the first", now, first)
	}

	other := NewMirror()
	for _, n := range first {
		other.numbers[n] = struct{}{}
	}
	planned(other, delta(s))
	second := maps.Clone(other.services[s.Name].numbers)
	for o, n := range second {
		if n == first[o] || len(other.numbers) != 10 {
			t.Errorf("%v has the number %#x, which is taken", o, n)
		}
	}
	u := delta(changed)
	other.Change(testSettings(), u, nil) // is never committed
	for _, n := range first {
		delete(other.numbers, n)
	}
	planned(other, u)
	if now := other.services[s.Name].numbers; !maps.Equal(now, second) {
		t.Errorf("numbers %v when the others are free again, %v before", now, second)
	}
	u = delta()
	u.Removed = []state.ServiceName{s.Name}
	planned(other, u)
	if len(other.numbers) != 0 {
		t.Errorf("%v are taken by nobody", other.numbers)
	}
}

// firstNumbers are those that a service gets if nobody has them.
func firstNumbers(s *state.Service) map[owner]uint32 {
	m := NewMirror()
	planned(m, delta(s))
	return m.services[s.Name].numbers
}

// TestNumbersInAComparison: when all is compared with the kernel, services keep their numbers, whichever comes first.
func TestNumbersInAComparison(t *testing.T) {
	a, b := restrictedService("a", recordtest.Prefixes("10.0.0.0/8")), restrictedService("b", recordtest.Prefixes("11.0.0.0/8"))
	previous := NewMirror()
	planned(previous, delta(b))
	theirs := previous.services[b.Name].numbers
	maps.Copy(theirs, firstNumbers(a)) // as after a collision
	p := compared(t, previous, &kernelState{}, Desired{Services: []*state.Service{a, b}, Node: testNode})
	p.Commit()
	if now := p.m.services[b.Name].numbers; !maps.Equal(now, theirs) {
		t.Errorf("b has the numbers %v, had %v", now, theirs)
	}
	for o, n := range p.m.services[a.Name].numbers {
		if n == theirs[o] {
			t.Errorf("a and b share the number %#x", n)
		}
	}
	if len(p.m.numbers) != 4 {
		t.Errorf("%d numbers are taken, want 4", len(p.m.numbers))
	}
}

func compared(t *testing.T, previous *Mirror, ks *kernelState, want Desired) *Plan {
	t.Helper()
	p, err := previous.difference(testSettings(), ks, want)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestPreservedNumbers: a frontend that stays as it is in the kernel keeps its list for itself.
func TestPreservedNumbers(t *testing.T) {
	a, gone := restrictedService("a", recordtest.Prefixes("10.0.0.0/8")), restrictedService("refused", recordtest.Prefixes("11.0.0.0/8"))
	gone.Ports[0].Frontends[0].Addr, gone.Ports[0].Frontends[1].Addr = addr("10.96.9.9"), addr("203.0.113.9")
	first := firstNumbers(a)
	before := renderer{settings: testSettings(), shape: new(shape)}
	before.whole(&applied{record: gone, places: placeService(applied{}, gone), numbers: first}) // as if it had drawn them before
	ks := &kernelState{elements: map[elementKey][maxData]byte{}}
	for i := range before.own {
		ks.elements[before.own[i].id()] = before.own[i].data
	}
	for name, preserved := range map[string]Preserved{
		"one":      {Services: map[state.ServiceName]*state.Service{gone.Name: gone}},
		"all":      {All: true},
		"all, one": {All: true, Services: map[state.ServiceName]*state.Service{gone.Name: gone}},
	} {
		p := compared(t, NewMirror(), &kernelState{elements: maps.Clone(ks.elements)},
			Desired{Services: []*state.Service{a}, Node: testNode, Preserved: preserved})
		p.Commit()
		for _, s := range p.order {
			for e := range s.all(&s.del) {
				t.Errorf("%s: %s loses %x", name, s.set.name(), e.key)
			}
		}
		for o, n := range p.m.services[a.Name].numbers {
			if n == first[o] {
				t.Errorf("%s: %v shares the number %#x with what is preserved", name, o, n)
			}
		}
	}
	p := compared(t, NewMirror(), &kernelState{elements: maps.Clone(ks.elements)},
		Desired{Services: []*state.Service{a}, Node: testNode})
	if now := p.services[a.Name].numbers; !maps.Equal(now, first) {
		t.Errorf("numbers %v when nothing is preserved, want %v", now, first)
	}
}

func TestEndpointNumbers(t *testing.T) {
	eps := endpointsOf(state.IPv6, 1, 1000)
	taken := map[uint32]bool{}
	for _, e := range eps {
		n := endpointNumber(e.Addr, map[uint32]bool{})
		taken[n] = true // somebody else has it
		if m := endpointNumber(e.Addr, taken); m == n || m >= 1<<endpointNumberBits || n >= 1<<endpointNumberBits {
			t.Fatalf("%v has the numbers %#x and %#x", e.Addr, n, m)
		}
	}
	if len(taken) != 2*len(eps) {
		t.Errorf("%d numbers, want %d", len(taken), 2*len(eps))
	}
}

// TestListChanges compares plans for random lists with what differs between them.
func TestListChanges(t *testing.T) {
	random := func(rng *rand.Rand) []netip.Prefix {
		var list []netip.Prefix
		for range rng.IntN(12) {
			a := netip.AddrFrom4([4]byte{byte(rng.IntN(3)), byte(rng.IntN(4) << 6)})
			list = append(list, netip.PrefixFrom(a, rng.IntN(33)).Masked())
		}
		slices.SortFunc(list, netip.Prefix.Compare)
		return slices.Compact(list)
	}
	for seed := range uint64(500) {
		rng := rand.New(rand.NewPCG(seed, 5))
		m := NewMirror()
		held := map[elementKey]bool{}
		for step := range 6 {
			var lists [][]netip.Prefix
			for range 1 + rng.IntN(4) {
				lists = append(lists, random(rng))
			}
			for range rng.IntN(4) {
				lists = append(lists, lists[rng.IntN(len(lists))]) // one that there is
			}
			before := maps.Clone(held)
			writes := 0
			p := planned(m, delta(restrictedService("a", lists...)))
			for _, s := range p.order {
				for e := range s.all(&s.del) {
					if s.set.kind == allowed {
						writes++
						if k := e.id(); !held[k] {
							t.Fatalf("seed %d step %d: %v is not there to be deleted", seed, step, k)
						}
						delete(held, e.id())
					}
				}
			}
			for _, s := range p.order {
				for e := range s.all(&s.add) {
					if s.set.kind == allowed {
						writes++
						held[e.id()] = true
					}
				}
			}
			want := wantAllowed(m, lists)
			if !maps.Equal(held, want) {
				t.Fatalf("seed %d step %d: lists %v make\n%v\nwant\n%v", seed, step, lists, held, want)
			}
			differ := 0
			for k := range held {
				if !before[k] {
					differ++
				}
			}
			for k := range before {
				if !held[k] {
					differ++
				}
			}
			if writes != differ {
				t.Fatalf("seed %d step %d: %d writes for %d differences", seed, step, writes, differ)
			}
		}
	}
}

// wantAllowed is the naive reference: the elements that the lists of the service's ports make.
func wantAllowed(m *Mirror, lists [][]netip.Prefix) map[elementKey]bool {
	want := map[elementKey]bool{}
	var distinct [][]netip.Prefix
	for _, list := range lists {
		i := slices.IndexFunc(distinct, func(other []netip.Prefix) bool { return slices.Equal(list, other) })
		if i < 0 {
			i = len(distinct)
			distinct = append(distinct, list)
		}
		l := allowedList{family: state.IPv4, number: m.services[state.ServiceName{Namespace: "test", Name: "a"}].numbers[listOwner(state.IPv4, i)]}
		for _, src := range list {
			e := l.element(src)
			want[e.id()] = true
		}
	}
	return want
}

// TestTimeouts: many timeouts are few sets, none is shortened, and a timeout in use stays unchanged.
func TestTimeouts(t *testing.T) {
	var sh shape
	stand := map[uint32]uint32{}
	for n := range uint32(20_000) {
		seconds := 1 + n*4%86_400
		at := sh.timeout(seconds)
		if at < seconds || at > seconds+max(1, seconds/5) {
			t.Fatalf("%d s become %d s", seconds, at)
		}
		sh.needs(state.IPv4, setID{kind: stickyFor, arg: at})
		stand[seconds] = at
	}
	if n := len(sh.timeouts); n > maxExactTimeouts+len(timeoutSteps) || len(timeoutSteps) > 64 {
		t.Errorf("%d time-outs, %d steps", n, len(timeoutSteps))
	}
	for seconds, at := range stand {
		if now := sh.timeout(seconds); now != at {
			t.Fatalf("%d s became %d s and then %d s", seconds, at, now)
		}
	}
	restarted := shapeOf(state.IPv4, func() (names []string) {
		for _, id := range setIDs(state.IPv4, &sh) {
			names = append(names, id.name())
		}
		return names
	}())
	if !restarted.equal(&sh) {
		t.Error("another shape after a restart")
	}
	for seconds := range uint32(100_000) {
		if at := new(shape).timeout(seconds); at != seconds {
			t.Fatalf("%d s become %d s though there is room", seconds, at)
		}
	}
}

// TestManyFrontendsShareAList is the attack of one Service whose ports and ranges multiply.
func TestManyFrontendsShareAList(t *testing.T) {
	var list []netip.Prefix
	for i := range 1000 {
		list = append(list, netip.PrefixFrom(netip.AddrFrom4([4]byte{11, byte(i >> 8), byte(i), 0}), 24))
	}
	lists := make([][]netip.Prefix, 1000)
	for i := range lists {
		lists[i] = slices.Clone(list) // as they come over the API
	}
	count := func(p *Plan) map[string]int {
		n := map[string]int{}
		for _, s := range p.order {
			n[s.set.name()] += s.add.n
		}
		return n
	}
	m := NewMirror()
	n := count(planned(m, delta(restrictedService("a", lists...))))
	if n["allowed-24"] != 1000 || n["service-restricted"] != 1000 {
		t.Errorf("elements: %v", n)
	}
	lists[500] = list[1:] // one frontend has another list
	n = count(planned(m, delta(restrictedService("a", lists...))))
	if n["allowed-24"] != 999 || n["service-restricted"] != 1 || fmt.Sprint(slices.Sorted(maps.Keys(n))) != "[allowed-24 service-restricted]" {
		t.Errorf("elements when one frontend's list differs: %v", n)
	}
}
