//go:build linux

package ruleset

import (
	"errors"
	"fmt"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// failingReader has tables of which the lookup number failing fails. No lookup finds anything.
type failingReader struct {
	skeletons              map[nft.Table]*nft.Skeleton
	failing, begun, waited int
}

var errLookup = errors.New("injected")

func (r *failingReader) Skeleton(t nft.Table) (*nft.Skeleton, error) { return r.skeletons[t], nil }
func (*failingReader) Elems(nft.Table, string) ([]nft.Elem, error)   { return nil, nil }

func (r *failingReader) LookUp(l *Lookup) (wait func() error) {
	_ = l.Run(nothing{})
	r.begun++
	number := r.begun
	return func() error {
		r.waited++
		if number == r.failing {
			return errLookup
		}
		return nil
	}
}

// nothing is a Finder without elements.
type nothing struct{}

func (nothing) Find(nft.Table, string, int, []byte, func(int, []byte)) error { return nil }
func (nothing) HasAll(nft.Table, string, int, []byte) (bool, error)          { return false, nil }

// TestLookupsAreWaitedFor: no lookup goes on after a comparison that failed, whose sockets others will use.
func TestLookupsAreWaitedFor(t *testing.T) {
	var want Desired
	for n := range 3000 {
		want.Services = append(want.Services, recordtest.DualStack(fmt.Sprintf("s%04d", n), n, 3, 0))
	}
	want.Node = testNode
	skeletons := emptyTables(t)
	for failing := range 5 {
		r := &failingReader{skeletons: skeletons, failing: failing}
		_, err := NewMirror().Compare(testSettings(), want, r, Limits{Find: -1, Ahead: 3}) // so that empty sets are large ones
		if (failing > 0) != errors.Is(err, errLookup) {
			t.Errorf("lookup %d fails: %v", failing, err)
		}
		if r.begun < 5 && failing == 0 || r.waited != r.begun {
			t.Errorf("lookup %d fails: %d lookups were begun, %d waited for", failing, r.begun, r.waited)
		}
	}
}

// emptyTables returns the tables of a kernel that counts elements, without any. The test is skipped if this one does not count them.
func emptyTables(t *testing.T) map[nft.Table]*nft.Skeleton {
	t.Helper()
	ns := netnstest.New(t)
	var conn *nft.Conn
	if err := ns.Do(func() (err error) { conn, err = nft.Dial(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if ok, err := conn.Has(nft.ElementCounts); err != nil || !ok {
		t.Skipf("this kernel does not have %s, as Linux %s has: %v", nft.ElementCounts.Name, nft.ElementCounts.Since, err)
	}
	p := newPlan(testSettings(), NewMirror(), NewMirror())
	p.node = testNode
	for _, f := range families {
		p.compareTable(&tableState{family: f}) // there is no table
	}
	var b nft.Batch
	p.Write(&b)
	if err := conn.Commit(&b); err != nil {
		t.Fatal(err)
	}
	tables := map[nft.Table]*nft.Skeleton{}
	for _, tb := range Tables() {
		skeleton, err := conn.ReadSkeleton(tb)
		if err != nil {
			t.Fatal(err)
		}
		tables[tb] = skeleton
	}
	return tables
}
