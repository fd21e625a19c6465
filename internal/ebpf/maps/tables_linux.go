package maps

import (
	"errors"
	"fmt"
	"iter"
	"math/bits"
	"net/netip"
	"unsafe"

	"github.com/cilium/ebpf"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/internal/kernel/bpfarray"
	"github.com/switchyard-net/switchyard/state"
)

// ErrFull means that the maps have no room, and larger ones are to be made.
var ErrFull = errors.New("the maps are full")

// Needs is how much maps have to hold.
type Needs struct {
	// Frontends, Routes and Slots have one count for IPv4 and one for IPv6, in this order; routes count for both.
	Frontends, Slots [2]int
	Routes           int
}

// Add counts a route.
func (n *Needs) Add(r *plan.Route) {
	f := familyOf(r.Port.Family)
	n.Frontends[f] += bits.OnesCount64(r.Frontends)
	n.Slots[f] += slotsFor(r.Slots())
	n.Routes++
}

// slotsFor returns how much room so many slots take. There are few sizes of many slots, so that what one route leaves another can use.
func slotsFor(slots int) int {
	if slots <= 16 {
		return slots
	}
	return 1 << bits.Len(uint(slots-1))
}

const (
	v4 = iota
	v6
)

func familyOf(f state.Family) int {
	if f == state.IPv6 {
		return v6
	}
	return v4
}

// leastSize is how many elements each map has at least.
const leastSize = 4096

// Resize sets the sizes of the maps of a collection for n.
func Resize(spec *ebpf.CollectionSpec, n Needs) {
	for name, needed := range map[string]int{
		"frontends4": n.Frontends[v4], "frontends6": n.Frontends[v6], "routes": n.Routes, "slots4": n.Slots[v4], "slots6": n.Slots[v6],
	} {
		spec.Maps[name].MaxEntries = sizeFor(needed)
	}
}

// sizeFor returns the size of a map. It has room for needed elements, and for a half more before it must grow.
func sizeFor(needed int) uint32 {
	size := uint32(leastSize)
	for int(size) < needed+needed/2 {
		size *= 2
	}
	return size
}

// Place is where a route is.
type Place struct {
	index, base uint32
}

// Tables are the maps of one collection. Only one goroutine may use them at a time.
type Tables struct {
	frontends [2]*ebpf.Map
	used      [2]uint32
	routes    bpfarray.Array
	slots     [2]bpfarray.Array

	// Slots from next on were never used; free has the freed ones, by the number of slots in a row.
	nextRoute  uint32
	freeRoutes []uint32
	nextSlot   [2]uint32
	freeSlots  [2]map[int][]uint32
	grace      *grace[region]
	// counters is nil if nothing is counted.
	counters *Counters

	// added are frontends that wait for Flush.
	added4 []frontend4
	added6 []frontend6
	values [2][]uint64
}

// New takes the maps of a collection, which must be empty. The collection remains the caller's, and so do the counters of its frontends: nil
// if nothing is counted.
func New(c *ebpf.Collection, counters *Counters) (*Tables, error) {
	t := &Tables{frontends: [2]*ebpf.Map{c.Maps["frontends4"], c.Maps["frontends6"]}, counters: counters}
	t.freeSlots = [2]map[int][]uint32{{}, {}}
	var err error
	for _, m := range []struct {
		name string
		to   *bpfarray.Array
	}{{"routes", &t.routes}, {"slots4", &t.slots[v4]}, {"slots6", &t.slots[v6]}} {
		if *m.to, err = bpfarray.Of(c.Maps[m.name]); err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", m.name, err), t.Close())
		}
	}
	if t.grace, err = newGrace[region](); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// Close lets go of the memory of the maps.
func (t *Tables) Close() error {
	if t.grace != nil {
		t.grace.close()
	}
	return errors.Join(t.routes.Close(), t.slots[v4].Close(), t.slots[v6].Close())
}

// Frontends returns how many frontends there are.
func (t *Tables) Frontends() int { return int(t.used[v4] + t.used[v6]) }

// Reclaim makes regions usable again whose grace period has passed.
func (t *Tables) Reclaim() {
	for _, r := range t.grace.past() {
		if r.count > 0 {
			t.freeSlots[r.family][r.count] = append(t.freeSlots[r.family][r.count], r.base)
		} else {
			t.freeRoutes = append(t.freeRoutes, r.base)
		}
	}
}

// Placed is a route with its place. Frontends are those that lead to it.
type Placed struct {
	plan.Route
	At Place
}

// Add adds a route, to which no frontend leads yet.
func (t *Tables) Add(r *plan.Route) (Place, error) {
	index, ok := t.takeRoute()
	if !ok {
		return Place{}, ErrFull
	}
	base, err := t.fill(r)
	if err != nil {
		t.freeRoutes = append(t.freeRoutes, index)
		return Place{}, err
	}
	at := Place{index, base}
	t.show(at, r)
	return at, nil
}

// Replace makes a route another one, with other endpoints, and returns its new place. The frontends that lead to it do so all the time.
func (t *Tables) Replace(had *Placed, next *plan.Route) (Place, error) {
	base, err := t.fill(next)
	if err != nil {
		return had.At, err
	}
	at := Place{had.At.index, base}
	t.show(at, next)
	t.retireSlots(had)
	return at, nil
}

// Show makes a route that is already there serve r.Clients.
func (t *Tables) Show(r *Placed) { t.show(r.At, &r.Route) }

// Remove removes a route, to which no frontend may lead.
func (t *Tables) Remove(r *Placed) {
	t.routes.Store(r.At.index, 0, 0)
	t.retireSlots(r)
	t.grace.retire(region{base: r.At.index})
}

func (t *Tables) retireSlots(r *Placed) {
	t.grace.retire(region{familyOf(r.Port.Family), r.At.base, slotsFor(r.Slots())})
}

func (t *Tables) show(at Place, r *plan.Route) {
	t.routes.Store(at.index, 0, wordOf(at.base, r.Slots(), r.Clients))
}

// fill writes the endpoints of a route into slots that nothing leads to.
func (t *Tables) fill(r *plan.Route) (base uint32, err error) {
	family := familyOf(r.Port.Family)
	base, ok := t.takeSlots(family, slotsFor(r.Slots()))
	if !ok {
		return 0, ErrFull
	}
	slots := &t.slots[family]
	for i, e := range r.EachSlot() {
		words := slotOf(e.Addr)
		for w := range slots.Each() {
			slots.Store(base+uint32(i), w, words[w])
		}
	}
	return base, nil
}

func (t *Tables) takeRoute() (uint32, bool) {
	if n := len(t.freeRoutes); n > 0 {
		index := t.freeRoutes[n-1]
		t.freeRoutes = t.freeRoutes[:n-1]
		return index, true
	}
	if t.nextRoute == t.routes.Size() {
		return 0, false
	}
	t.nextRoute++
	return t.nextRoute - 1, true
}

func (t *Tables) takeSlots(family, n int) (uint32, bool) {
	free := t.freeSlots[family]
	if k := len(free[n]); k > 0 {
		base := free[n][k-1]
		free[n] = free[n][:k-1]
		return base, true
	}
	base := t.nextSlot[family]
	if uint64(base)+uint64(n) > uint64(t.slots[family].Size()) {
		return 0, false
	}
	t.nextSlot[family] += uint32(n)
	return base, true
}

// Put makes a frontend lead to the route at a place, once Flush has been called.
func (t *Tables) Put(family state.Family, f plan.Frontend, at Place) error {
	n := familyOf(family)
	if t.used[n] == t.frontends[n].MaxEntries() {
		return ErrFull
	}
	if t.counters != nil {
		if err := t.counters.count(family, f); err != nil {
			return err
		}
	}
	t.used[n]++
	t.queue(n, f, at)
	return nil
}

func (t *Tables) queue(family int, f plan.Frontend, at Place) {
	if family == v4 {
		key := encode4(f)
		t.added4 = append(t.added4, key)
		t.values[v4] = append(t.values[v4], valueOf(key[:], at.index))
	} else {
		key := encode6(f)
		t.added6 = append(t.added6, key)
		t.values[v6] = append(t.values[v6], valueOf(key[:], at.index))
	}
}

// keepAdded is how much room for frontends that wait is kept for the next time.
const keepAdded = 1024

// Flush writes the frontends that were put.
func (t *Tables) Flush() error {
	err := errors.Join(put(t.frontends[v4], t.added4, t.values[v4]), put(t.frontends[v6], t.added6, t.values[v6]))
	t.added4, t.added6 = emptied(t.added4), emptied(t.added6)
	t.values = [2][]uint64{emptied(t.values[v4]), emptied(t.values[v6])}
	return err
}

func emptied[T any](list []T) []T {
	if cap(list) > keepAdded {
		return nil
	}
	return list[:0]
}

// fewFrontends is up to how many are cheaper written one by one.
const fewFrontends = 8

func put[K frontend4 | frontend6](m *ebpf.Map, keys []K, values []uint64) error {
	if len(keys) > fewFrontends {
		if _, err := m.BatchUpdate(keys, values, nil); err != nil {
			return fmt.Errorf("adding %d frontends: %w", len(keys), err)
		}
		return nil
	}
	for i := range keys {
		if err := m.Put(unsafe.Pointer(&keys[i]), unsafe.Pointer(&values[i])); err != nil {
			return fmt.Errorf("adding a frontend: %w", err)
		}
	}
	return nil
}

// Delete removes a frontend. It is gone when Delete returns.
func (t *Tables) Delete(family state.Family, f plan.Frontend) error {
	n := familyOf(family)
	var err error
	if n == v4 {
		key := encode4(f)
		err = t.frontends[n].Delete(unsafe.Pointer(&key))
	} else {
		key := encode6(f)
		err = t.frontends[n].Delete(unsafe.Pointer(&key))
	}
	t.used[n]--
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("removing a frontend: %w", err)
	}
	return nil
}

// Found is where a frontend leads: the number of its route, the first of its slots, the clients that it is for, and the endpoints.
type Found struct {
	Route, Base uint32
	Clients     plan.Clients
	Endpoints   []netip.AddrPort
}

// lookups is how often a lookup is repeated that met a change.
const lookups = 4

// Find looks a frontend up as programs do; it returns nothing that they do not find. It may be called concurrently
// with all other methods but Close.
func (t *Tables) Find(family state.Family, f plan.Frontend) (found Found, ok bool, err error) {
	n := familyOf(family)
	key, slots := keyOf(n, f), &t.slots[n]
	for range lookups {
		var value uint64
		if err := t.frontends[n].Lookup(key, &value); errors.Is(err, ebpf.ErrKeyNotExist) {
			return Found{}, false, nil
		} else if err != nil {
			return Found{}, false, fmt.Errorf("reading a frontend: %w", err)
		}
		route := uint32(value)
		if value != valueOf(key, route) || route >= t.routes.Size() {
			continue
		}
		word := t.routes.Load(route, 0)
		base, count, clients := partsOf(word)
		found = Found{Route: route, Base: base, Clients: clients}
		for i := range uint32(count) {
			if base+i >= slots.Size() {
				break // programs do not find it either
			}
			var words [3]uint64
			for w := range slots.Each() {
				words[w] = slots.Load(base+i, w)
			}
			found.Endpoints = append(found.Endpoints, endpointOf(words, family))
		}
		if t.routes.Load(route, 0) == word { // else the slots may be another one's by now
			return found, true, nil
		}
	}
	return Found{}, false, nil
}

func keyOf(family int, f plan.Frontend) []byte {
	if family == v4 {
		k := encode4(f)
		return k[:]
	}
	k := encode6(f)
	return k[:]
}

// Repair compares the maps with all routes and writes the differences. It returns the number of frontends, routes and
// slots that differed.
func (t *Tables) Repair(routes iter.Seq[*Placed]) (repaired int, err error) {
	held4, err4 := contents[frontend4](t.frontends[v4])
	held6, err6 := contents[frontend6](t.frontends[v6])
	if err := errors.Join(err4, err6); err != nil {
		return 0, err
	}
	for r := range routes {
		family := familyOf(r.Port.Family)
		repaired += t.repairRoute(r, family)
		for _, f := range r.All() {
			var right bool
			if family == v4 {
				right = takeOut(held4, encode4(f), r.At)
			} else {
				right = takeOut(held6, encode6(f), r.At)
			}
			if !right {
				repaired++
				t.queue(family, f, r.At)
			}
		}
	}
	repaired += len(held4) + len(held6)
	if t.counters != nil {
		counters, err := t.counters.repair()
		repaired += counters
		if err != nil {
			return repaired, err
		}
	}
	// Foreign elements go first: they may have taken the room.
	return repaired, errors.Join(drop(t.frontends[v4], held4), drop(t.frontends[v6], held6), t.Flush())
}

func (t *Tables) repairRoute(r *Placed, family int) (repaired int) {
	slots := &t.slots[family]
	for i, e := range r.EachSlot() {
		words, differs := slotOf(e.Addr), false
		for w := range slots.Each() {
			if at := r.At.base + uint32(i); slots.Load(at, w) != words[w] {
				slots.Store(at, w, words[w])
				differs = true
			}
		}
		if differs {
			repaired++
		}
	}
	if t.routes.Load(r.At.index, 0) != wordOf(r.At.base, r.Slots(), r.Clients) {
		t.Show(r)
		repaired++
	}
	return repaired
}

// takeOut removes a frontend from what a map holds and reports whether it was there and leads to that place.
func takeOut[K frontend4 | frontend6](held map[K]uint64, key K, at Place) bool {
	var want uint64
	switch k := any(key).(type) {
	case frontend4:
		want = valueOf(k[:], at.index)
	case frontend6:
		want = valueOf(k[:], at.index)
	}
	v, there := held[key]
	delete(held, key)
	return there && v == want
}

// contents returns what a map holds.
func contents[K frontend4 | frontend6](m *ebpf.Map) (map[K]uint64, error) {
	const chunk = 4096
	keys, values := make([]K, chunk), make([]uint64, chunk)
	held := map[K]uint64{}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			held[keys[i]] = values[i]
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return held, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading frontends: %w", err)
		}
	}
}

func drop[K frontend4 | frontend6](m *ebpf.Map, keys map[K]uint64) error {
	for key := range keys {
		if err := m.Delete(unsafe.Pointer(&key)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return fmt.Errorf("removing a frontend: %w", err)
		}
	}
	return nil
}
