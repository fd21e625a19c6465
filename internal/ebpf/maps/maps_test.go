//go:build linux

package maps_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/ebpf/ebpftest"
	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// open makes maps, and skips the test where that is not possible.
func open(t *testing.T, needs maps.Needs, dawdle time.Duration) *ebpftest.Reader {
	t.Helper()
	r, err := ebpftest.NewReader(needs, dawdle)
	// Readers that take their time wait in a callback, for which the kernel needs a JIT compiler. Debian's for s390x has none.
	if errors.Is(err, unix.EPERM) || err != nil && strings.Contains(err.Error(), "callbacks are not allowed in non-JITed programs") {
		t.Skip(err)
	}
	ok(t, err)
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func ok(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// routeTo is a route with a cluster IP and endpoints that are all made of n.
func routeTo(f state.Family, n, endpoints int, c plan.Clients) plan.Route {
	address := func(first byte, i int) netip.Addr {
		a := [16]byte{0xfd, first, 13: byte(n >> 8), 14: byte(n), 15: byte(i)}
		if f == state.IPv4 {
			return netip.AddrFrom4([4]byte{first, a[13], a[14], a[15]})
		}
		return netip.AddrFrom16(a)
	}
	p := &state.Port{Protocol: state.TCP, Family: f, Frontends: []state.Frontend{
		{Kind: state.ClusterIP, Addr: address(10, 255), Port: uint16(80 + n)}, {Kind: state.NodePort, Port: uint16(30000 + n)},
	}}
	p.Internal.Inside.Verdict = state.Forward
	for i := range endpoints {
		p.Internal.Inside.Endpoints = append(p.Internal.Inside.Endpoints,
			state.Endpoint{Addr: netip.AddrPortFrom(address(11, i%256), uint16(0x1234+n+i))})
	}
	return plan.Route{Port: p, Clients: c, Frontends: 3}
}

// add adds a route with its frontends.
func add(t *testing.T, r *ebpftest.Reader, route plan.Route) *maps.Placed {
	t.Helper()
	p := &maps.Placed{Route: route}
	var err error
	p.At, err = r.Tables.Add(&p.Route)
	ok(t, err)
	for _, f := range p.All() {
		ok(t, r.Tables.Put(p.Port.Family, f, p.At))
	}
	ok(t, r.Tables.Flush())
	return p
}

// remove removes a route with its frontends.
func remove(t *testing.T, r *ebpftest.Reader, p *maps.Placed) {
	t.Helper()
	for _, f := range p.All() {
		ok(t, r.Tables.Delete(p.Port.Family, f))
	}
	r.Tables.Remove(p)
}

// findsAlike checks that Find finds a frontend exactly if programs do.
func findsAlike(t *testing.T, r *ebpftest.Reader, family state.Family, f plan.Frontend) maps.Found {
	t.Helper()
	a, err := r.Ask(family, f)
	ok(t, err)
	found, _, err := r.Tables.Find(family, f)
	ok(t, err)
	if (len(found.Endpoints) > 0) != (a.Word != 0) {
		t.Errorf("%v is found as %+v, and programs find the word %x", f, found, a.Word)
	}
	return found
}

// leads checks that programs find a route by all its frontends, and draw each of its endpoints, and that Find finds all of them.
func leads(t *testing.T, r *ebpftest.Reader, p *maps.Placed) {
	t.Helper()
	var endpoints []netip.AddrPort
	for _, e := range p.Endpoints() {
		endpoints = append(endpoints, e.Addr)
	}
	for _, f := range p.All() {
		if found := findsAlike(t, r, p.Port.Family, f); found.Clients != p.Clients || found.Base != p.At.Base() || !slices.Equal(found.Endpoints, endpoints) {
			t.Errorf("%v is found as %+v, want %v at %d", f, found, endpoints, p.At.Base())
		}
		drawn := map[netip.AddrPort]bool{}
		for range 100 * len(p.Endpoints()) {
			a, err := r.Ask(p.Port.Family, f)
			ok(t, err)
			if word := uint64(p.At.Base()) | uint64(len(p.Endpoints()))<<32 | uint64(p.Clients)<<56; a.Word != word {
				t.Fatalf("%v leads to the route %x, want %x", f, a.Word, word)
			}
			i := a.Slot - p.At.Base()
			if int(i) >= len(p.Endpoints()) || a.Endpoint != p.Endpoints()[i].Addr {
				t.Fatalf("%v leads to slot %d with %v, its slots are %d to %d with %v", f, a.Slot, a.Endpoint, p.At.Base(), int(p.At.Base())+len(p.Endpoints())-1, p.Endpoints())
			}
			if drawn[a.Endpoint] = true; len(drawn) == len(p.Endpoints()) {
				break
			}
		}
		if len(drawn) != len(p.Endpoints()) {
			t.Errorf("%v: %d of %d endpoints were drawn", f, len(drawn), len(p.Endpoints()))
		}
	}
}

// leadsNowhere checks that programs do not find frontends.
func leadsNowhere(t *testing.T, r *ebpftest.Reader, p *maps.Placed) {
	t.Helper()
	for _, f := range p.All() {
		a, err := r.Ask(p.Port.Family, f)
		ok(t, err)
		if a.Word != 0 {
			t.Errorf("%v still leads to the route %x", f, a.Word)
		}
	}
}

// TestProgramsFindWhatIsWritten: both sides have the same layouts, hashes and words.
func TestProgramsFindWhatIsWritten(t *testing.T) {
	r := open(t, maps.Needs{}, 0)
	var all []*maps.Placed
	for n, endpoints := range []int{1, 2, 3, 7, 64, 300} {
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			all = append(all, add(t, r, routeTo(f, n, endpoints, plan.Clients(1+n%3))))
		}
	}
	if got := r.Tables.Frontends(); got != 2*len(all) {
		t.Errorf("there are %d frontends, want %d", got, 2*len(all))
	}
	for _, p := range all {
		leads(t, r, p)
		for _, f := range p.All() {
			a, err := r.Ask(p.Port.Family, f)
			ok(t, err)
			var value uint64
			ok(t, frontends(r, p.Port.Family).Lookup(ebpftest.Key(p.Port.Family, f), &value))
			if value != uint64(a.Check)<<32|uint64(p.At.Index()) {
				t.Errorf("%v: value %x, programs want %x and route %d", f, value, a.Check, p.At.Index())
			}
		}
	}
	// Near misses lead nowhere.
	for _, f := range []plan.Frontend{{Addr: netip.MustParseAddr("10.0.0.255"), Port: 79}, {Port: 29999}, {Addr: netip.MustParseAddr("10.0.0.254"), Port: 80}} {
		if a, err := r.Ask(state.IPv4, f); err != nil || a.Word != 0 {
			t.Errorf("%v leads to %x: %v", f, a.Word, err)
		}
	}
	for _, p := range all {
		p.Clients ^= 3
		r.Tables.Show(p)
		leads(t, r, p)
		next := routeTo(p.Port.Family, int(p.Port.Frontends[0].Port)-80, len(p.Endpoints())+1, p.Clients)
		at, err := r.Tables.Replace(p, &next)
		ok(t, err)
		p.Route, p.At = next, at
		leads(t, r, p)
		remove(t, r, p)
		leadsNowhere(t, r, p)
	}
	if got := r.Tables.Frontends(); got != 0 {
		t.Errorf("%d frontends are left", got)
	}
}

func frontends(r *ebpftest.Reader, f state.Family) *ebpf.Map {
	return r.Programs.Maps[fmt.Sprintf("frontends%d", f)]
}

// TestProgramsDrawByWeight: programs draw an endpoint as often as its weight asks for, and Repair finds what was written.
func TestProgramsDrawByWeight(t *testing.T) {
	r := open(t, maps.Needs{}, 0)
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		port := routeTo(f, 1, 3, plan.Node).Port
		for i := range port.Internal.Inside.Endpoints {
			port.Internal.Inside.Endpoints[i].Weight = []uint16{6, 1, 1}[i]
		}
		p := add(t, r, plan.Append(nil, &state.Service{Ports: []state.Port{*port}}, &plan.Settings{})[0])
		var needs maps.Needs
		if needs.Add(&p.Route); needs.Slots[0]+needs.Slots[1] != 8 {
			t.Errorf("the route needs %v slots, want 8", needs.Slots)
		}
		for _, frontend := range p.All() {
			const asked = 2000
			first := 0
			for range asked {
				a, err := r.Ask(f, frontend)
				ok(t, err)
				if a.Endpoint == port.Internal.Inside.Endpoints[0].Addr {
					first++
				}
			}
			if first < 1400 || first > 1600 { // 5 standard deviations
				t.Errorf("the endpoint with 6 of 8 is drawn %d of %d times", first, asked)
			}
			if found := findsAlike(t, r, f, frontend); len(found.Endpoints) != 8 {
				t.Errorf("%d slots are found", len(found.Endpoints))
			}
		}
		repaired, err := r.Tables.Repair(slices.Values([]*maps.Placed{p}))
		if ok(t, err); repaired > 0 {
			t.Errorf("%d were repaired", repaired)
		}
		remove(t, r, p)
	}
}

// TestNoReadIsMixed: a reader that takes its time between route and slot finds an endpoint of the set that the route led to.
func TestNoReadIsMixed(t *testing.T) {
	const dawdle = 20 * time.Microsecond
	open(t, maps.Needs{}, dawdle) // or skip
	reads, err := ebpftest.MixedReads(t.Context(), 1_000_000, dawdle)
	ok(t, err)
	t.Logf("%+v", reads)
	if reads.Mixed > 0 || reads.Misses > 0 || reads.Reads < 1000 || reads.Changes != 1_000_000 {
		t.Errorf("reads are %+v", reads)
	}
}

// TestReusedSlotsMixReads: the test above would see it if slots were used again without a grace period. On a busy machine, reader and writer
// may take turns for a while.
func TestReusedSlotsMixReads(t *testing.T) {
	var reads ebpftest.Reads
	for range 100 {
		r := open(t, maps.Needs{}, 20*time.Microsecond)
		var err error
		reads, err = r.Flip(t.Context(), 200_000, r.Tables.ReuseAtOnce)
		ok(t, err)
		if reads.Mixed > 0 {
			t.Logf("%+v", reads)
			return
		}
	}
	t.Errorf("slots were used again at once, and no read was mixed: %+v", reads)
}

// TestRecycledElements: the kernel gives elements of deleted frontends to new ones, under readers. The check word keeps these from taking a
// route for their own that is another's. On a busy machine, reader and writer may take turns for a while.
func TestRecycledElements(t *testing.T) {
	if reads := recycle(t, "recycled4"); reads.Strays > 0 || reads.Reads == reads.Misses {
		t.Errorf("with the check word: %+v", reads)
	}
	var reads ebpftest.Reads
	for range 100 {
		if reads = recycle(t, "unchecked4"); reads.Strays > 0 {
			return
		}
	}
	t.Errorf("without the check word, nothing went astray: %+v", reads)
}

// recycle has a program look up a frontend that is deleted and put back, again and again, while other frontends take
// its element.
func recycle(t *testing.T, program string) ebpftest.Reads {
	t.Helper()
	r := open(t, maps.Needs{}, 20*time.Microsecond)
	var frontends [4]plan.Frontend
	var at [4]maps.Place
	for i := range frontends {
		route := routeTo(state.IPv4, 0, 1, plan.Clients(i))
		frontends[i] = plan.Frontend{Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), Port: 80}
		var err error
		at[i], err = r.Tables.Add(&route)
		ok(t, err)
	}
	put := func(i int) error { return errors.Join(r.Tables.Put(state.IPv4, frontends[i], at[i]), r.Tables.Flush()) }
	ok(t, put(1))
	reads, err := r.While(t.Context(), program, frontends[1], 60_000, func(i int) error {
		other := 2 + i%2
		return errors.Join(r.Tables.Delete(state.IPv4, frontends[1]), put(other), put(1), r.Tables.Delete(state.IPv4, frontends[other]))
	})
	ok(t, err)
	t.Logf("%s: %+v", program, reads)
	return reads
}

// TestSlotsAreUsedAgain: after a grace period, and not before.
func TestSlotsAreUsedAgain(t *testing.T) {
	r := open(t, maps.Needs{}, 0)
	p := add(t, r, routeTo(state.IPv6, 1, 5, plan.Node))
	before := p.At
	remove(t, r, p)
	used, free := r.Tables.Slots(state.IPv6)
	if routes, freeRoutes := r.Tables.Routes(); used != 5 || free != 0 || routes != 1 || freeRoutes != 0 {
		t.Fatalf("%d slots and %d routes are used, %d and %d free already", used, routes, free, freeRoutes)
	}
	// The slots may be usable a grace period before the route, which is retired after them.
	freeRoutes := 0
	await.Until(t, "slots and a route are usable again", func() bool {
		r.Tables.Reclaim()
		_, free = r.Tables.Slots(state.IPv6)
		_, freeRoutes = r.Tables.Routes()
		return free > 0 && freeRoutes > 0
	})
	// Only as many in a row as there were.
	if p := add(t, r, routeTo(state.IPv6, 2, 6, plan.Node)); p.At.Base() != 5 || p.At.Index() != before.Index() {
		t.Errorf("a larger route is at %+v", p.At)
	}
	p = add(t, r, routeTo(state.IPv6, 3, 5, plan.Node))
	if p.At.Base() != before.Base() {
		t.Errorf("the slots at %d were not used again: %+v", before.Base(), p.At)
	}
	leads(t, r, p)
}

// TestFull: each kind of map says when it has no room, and what is there stays as it is.
func TestFull(t *testing.T) {
	const size = 4096 // of the smallest maps
	t.Run("slots", func(t *testing.T) {
		r := open(t, maps.Needs{}, 0)
		p := add(t, r, routeTo(state.IPv4, 1, size/2, plan.Node))
		routes := uint32(1)
		for n := size / 4; n >= 16; n /= 2 {
			add(t, r, routeTo(state.IPv4, 9, n, plan.Node))
			routes++
		}
		add(t, r, routeTo(state.IPv4, 9, 13, plan.Node)) // three slots are left
		routes++
		more := routeTo(state.IPv4, 2, 4, plan.Node)
		if _, err := r.Tables.Add(&more); !errors.Is(err, maps.ErrFull) {
			t.Errorf("adding a route: %v", err)
		}
		if at, err := r.Tables.Replace(p, &more); !errors.Is(err, maps.ErrFull) || at != p.At {
			t.Errorf("replacing it: %v, %v", at, err)
		}
		small := add(t, r, routeTo(state.IPv4, 3, 3, plan.Node)) // takes the index that was given back
		if small.At.Index() != routes {
			t.Errorf("the next route is at %+v", small.At)
		}
		leads(t, r, small)
	})
	t.Run("routes", func(t *testing.T) {
		r := open(t, maps.Needs{Slots: [2]int{2 * size, 0}}, 0)
		route := routeTo(state.IPv4, 1, 1, plan.Node)
		for range size {
			_, err := r.Tables.Add(&route)
			ok(t, err)
		}
		if _, err := r.Tables.Add(&route); !errors.Is(err, maps.ErrFull) {
			t.Errorf("adding a route: %v", err)
		}
	})
	t.Run("frontends", func(t *testing.T) {
		r := open(t, maps.Needs{}, 0)
		for _, family := range []state.Family{state.IPv4, state.IPv6} {
			put := func(port int) error { return r.Tables.Put(family, plan.Frontend{Port: uint16(port)}, maps.Place{}) }
			for i := range size {
				ok(t, put(i))
			}
			if err := put(size); !errors.Is(err, maps.ErrFull) {
				t.Errorf("putting a frontend of %v: %v", family, err)
			}
			ok(t, r.Tables.Flush(), r.Tables.Delete(family, plan.Frontend{Port: 7}), put(size), r.Tables.Flush())
		}
	})
}

func TestResize(t *testing.T) {
	size := func(needed int) (sizes []uint32) {
		spec := &ebpf.CollectionSpec{Maps: map[string]*ebpf.MapSpec{}}
		names := []string{"frontends4", "frontends6", "routes", "slots4", "slots6"}
		for _, name := range names {
			spec.Maps[name] = &ebpf.MapSpec{}
		}
		maps.Resize(spec, maps.Needs{Frontends: [2]int{needed, needed + 1}, Routes: needed + 2, Slots: [2]int{needed + 3, needed + 4}})
		for _, name := range names {
			sizes = append(sizes, spec.Maps[name].MaxEntries)
		}
		return sizes
	}
	for needed, want := range map[int][]uint32{
		0:       {4096, 4096, 4096, 4096, 4096},
		2728:    {4096, 4096, 4096, 4096, 8192}, // 2731 with a half more is 4096
		100_000: {262144, 262144, 262144, 262144, 262144},
	} {
		if got := size(needed); !slices.Equal(got, want) {
			t.Errorf("for %d: %v, want %v", needed, got, want)
		}
	}
	var n maps.Needs
	route4, route6 := routeTo(state.IPv4, 1, 3, plan.Node), routeTo(state.IPv6, 1, 4, plan.Node)
	n.Add(&route4)
	n.Add(&route6)
	n.Add(&route6)
	if want := (maps.Needs{Frontends: [2]int{2, 4}, Slots: [2]int{3, 8}, Routes: 3}); n != want {
		t.Errorf("needs are %+v, want %+v", n, want)
	}
}

// TestRepair damages everything that programs read.
func TestRepair(t *testing.T) {
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		r := open(t, maps.Needs{}, 0)
		var all []*maps.Placed
		for n := range 20 {
			all = append(all, add(t, r, routeTo(family, n, 3, plan.Pods|plan.Node)))
		}
		repair := func() int {
			n, err := r.Tables.Repair(slices.Values(all))
			ok(t, err)
			return n
		}
		if n := repair(); n != 0 {
			t.Fatalf("%v: %d were repaired that were not damaged", family, n)
		}
		m, slots := frontends(r, family), r.Programs.Maps[fmt.Sprintf("slots%d", family)]
		key := func(p *maps.Placed) []byte {
			for _, f := range p.All() {
				return ebpftest.Key(family, f)
			}
			return nil
		}
		value := func(p *maps.Placed) (v uint64) { ok(t, m.Lookup(key(p), &v)); return v }
		stranger := ebpftest.Key(family, plan.Frontend{Port: 1})
		for name, damage := range map[string]func(){
			"frontend deleted":                  func() { ok(t, m.Delete(key(all[1]))) },
			"frontend added":                    func() { ok(t, m.Put(stranger, value(all[1]))) },
			"frontend leads to another's route": func() { ok(t, m.Put(key(all[1]), value(all[1])+1)) },
			"frontend has another's check":      func() { ok(t, m.Put(key(all[1]), value(all[2]))) },
			"route emptied":                     func() { ok(t, r.Programs.Maps["routes"].Put(all[1].At.Index(), uint64(0))) },
			"slot overwritten": func() {
				ok(t, slots.Put(all[1].At.Base()+2, make([]byte, slots.ValueSize())))
			},
			"the last byte of a slot": func() {
				b, err := slots.LookupBytes(all[1].At.Base())
				ok(t, err)
				b[len(b)-1]++
				ok(t, slots.Put(all[1].At.Base(), b))
			},
		} {
			damage()
			for _, p := range all[:3] {
				for _, f := range p.All() {
					findsAlike(t, r, family, f)
				}
			}
			if n := repair(); n != 1 {
				t.Errorf("%v, %s: %d were repaired, want 1", family, name, n)
			}
			if n := repair(); n != 0 {
				t.Errorf("%v, %s: %d were repaired once more", family, name, n)
			}
			for _, p := range all[:3] {
				leads(t, r, p)
			}
			if a, err := r.Ask(family, plan.Frontend{Port: 1}); err != nil || a.Word != 0 {
				t.Errorf("%v, %s: a frontend that is not ours leads to %x: %v", family, name, a.Word, err)
			}
		}
		// All at once, with more frontends than are written one by one, and a map that is full of other frontends.
		for _, p := range all {
			for _, f := range p.All() {
				ok(t, m.Delete(ebpftest.Key(family, f)))
			}
		}
		for i := range 4096 {
			ok(t, m.Put(ebpftest.Key(family, plan.Frontend{Addr: netip.Addr{}, Port: uint16(i)}), uint64(0)))
		}
		if n := repair(); n != 40+4096 {
			t.Errorf("%v: %d were repaired, want %d", family, n, 40+4096)
		}
		if n := repair(); n != 0 {
			t.Errorf("%v: %d were repaired once more", family, n)
		}
		for _, p := range all {
			leads(t, r, p)
		}
	}
}
