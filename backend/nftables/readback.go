package nftables

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// tableName is the name of our table in each family.
const tableName = "switchyard"

var families = []state.Family{state.IPv4, state.IPv6}

func table(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: tableName} }

// kernel is what the dataplane needs of nf_tables. It is *nft.Conn outside tests.
type kernel interface {
	Commit(*nft.Batch) error
	Has(nft.Feature) (bool, error)
	HasTable(nft.Table) (bool, error)
	Table(nft.Table) (nft.TableInfo, error)
	ReadSkeleton(nft.Table) (*nft.Skeleton, error)
	Elems(nft.Table, string) ([]nft.Elem, error)
	Find(t nft.Table, set string, keys [][]byte, found func(i int, data []byte)) error
	Generation() (uint32, error)
	Port() (uint32, error)
	Close() error
}

// tableState is what the kernel holds of a table.
type tableState struct {
	family   state.Family
	skeleton *nft.Skeleton // nil if there is no table
}

// kernelState is what the kernel holds.
type kernelState struct {
	// flags are those that our tables should have.
	flags    nft.TableFlags
	tables   []tableState
	elements map[elementKey][maxData]byte
	// partly are sets that hold more than elements shows of them.
	partly map[tableSet]bool
}

// readLimits are numbers of elements. A dump of a set takes time that grows with their square.
type readLimits struct {
	// find is how many a set may have to be dumped. Where the kernel counts elements, those that are expected in larger ones are
	// looked up by their keys.
	find int
	// rewrite is how many a set may have to be dumped if it holds something unexpected. All that larger ones hold is written anew.
	rewrite int
}

var usualReadLimits = readLimits{find: 50_000, rewrite: 100_000}

// readKernel reads our tables with all their elements, up to those of sets that are only read partly.
func (b *Backend) readKernel(want desired) (*kernelState, error) {
	ks := &kernelState{flags: b.flags, elements: map[elementKey][maxData]byte{}, partly: map[tableSet]bool{}}
	large := map[tableSet]*largeSet{}
	for _, f := range families {
		t := tableState{family: f}
		exists, err := b.kernel.HasTable(table(f))
		if err != nil {
			return nil, fmt.Errorf("looking for table %s (%v): %w", tableName, f, err)
		}
		if exists {
			if err := b.readTable(ks, &t, large); err != nil {
				return nil, err
			}
		}
		ks.tables = append(ks.tables, t)
	}
	if len(large) == 0 {
		return ks, nil
	}
	b.expect(ks, want, large)
	for ts, l := range large {
		if err := b.readLarge(ks, ts, l, want.spared.none()); err != nil {
			return nil, err
		}
	}
	return ks, nil
}

// readTable reads a table up to the elements of large sets, which it adds to large.
func (b *Backend) readTable(ks *kernelState, t *tableState, large map[tableSet]*largeSet) error {
	var err error
	if t.skeleton, err = b.kernel.ReadSkeleton(table(t.family)); err != nil {
		return fmt.Errorf("reading table %s (%v): %w", tableName, t.family, err)
	}
	sh := shapeOf(t.family, t.skeleton.Sets())
	// Only sets that are as this version makes them are read, and not the one that others fill: what it holds is never compared.
	for _, id := range setIDs(t.family, &sh) {
		set := id.set(t.family)
		if id.kind == affinity || !t.skeleton.HasSet(table(t.family), &set) {
			continue
		}
		ts := tableSet{t.family, id}
		if n, ok := t.skeleton.Count(set.Name); ok && n > b.limits.find {
			large[ts] = &largeSet{count: n}
			continue
		}
		if err := b.dump(ks, ts); err != nil {
			return err
		}
	}
	return nil
}

// dump reads a whole set.
func (b *Backend) dump(ks *kernelState, ts tableSet) error {
	elems, err := b.kernel.Elems(table(ts.family), ts.set.name())
	if errors.Is(err, os.ErrNotExist) {
		return nil // gone since the skeleton was read; the skeleton is compared again after the repair
	}
	if err != nil {
		return ts.failed(err)
	}
	for _, in := range elems {
		e := decode(ts.family, ts.set, in)
		ks.elements[e.id()] = e.data
	}
	return nil
}

func (ts tableSet) failed(err error) error {
	return fmt.Errorf("reading set %s of table %s (%v): %w", ts.set.name(), tableName, ts.family, err)
}

// largeSet is a set that is not dumped, unless it holds something else than what is expected.
type largeSet struct {
	count    int // of all its elements
	expected [][maxKey]byte
}

// expect collects the keys that large sets most likely have: those that the state has, in slots that are filled without gaps. What
// it does not foresee takes longer to read.
func (b *Backend) expect(ks *kernelState, want desired, large map[tableSet]*largeSet) {
	expect := func(e *element) {
		if l := large[tableSet{e.family, e.set}]; l != nil {
			l.expected = append(l.expected, e.key)
		}
	}
	p := newPlan(&b.o, newMirror())
	for i := range ks.tables {
		if sk := ks.tables[i].skeleton; sk != nil {
			p.shape.merge(shapeOf(ks.tables[i].family, sk.Sets()))
		}
	}
	for _, a := range b.selectNodePorts(want.node) {
		e := newSharedKey(nodePortIPs, a).element()
		expect(&e)
	}
	for s, former := range want.sorted(p, b.mirror) {
		next := applied{record: s, places: placeService(former, s), numbers: p.number(s.Name, former.numbers, s)}
		if former.record == nil {
			next.fillHoles()
		}
		p.new.reset()
		p.new.whole(&next)
		for i := range p.new.own {
			expect(&p.new.own[i])
		}
		for _, k := range p.new.shared {
			e := k.element()
			expect(&e)
		}
	}
}

// findAtOnce is how many keys are handed over together.
const findAtOnce = 4096

// readLarge looks up what is expected in a set. If the set holds more than that, it is dumped, or read only partly if it may be
// written anew.
func (b *Backend) readLarge(ks *kernelState, ts tableSet, l *largeSet, mayRewrite bool) error {
	before, layout := len(ks.elements), ts.set.layout(ts.family)
	keys := make([][]byte, 0, findAtOnce)
	for expected := range slices.Chunk(l.expected, findAtOnce) {
		keys = keys[:0]
		for i := range expected {
			keys = append(keys, expected[i][:layout.key])
		}
		err := b.kernel.Find(table(ts.family), ts.set.name(), keys, func(i int, data []byte) {
			e := element{family: ts.family, set: ts.set, key: expected[i]}
			copy(e.data[:], data)
			ks.elements[e.id()] = e.data
		})
		if err != nil {
			return ts.failed(err)
		}
	}
	switch {
	case len(ks.elements)-before == l.count:
		return nil
	case mayRewrite && l.count > b.limits.rewrite:
		ks.partly[ts] = true
		return nil
	}
	return b.dump(ks, ts)
}

// placements collects how the kernel's slots are filled, by frontend and view.
func (ks *kernelState) placements() map[elementKey][]state.Endpoint {
	filled := map[elementKey][]state.Endpoint{}
	for k, data := range ks.elements {
		if k.set.kind != slots {
			continue
		}
		frontend, index := splitSlotKey(k)
		ep := decodeEndpoint(k.family, data)
		v := index >> 16
		if index &= 1<<16 - 1; v >= numViews || index >= maxEndpoints {
			continue
		}
		frontend.set.view = view(v)
		s := filled[frontend]
		for int(index) >= len(s) {
			s = append(s, state.Endpoint{})
		}
		s[index] = state.Endpoint{Addr: ep}
		filled[frontend] = s
	}
	return filled
}
