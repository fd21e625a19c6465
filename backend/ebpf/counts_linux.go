package ebpf

import (
	"errors"
	"fmt"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.Counter = (*Backend)(nil)

// Counts implements [backend.Counter]: what the hooks have taken, and what the base has counted of all else. Without [Options].Counters, or a base
// that counts, that part is 0. The hooks begin at 0 with each process; a base may go on.
func (b *Backend) Counts(keys []state.FrontendKey) ([]backend.Counts, error) {
	counts, err := b.HookCounts(keys)
	if err != nil {
		return nil, err
	}
	base, ok := b.base.(backend.Counter)
	if !ok {
		return counts, nil
	}
	below, err := base.Counts(keys)
	if err != nil {
		return nil, err
	}
	for i := range counts {
		counts[i].Add(below[i])
	}
	return counts, nil
}

// HookCounts is Counts without the base. Hooks reject and drop nothing.
func (b *Backend) HookCounts(keys []state.FrontendKey) ([]backend.Counts, error) {
	b.mu.Lock()
	counters := b.counters
	b.mu.Unlock()
	counts := make([]backend.Counts, len(keys))
	if counters == nil {
		return counts, nil
	}
	taken, err := counters.Counts(keys)
	if err != nil {
		return nil, fmt.Errorf("ebpf: %w", err)
	}
	for i := range counts {
		counts[i].Connections = taken[i]
	}
	return counts, nil
}

// prepareCounters makes counters with room for all frontends if connections are to be counted, and closes them if not.
func (b *Backend) prepareCounters() error {
	counters := b.counters
	if b.o.Counters == (counters == nil) {
		var err error
		if counters, err = newCounters(&b.o); err != nil {
			return err
		}
		b.mu.Lock()
		previous := b.counters
		b.counters = counters
		b.mu.Unlock()
		b.services.count(counters)
		if previous != nil {
			if err := previous.Close(); err != nil {
				return err
			}
		}
	}
	if counters == nil {
		return nil
	}
	return counters.Grow()
}

// newCounters returns nil if nothing is to be counted.
func newCounters(o *Options) (*maps.Counters, error) {
	if !o.Counters {
		return nil, nil
	}
	c, err := maps.NewCounters()
	if err != nil {
		return nil, err
	}
	if err := c.Grow(); err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return c, nil
}
