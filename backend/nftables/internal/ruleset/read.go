package ruleset

import (
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Reader reads the kernel's tables for a comparison. It is called by one goroutine at a time.
type Reader interface {
	// Skeleton returns what a table holds apart from elements, nil if there is no such table.
	Skeleton(nft.Table) (*nft.Skeleton, error)
	// Elems returns all elements of a set, none if there is no such set.
	Elems(t nft.Table, set string) ([]nft.Elem, error)
	// LookUp begins a lookup, which may run concurrently with others, and returns at once. wait returns what its Run returned. The
	// comparison
	// calls it once for each lookup, and for all of them before it reads anything in another way, or ends.
	LookUp(*Lookup) (wait func() error)
}

// Limits decide how a comparison reads. A dump of a set takes time that grows with the square of its elements.
type Limits struct {
	// Find is how many elements a set may have to be dumped. Where the kernel counts elements, those that are expected in larger ones are
	// looked up by their keys.
	Find int
	// Rewrite is how many elements a set may have to be dumped if it holds something unexpected. Larger sets are rewritten as a whole.
	Rewrite int
	// Ahead is how many lookups are begun before the first of them is waited for, at least one.
	Ahead int
}

// tableState is what the kernel holds of a table.
type tableState struct {
	family   state.Family
	skeleton *nft.Skeleton // nil if there is no table
}

// serves reports whether packets can meet the table: a table serves if a hook calls one of its chains. A table does not serve if the
// process that filled it died (Plan.FillNew). The content of such a table does not count.
func (t *tableState) serves() bool {
	return t.skeleton != nil && slices.ContainsFunc(t.skeleton.ChainNames(), t.skeleton.IsBase)
}

// kernelState is what the kernel holds.
type kernelState struct {
	tables []tableState
	// elements are the elements of the sets that were dumped. Of large sets, they are the elements that lookups have found for services
	// that are compared element by element.
	elements map[elementKey][maxData]byte
	large    []*largeSet
	lookups  *lookups // nil if there are no large sets
}

// largeSet is a set that is not dumped. Its expected elements are looked up.
type largeSet struct {
	tableSet
	layout layout
	count  int // of all its elements
	found  int // how many of them were found by lookups
	// rewrite is set if the set is to be rewritten, instead of dumped, when it holds more elements than were found.
	rewrite bool
}

// unexpected returns the sets that hold more elements than were found. Call it after everything was reached.
func (ks *kernelState) unexpected() (sets []*largeSet) {
	for _, s := range ks.large {
		if s.found != s.count {
			sets = append(sets, s)
		}
	}
	return sets
}

// read reads our tables with all their elements, except the elements of sets that have more than so many. Sets in whole are read
// anyway.
func read(r Reader, find int, whole map[tableSet]bool) (*kernelState, error) {
	ks := &kernelState{elements: map[elementKey][maxData]byte{}}
	for _, f := range families {
		sk, err := r.Skeleton(table(f))
		if err != nil {
			return nil, fmt.Errorf("reading table %v: %w", table(f), err)
		}
		ks.tables = append(ks.tables, tableState{f, sk})
		if t := &ks.tables[len(ks.tables)-1]; t.serves() {
			if err := ks.readTable(r, f, sk, find, whole); err != nil {
				return nil, err
			}
		}
	}
	return ks, nil
}

// readTable reads the elements of a table.
func (ks *kernelState) readTable(r Reader, f state.Family, sk *nft.Skeleton, find int, whole map[tableSet]bool) error {
	sh := shapeOf(f, sk.Sets())
	// Only sets of this version's form are read. The set that rules fill is skipped, because it is never compared.
	for _, id := range setIDs(f, &sh) {
		set := id.set(f)
		if id.kind == affinity || !sk.HasSet(table(f), &set) {
			continue
		}
		ts := tableSet{f, id}
		if n, ok := sk.Count(set.Name); ok && n > find && !whole[ts] {
			ks.large = append(ks.large, &largeSet{tableSet: ts, layout: id.layout(f), count: n})
			continue
		}
		elems, err := r.Elems(table(f), set.Name)
		if err != nil {
			return readFailed(ts, err)
		}
		for _, in := range elems {
			e := decode(f, id, in)
			ks.elements[e.id()] = e.data
		}
	}
	return nil
}

func readFailed(ts tableSet, err error) error {
	return fmt.Errorf("reading set %s of table %v: %w", ts.set.name(), table(ts.family), err)
}
