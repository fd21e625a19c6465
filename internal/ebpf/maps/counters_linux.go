package maps

import (
	"errors"
	"fmt"
	"iter"
	"sync"
	"unsafe"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Counters count the connections that hooks take, by frontend. An element lives as long as a record has the frontend.
// It outlives the hooks' entry of the frontend, and the current tables and programs.
type Counters struct {
	grace *grace[dropped]

	mu sync.Mutex // guards all below
	// maps are the map of each family, and before it those that were too small: programs that were not replaced yet count there.
	maps [2][]*ebpf.Map
	held map[state.FrontendKey]*counter
}

// counter is the record of a frontend's count.
type counter struct {
	// records is how many records have it. While it moves from one record to another, both have it for a moment.
	records int
	// there is set if it has an element.
	there bool
	// inherited is the count of the element when it was taken over from a record that is gone.
	inherited uint64
	// drops counts the times at which the last record of it was dropped.
	drops int
}

// dropped is a frontend that no record has since its nth drop.
type dropped struct {
	key state.FrontendKey
	nth int
}

// NewCounters returns counters without maps, which Grow makes.
func NewCounters() (*Counters, error) {
	g, err := newGrace[dropped]()
	if err != nil {
		return nil, err
	}
	return &Counters{grace: g, held: map[state.FrontendKey]*counter{}}, nil
}

// Close lets go of the maps.
func (c *Counters) Close() error {
	c.grace.close()
	c.mu.Lock()
	defer c.mu.Unlock()
	var errs []error
	for _, maps := range c.maps {
		for _, m := range maps {
			errs = append(errs, m.Close())
		}
	}
	return errors.Join(errs...)
}

// Hold takes the frontends of a record, which count from then on. If another record has one of them that is about to be dropped, it goes on.
func (c *Counters) Hold(s *state.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range frontendsOf(s) {
		e := c.held[key]
		if e == nil {
			e = &counter{}
			c.held[key] = e
		}
		if e.records++; e.records == 1 && e.there {
			if n, err := c.total(key); err == nil {
				e.inherited = n
			}
		}
	}
}

// Drop releases the frontends of a record. Frontends that no other record has must be removed from the hooks before.
func (c *Counters) Drop(s *state.Service) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for key := range frontendsOf(s) {
		e := c.held[key]
		if e == nil {
			continue
		}
		if e.records--; e.records > 0 {
			continue
		}
		if !e.there {
			delete(c.held, key)
			continue
		}
		e.drops++
		c.grace.retire(dropped{key, e.drops})
	}
}

// frontendsOf yields the frontends of a record that hooks may have.
func frontendsOf(s *state.Service) iter.Seq[state.FrontendKey] {
	return func(yield func(state.FrontendKey) bool) {
		for p, f := range s.Frontends() {
			if p.Protocol == state.TCP && !yield(p.Key(f)) {
				return
			}
		}
	}
}

// Reclaim removes the elements of frontends that are past their grace period, when no program counts there.
func (c *Counters) Reclaim() {
	for _, d := range c.grace.past() {
		c.mu.Lock()
		if e := c.held[d.key]; e != nil && e.records == 0 && e.drops == d.nth && c.remove(d.key) == nil {
			delete(c.held, d.key)
		}
		c.mu.Unlock()
	}
}

func (c *Counters) remove(key state.FrontendKey) error {
	var errs []error
	family, k := familyOf(key.Family), countKey(key)
	for _, m := range c.maps[family] {
		if err := m.Delete(k); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func countKey(key state.FrontendKey) []byte {
	return keyOf(familyOf(key.Family), plan.Frontend{Addr: key.Addr, Port: key.Port})
}

// count gives a frontend that is held an element, unless it has one. If there is no room, it returns [ErrFull].
func (c *Counters) count(family state.Family, f plan.Frontend) error {
	key := state.FrontendKey{Family: family, Protocol: state.TCP, Addr: f.Addr, Port: f.Port}
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.held[key]
	if e == nil {
		return fmt.Errorf("counting connections to %v, which no Service has", key)
	}
	if e.there {
		return nil
	}
	maps := c.maps[familyOf(family)]
	err := maps[len(maps)-1].Put(countKey(key), zeros(1))
	if errors.Is(err, unix.E2BIG) {
		return ErrFull
	} else if err != nil {
		return fmt.Errorf("counting connections to %v: %w", key, err)
	}
	e.there = true
	return nil
}

// zeros are the values of elements that have counted nothing.
func zeros(elements int) []uint64 { return make([]uint64, elements*ebpf.MustPossibleCPU()) }

// Grow ensures that the maps have room for all frontends that are held.
func (c *Counters) Grow() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var needed [2]int
	var there4 []frontend4
	var there6 []frontend6
	for key, e := range c.held {
		needed[familyOf(key.Family)]++
		switch k := countKey(key); {
		case !e.there:
		case key.Family == state.IPv6:
			there6 = append(there6, frontend6(k))
		default:
			there4 = append(there4, frontend4(k))
		}
	}
	return errors.Join(grow(c, v4, needed[v4], there4), grow(c, v6, needed[v6], there6))
}

// grow makes a map with the needed room, and with elements for there, unless the last one has room.
func grow[K frontend4 | frontend6](c *Counters, family, needed int, there []K) error {
	had := c.maps[family]
	if len(had) > 0 && int(had[len(had)-1].MaxEntries()) >= needed {
		return nil
	}
	var key K
	m, err := ebpf.NewMap(&ebpf.MapSpec{
		Name: countMaps[family], Type: ebpf.PerCPUHash, KeySize: uint32(unsafe.Sizeof(key)), ValueSize: 8, MaxEntries: sizeFor(needed),
	})
	if err != nil {
		return fmt.Errorf("a map of counts of %d frontends: %w", needed, err)
	}
	for len(there) > 0 {
		n := min(len(there), batch)
		if _, err := m.BatchUpdate(there[:n], zeros(n), nil); err != nil {
			return errors.Join(fmt.Errorf("a map of counts of %d frontends: %w", needed, err), m.Close())
		}
		there = there[n:]
	}
	c.maps[family] = append(had, m)
	return nil
}

// batch is how many elements are written or read at once.
const batch = 4096

// countMaps are the names of the maps in hooks.c.
var countMaps = [2]string{"counts4", "counts6"}

// Use has programs count in these maps.
func (c *Counters) Use(spec *ebpf.CollectionSpec, replacements map[string]*ebpf.Map) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for family, maps := range c.maps {
		name, m := countMaps[family], maps[len(maps)-1]
		spec.Maps[name].MaxEntries, replacements[name] = m.MaxEntries(), m
	}
}

// Counts returns how many connections to each of these frontends hooks have taken. It may be called concurrently with
// all other methods; after Close it may fail.
func (c *Counters) Counts(keys []state.FrontendKey) ([]uint64, error) {
	counts := make([]uint64, len(keys))
	for i, key := range keys {
		var err error
		if counts[i], err = c.countOf(key); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

func (c *Counters) countOf(key state.FrontendKey) (uint64, error) {
	c.mu.Lock() // for one of them, so that nobody waits for long
	defer c.mu.Unlock()
	e := c.held[key]
	if e == nil || e.records == 0 || !e.there {
		return 0, nil
	}
	n, err := c.total(key)
	return n - min(n, e.inherited), err // somebody else may have removed the element
}

// total returns what the elements of a frontend have.
func (c *Counters) total(key state.FrontendKey) (n uint64, err error) {
	k := countKey(key)
	var perCPU []uint64
	for _, m := range c.maps[familyOf(key.Family)] {
		if err := m.Lookup(k, &perCPU); errors.Is(err, ebpf.ErrKeyNotExist) {
			continue
		} else if err != nil {
			return 0, fmt.Errorf("reading how many connections to %v there were: %w", key, err)
		}
		for _, v := range perCPU {
			n += v
		}
	}
	return n, nil
}

// repair restores elements that another program has removed, removes elements of other frontends, and returns the
// number of repairs.
func (c *Counters) repair() (repaired int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for family, maps := range c.maps {
		m := maps[len(maps)-1]
		var held map[string]bool
		if family == v4 {
			held, err = elements[frontend4](m)
		} else {
			held, err = elements[frontend6](m)
		}
		if err != nil {
			return repaired, err
		}
		for key, e := range c.held {
			if familyOf(key.Family) != family || !e.there {
				continue
			}
			k := countKey(key)
			if there := held[string(k)]; !there {
				repaired++
				if err := m.Put(k, zeros(1)); err != nil {
					return repaired, fmt.Errorf("counting connections to %v: %w", key, err)
				}
			}
			delete(held, string(k))
		}
		for k := range held {
			repaired++
			if err := m.Delete([]byte(k)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return repaired, fmt.Errorf("removing a count: %w", err)
			}
		}
	}
	return repaired, nil
}

// elements returns the keys of a map of counts.
func elements[K frontend4 | frontend6](m *ebpf.Map) (map[string]bool, error) {
	keys, values := make([]K, batch), zeros(batch)
	held := map[string]bool{}
	var cursor ebpf.MapBatchCursor
	for {
		n, err := m.BatchLookup(&cursor, keys, values, nil)
		for i := range n {
			switch k := any(keys[i]).(type) {
			case frontend4:
				held[string(k[:])] = true
			case frontend6:
				held[string(k[:])] = true
			}
		}
		if errors.Is(err, ebpf.ErrKeyNotExist) {
			return held, nil
		}
		if err != nil {
			return nil, fmt.Errorf("reading counts: %w", err)
		}
	}
}
