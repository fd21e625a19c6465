package config

import (
	"testing"

	"github.com/switchyard-net/switchyard/brain"
)

// TestBudgetsFollowFromMemory: memory and mode determine the unset limits, and set limits count.
func TestBudgetsFollowFromMemory(t *testing.T) {
	for _, c := range []struct {
		name                     string
		mode                     Mode
		memory                   int64
		set                      Services
		service, namespace, node int64
	}{
		{"the limit of the manifests", ModeNFTables, NodeMemory, Default().Services, 200_000, 1_000_000, 2_048_000},
		{"a tenth of it", ModeEBPF, NodeMemory / 10, Default().Services, 20_480, 102_400, 204_800},
		{"iptables", ModeIPTables, NodeMemory, Default().Services, 20_000, 102_400, 204_800},
		{"more than any node needs", ModeUserspace, 1 << 40, Default().Services, 200_000, 1_000_000, 4_000_000},
		{"not known", "", 0, Default().Services, 200_000, 1_000_000, 4_000_000},
		{"not known, iptables", ModeIPTables, 0, Default().Services, 20_000, 200_000, 400_000},
		{"set", ModeIPTables, 1 << 20, Services{MaxEntries: 1_000_000, MaxEntriesPerNamespace: 0, MaxEntriesPerNode: 7}, 1_000_000, 0, 7},
		{"one of them is set", ModeNFTables, NodeMemory, Services{MaxEntries: ByMemory, MaxEntriesPerNamespace: ByMemory, MaxEntriesPerNode: 5_000_000}, 200_000, 1_000_000, 5_000_000},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.set.Derived(c.mode, c.memory)
			if got.MaxEntries != c.service || got.MaxEntriesPerNamespace != c.namespace || got.MaxEntriesPerNode != c.node {
				t.Errorf("%+v, want %d, %d and %d", got, c.service, c.namespace, c.node)
			}
		})
	}
}

// TestMaxFrontends: a Service has few frontends for its entries, unless its entries are not bounded.
func TestMaxFrontends(t *testing.T) {
	for entries, want := range map[int64]int64{0: 0, 1: 2_000, 20_000: 2_000, 200_000: 6_250, brain.MaxEntries: 50_000} {
		if got := (Services{MaxEntries: entries}).MaxFrontends(); got != want {
			t.Errorf("with %d entries: %d frontends, want %d", entries, got, want)
		}
	}
}
