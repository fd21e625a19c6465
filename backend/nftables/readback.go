package nftables

import (
	"errors"
	"fmt"
	"os"

	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// tableName is the name of our table in each family.
const tableName = "switchyard"

var families = []state.Family{state.IPv4, state.IPv6}

func table(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: tableName} }

// kernel is what the dataplane needs of nf_tables. It is *nft.Conn outside tests.
type kernel interface {
	Commit(*nft.Batch) error
	HasDestroy() (bool, error)
	HasTable(nft.Table) (bool, error)
	ReadSkeleton(nft.Table) (*nft.Skeleton, error)
	Elems(nft.Table, string) ([]nft.Elem, error)
	Generation() (uint32, error)
	Close() error
}

// tableState is what the kernel holds of a table.
type tableState struct {
	family   state.Family
	skeleton *nft.Skeleton // nil if there is no table
	// affinity are the clients that rules have remembered.
	affinity []client
}

// kernelState is what the kernel holds.
type kernelState struct {
	tables   []tableState
	elements map[elementKey][maxData]byte
}

// readKernel reads our tables with all their elements.
func readKernel(k kernel) (*kernelState, error) {
	ks := &kernelState{elements: map[elementKey][maxData]byte{}}
	for _, f := range families {
		t := tableState{family: f}
		exists, err := k.HasTable(table(f))
		if err != nil {
			return nil, fmt.Errorf("looking for table %s (%v): %w", tableName, f, err)
		}
		if exists {
			if err := ks.readTable(k, &t); err != nil {
				return nil, err
			}
		}
		ks.tables = append(ks.tables, t)
	}
	return ks, nil
}

func (ks *kernelState) readTable(k kernel, t *tableState) error {
	var err error
	if t.skeleton, err = k.ReadSkeleton(table(t.family)); err != nil {
		return fmt.Errorf("reading table %s (%v): %w", tableName, t.family, err)
	}
	sh := shapeOf(t.skeleton.Sets())
	// Whatever the options: only sets that any options could have made are read.
	for _, id := range allSetIDs(&sh) {
		set := id.set(t.family)
		if !t.skeleton.HasSet(table(t.family), &set) {
			continue
		}
		elems, err := k.Elems(table(t.family), set.Name)
		if errors.Is(err, os.ErrNotExist) {
			continue // gone since the skeleton was read; the skeleton is compared again after the repair
		}
		if err != nil {
			return fmt.Errorf("reading set %s of table %s (%v): %w", set.Name, tableName, t.family, err)
		}
		if id.kind == affinity {
			for _, e := range elems {
				t.affinity = append(t.affinity, client{t.family, id.view, e})
			}
			continue
		}
		for _, in := range elems {
			e := decode(t.family, id, in)
			ks.elements[e.id()] = e.data
		}
	}
	return nil
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
