package ebpf

import (
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// featured is a base that can program some features.
type featured struct {
	backend.Backend
	features state.Features
}

func (f featured) Features() state.Features { return f.features }

// TestFeatures: hooks leave what they do not do themselves to the base, as far as the base can do it. Silent endpoints are not ejected.
func TestFeatures(t *testing.T) {
	for _, of := range []state.Features{0, state.Weights, state.EdgeShares, state.EdgeShares | state.Ping, state.AllFeatures} {
		b := &Backend{base: featured{features: of}}
		if got, want := b.Features(), of&^state.Ejection; got != want {
			t.Errorf("above a base with the features %v, it has %v, want %v", of, got, want)
		}
	}
}
