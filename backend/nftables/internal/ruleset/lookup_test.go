package ruleset

import (
	"errors"
	"fmt"
	"testing"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/recordtest"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
)

// failingReader has a kernel of which the lookup number failing fails.
type failingReader struct{ failing, begun, waited int }

var errLookup = errors.New("injected")

func (*failingReader) Skeleton(nft.Table) (*nft.Skeleton, error)   { return nil, nil }
func (*failingReader) Elems(nft.Table, string) ([]nft.Elem, error) { return nil, nil }

func (r *failingReader) LookUp(*Lookup) (wait func() error) {
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

// TestLookupsAreWaitedFor: no lookup goes on after a comparison that failed, whose sockets others will use.
func TestLookupsAreWaitedFor(t *testing.T) {
	var want Desired
	for n := range 3000 {
		want.Services = append(want.Services, recordtest.DualStack(fmt.Sprintf("s%04d", n), n, 3, 0))
	}
	want.Node = testNode
	slotSet := setID{space: service, kind: slots}
	for failing := range 5 {
		r := &failingReader{failing: failing}
		ks := &kernelState{elements: map[elementKey][maxData]byte{}}
		for _, f := range families {
			ks.large = append(ks.large, &largeSet{tableSet: tableSet{f, slotSet}, layout: slotSet.layout(f), count: 9000})
		}
		m := NewMirror()
		ks.lookups = newLookups(r, Limits{Ahead: 3}, ks.large, expect(testSettings(), m, ks, want), true)
		_, err := m.difference(testSettings(), ks, want)
		if (failing > 0) != errors.Is(err, errLookup) {
			t.Errorf("lookup %d fails: %v", failing, err)
		}
		ks.lookups.end()
		if r.begun < 5 && failing == 0 || r.waited != r.begun {
			t.Errorf("lookup %d fails: %d lookups were begun, %d waited for", failing, r.begun, r.waited)
		}
	}
}
