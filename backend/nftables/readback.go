package nftables

import (
	"errors"
	"fmt"
	"os"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// kernel is what the dataplane needs of nf_tables. It is *nft.Conn outside tests.
type kernel interface {
	Commit(*nft.Batch) error
	Has(nft.Feature) (bool, error)
	HasTable(nft.Table) (bool, error)
	Table(nft.Table) (nft.TableInfo, error)
	ReadSkeleton(nft.Table) (*nft.Skeleton, error)
	Elems(nft.Table, string) ([]nft.Elem, error)
	finder
	Generation() (uint32, error)
	Port() (uint32, error)
}

// finder looks elements up. Several may do so at once.
type finder interface {
	Find(t nft.Table, set string, width int, keys []byte, found func(i int, data []byte)) error
	Close() error
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

// readKernel reads our tables with all their elements, up to those of large sets. Sets in whole do not count as large. The caller
// must close the result before it uses the kernel again.
func (b *Backend) readKernel(want desired, whole map[tableSet]bool) (*kernelState, error) {
	ks := &kernelState{flags: b.flags, elements: map[elementKey][maxData]byte{}}
	var large []*largeSet
	for _, f := range families {
		t := tableState{family: f}
		exists, err := b.kernel.HasTable(table(f))
		if err != nil {
			return nil, fmt.Errorf("looking for table %s (%v): %w", tableName, f, err)
		}
		if exists {
			found, err := b.readTable(ks, &t, whole)
			if err != nil {
				return nil, err
			}
			large = append(large, found...)
		}
		ks.tables = append(ks.tables, t)
	}
	if len(large) > 0 {
		ks.large = b.lookUp(ks, want, large)
	}
	return ks, nil
}

// readTable reads a table up to the elements of large sets, which it returns.
func (b *Backend) readTable(ks *kernelState, t *tableState, whole map[tableSet]bool) (large []*largeSet, err error) {
	if t.skeleton, err = b.kernel.ReadSkeleton(table(t.family)); err != nil {
		return nil, fmt.Errorf("reading table %s (%v): %w", tableName, t.family, err)
	}
	sh := shapeOf(t.family, t.skeleton.Sets())
	// Only sets that are as this version makes them are read, and not the one that others fill: what it holds is never compared.
	for _, id := range setIDs(t.family, &sh) {
		set := id.set(t.family)
		if id.kind == affinity || !t.skeleton.HasSet(table(t.family), &set) {
			continue
		}
		ts := tableSet{t.family, id}
		if n, ok := t.skeleton.Count(set.Name); ok && n > b.limits.find && !whole[ts] {
			large = append(large, &largeSet{tableSet: ts, layout: id.layout(t.family), count: n})
			continue
		}
		if err := b.dump(ks, ts); err != nil {
			return nil, err
		}
	}
	return large, nil
}

// dump reads a whole set.
func (b *Backend) dump(ks *kernelState, ts tableSet) error {
	elems, err := b.kernel.Elems(table(ts.family), ts.set.name())
	if errors.Is(err, os.ErrNotExist) {
		return nil // gone since the skeleton was read; the skeleton is compared again after the repair
	}
	if err != nil {
		return readFailed(ts, err)
	}
	for _, in := range elems {
		e := decode(ts.family, ts.set, in)
		ks.elements[e.id()] = e.data
	}
	return nil
}

func readFailed(ts tableSet, err error) error {
	return fmt.Errorf("reading set %s of table %s (%v): %w", ts.set.name(), tableName, ts.family, err)
}
