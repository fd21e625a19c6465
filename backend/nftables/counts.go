package nftables

import (
	"fmt"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.Counter = (*Backend)(nil)

// Counts implements [backend.Counter]. Without [Options].Counters, nothing is counted.
func (b *Backend) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	var counted []ruleset.Counted
	err := b.inspector.ask(func(f elemFinder) (err error) {
		counted, err = ruleset.Counts(keys, f.FindElems)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	counts := make([]backend.Counts, len(counted))
	for i := range counted {
		counts[i] = backend.Counts(counted[i])
	}
	return counts, nil
}
