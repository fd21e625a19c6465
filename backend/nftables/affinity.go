package nftables

import (
	"fmt"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// AffinityClients is how many clients of Services with affinity the kernel remembers in a family.
type AffinityClients struct {
	Family state.Family
	// Remembered are those that count against Limit, which is [Options].MaxAffinityClients as the kernel has it. A client that has timed out
	// counts until the kernel collects it, some seconds later at most.
	Remembered, Limit int
}

// AffinityClients returns how many clients each family remembers. It leaves out a family that has no table. It also leaves out both before
// Linux 6.18, where the kernel does not report the number. AffinityClients does not read the clients, so that its duration does not depend
// on their number. It may be called at any time.
func (b *Backend) AffinityClients() (all []AffinityClients, err error) {
	err = b.inspector.ask(func(f elemFinder) error {
		for _, t := range ruleset.Tables() {
			fill, ok, err := f.Fill(t, ruleset.AffinitySet())
			if err != nil {
				return err
			}
			if ok {
				all = append(all, AffinityClients{familyOf(t), fill.Count, fill.Size})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("nftables: %w", err)
	}
	return all, nil
}

func familyOf(t nft.Table) state.Family {
	if t.Family == nft.IPv6 {
		return state.IPv6
	}
	return state.IPv4
}
