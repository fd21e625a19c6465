package nftables

import (
	"fmt"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/state"
)

var _ backend.CounterBelow = (*Backend)(nil)

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

// LocalReject is how many packets of a protocol to NodePorts on loopback addresses were refused, since these are served there.
type LocalReject struct {
	Family   state.Family
	Protocol state.Protocol
	Packets  uint64
}

// LocalRejects reads how many packets to NodePorts on loopback addresses were refused. These are packets to Services without endpoints, and
// all UDP and SCTP packets to ::1, where a relay serves TCP only. It is empty unless NodePorts are served on loopback addresses. It may be
// called concurrently.
func (b *Backend) LocalRejects() (rejects []LocalReject, err error) {
	err = b.inspector.ask(func(f elemFinder) error {
		return ruleset.LocalRejects(f.FindElems, func(f state.Family, p state.Protocol, packets uint64) {
			rejects = append(rejects, LocalReject{f, p, packets})
		})
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return rejects, nil
}

// CountAbove implements [backend.CounterBelow]. Without [Options].Counters, it does nothing.
func (b *Backend) CountAbove(whole map[state.ServiceName]*state.Service, full bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.o.Counters {
		return
	}
	if full || b.whole == nil {
		b.whole = map[state.ServiceName]*state.Service{}
	}
	for name, s := range whole {
		if s != nil {
			b.whole[name] = s
		} else {
			delete(b.whole, name)
		}
	}
}

// settings returns the settings of the tables.
func (b *Backend) settings() *ruleset.Settings {
	s := b.o.settings(b.flags)
	s.Whole, s.Listeners, s.RelayMark, s.Ejected = b.whole, b.listeners, backend.RelayMark, b.ejector.Load().ejected()
	s.Shares = b.counting.shares()
	return s
}
