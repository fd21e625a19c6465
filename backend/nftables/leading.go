package nftables

import (
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
)

var _ backend.Leader = (*Backend)(nil)

// LeadTo implements [backend.Leader]. Other listeners than before, or none, make the next Apply replace the tables.
func (b *Backend) LeadTo(listeners []backend.Listener) {
	all := make([]ruleset.Listener, len(listeners))
	for i := range listeners {
		all[i] = ruleset.Listener(listeners[i])
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(all, b.listeners) {
		b.listeners, b.known = all, false
	}
}
