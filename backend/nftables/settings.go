package nftables

import (
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// settings are what the tables depend on beside the state.
type settings struct {
	// LocalDetector recognizes connections of pods.
	LocalDetector state.LocalDetector
	// MasqueradeMark is the bit of packet marks that marks connections for masquerading between two hooks.
	MasqueradeMark uint32
	// MaxAffinityClients is how many clients with affinity are remembered in each family.
	MaxAffinityClients uint32
	// TableFlags are those that the tables have.
	TableFlags nft.TableFlags
}
