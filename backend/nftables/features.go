package nftables

import (
	"fmt"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// Features returns the features of records that the dataplane can program.
func (b *Backend) Features() state.Features {
	if b.o.Edge == 0 {
		return b.features
	}
	return b.features | state.EdgeShares
}

// problems are services whose balance is not as it should be, with what is shown of them.
type problems struct {
	lacking, crowded []state.ServiceName
	crowd            int
	errs             []error
}

// noteProblems takes down which services lack room for their weights and hashes, have too many endpoints, or are not counted.
func (b *Backend) noteProblems() {
	lacking, crowded, was := b.mirror.Lacking(), b.mirror.Crowded(), b.problems.Load()
	if was == nil {
		was = &problems{}
	}
	if ruleset.SameMemory(was.lacking, lacking) && ruleset.SameMemory(was.crowded, crowded) && was.crowd == b.counting.crowd {
		return
	}
	now := problems{lacking: lacking, crowded: crowded, crowd: b.counting.crowd}
	if n := len(now.lacking); n > 0 {
		now.errs = append(now.errs, fmt.Errorf("%d services, the first is %v, share new connections evenly at random: there is no room for the slots of their "+
			"weights, hashes or counted connections (a service may have %d, a namespace %d, a node %d): set them for fewer ports", n, now.lacking[0],
			apportion.MaxServiceSlots, apportion.MaxNamespaceSlots, apportion.MaxSlots))
	}
	if n := len(now.crowded); n > 0 {
		now.errs = append(now.errs, fmt.Errorf("%d services, the first is %v, draw endpoints at random: one of their ports has too many for a hash (%d) or for "+
			"least connections (%d): use fewer, or set the balance of these services to random", n, now.crowded[0], consistent.Most-1, least.MaxEndpoints))
	}
	if err := b.counting.problem(); err != nil {
		now.errs = append(now.errs, err)
	}
	b.problems.Store(&now)
}

// Problems implements [backend.Reporter]: it names services that share connections evenly, though they ask for something else. There is no room for their
// slots, they have too many endpoints, or the node has too many flows to be counted.
func (b *Backend) Problems() []error {
	if p := b.problems.Load(); p != nil {
		return p.errs
	}
	return nil
}
