package nftables

import (
	"fmt"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// Features returns the features of records that the dataplane can program.
func (b *Backend) Features() state.Features { return b.features }

// lacking are services that lack room, with what is shown of them.
type lacking struct {
	services []state.ServiceName
	problems []error
}

// noteLacking takes down which services lack room for their weights and hashes.
func (b *Backend) noteLacking() {
	services, was := b.mirror.Lacking(), b.lacking.Load()
	if was != nil && ruleset.SameMemory(was.services, services) || was == nil && len(services) == 0 {
		return
	}
	now := &lacking{services: services}
	if n := len(services); n > 0 {
		now.problems = []error{fmt.Errorf("%d services, the first is %v, share new connections evenly at random: there is no room for the slots of their "+
			"weights or hashes (a service may have %d, a namespace %d, a node %d): set weights or a hash for fewer ports", n, services[0],
			apportion.MaxServiceSlots, apportion.MaxNamespaceSlots, apportion.MaxSlots)}
	}
	b.lacking.Store(now)
}

// Problems implements [backend.Reporter]: it names services whose weights and hashes have no room.
func (b *Backend) Problems() []error {
	if l := b.lacking.Load(); l != nil {
		return l.problems
	}
	return nil
}
