package iptables

import (
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables/internal/rules"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.Counter = (*Backend)(nil)

// Counts implements [backend.Counter]. Without [Options].Counters, nothing is counted. Sets can only be read as a whole, so that it costs as much as
// all frontends take.
func (b *Backend) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	counted := map[state.Family]map[state.FrontendKey]rules.Counted{}
	for _, f := range families {
		if !slices.ContainsFunc(keys, func(k state.FrontendKey) bool { return k.Family == f }) {
			continue
		}
		err := b.inspector.ask(func(sets sets) (err error) {
			counted[f], err = rules.Counts(f, sets.Counts)
			return err
		})
		if err != nil {
			return nil, fmt.Errorf("iptables: %w", err)
		}
	}
	counts := make([]backend.Counts, len(keys))
	for i, k := range keys {
		counts[i] = backend.Counts(counted[k.Family][k])
	}
	return counts, nil
}

// DroppedInvalid returns how many packets of forwarded connections were dropped because connection tracking took them for invalid, since the sets of the
// dataplane were made.
func (b *Backend) DroppedInvalid() (packets uint64, err error) {
	for _, f := range families {
		err := b.inspector.ask(func(sets sets) error {
			n, err := rules.Invalid(f, sets.Counts)
			packets += n
			return err
		})
		if err != nil {
			return 0, fmt.Errorf("iptables: %w", err)
		}
	}
	return packets, nil
}
