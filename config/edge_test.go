package config

import (
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/source/upstream"
	"github.com/switchyard-net/switchyard/state"
)

// TestEdgeNeedsNFTables: nothing else serves what other nodes hand over. Without an edge, each mode is as it was.
func TestEdgeNeedsNFTables(t *testing.T) {
	for _, tt := range []struct {
		platform string
		mode     Mode
		fits     bool
	}{
		{"linux", "", true}, {"linux", ModeNFTables, true}, {"linux", ModeEBPF, true}, {"", "", true},
		{"linux", ModeIPTables, false}, {"linux", ModeIPVS, false}, {"linux", ModeUserspace, false},
		{"windows", "", false}, {"windows", ModeKernelspace, false},
	} {
		c := Default()
		c.Mode, c.AllowModeFallback = tt.mode, true
		for mode, on := range map[EdgeMode]bool{"": false, EdgeNone: false, EdgeTCX: true, EdgeXDP: true} {
			c.Edge.Mode = mode
			if c.Edge.Enabled() != on {
				t.Errorf("edge.mode %q: enabled is %v", mode, !on)
			}
			errs := c.Validate(tt.platform)
			if on && !tt.fits {
				if len(errs) != 1 || errs[0].Path != "edge.mode" || !strings.Contains(errs[0].Problem, "choose mode nftables or ebpf") {
					t.Errorf("%s, mode %q, edge.mode %s: %v", tt.platform, tt.mode, mode, errs)
				}
			} else if len(errs) > 0 {
				t.Errorf("%s, mode %q, edge.mode %q: %v", tt.platform, tt.mode, mode, errs)
			}
		}
	}
}

// TestEdgeBit looks at each bit. No packet may have a mark that means two things, and a configuration without an edge may have any masqueradeBit.
func TestEdgeBit(t *testing.T) {
	for masquerade := range int32(32) {
		for bit := range int32(32) {
			c := Default()
			c.NFTables.MasqueradeBit, c.Edge.MarkBit = masquerade, bit
			if errs := c.Validate("linux"); len(errs) > 0 || c.Edge.Mark() != 0 {
				t.Fatalf("without an edge: masqueradeBit %d, markBit %d: %v", masquerade, bit, errs)
			}
			c.Edge.Mode = EdgeTCX
			mark := c.Edge.Mark()
			if mark != 1<<bit {
				t.Fatalf("the mark of bit %d is %#x", bit, mark)
			}
			var fault string
			if errs := c.Validate("linux"); len(errs) > 0 {
				fault = errs[0].Error()
				if len(errs) > 1 || errs[0].Path != "edge.markBit" {
					t.Fatalf("masqueradeBit %d, markBit %d: %v", masquerade, bit, errs)
				}
			}
			taken := uint32(1)<<masquerade | upstream.MarkBeside(1<<masquerade) | backend.RelayMark
			if (fault != "") != (mark&taken != 0) {
				t.Errorf("masqueradeBit %d, markBit %d: %q", masquerade, bit, fault)
			}
			if strings.Contains(fault, "nftables.masqueradeBit") != (mark&^backend.RelayMark&taken != 0 || bit == masquerade) {
				t.Errorf("masqueradeBit %d, markBit %d: %q does not name both", masquerade, bit, fault)
			}
		}
	}
	c := Default()
	c.Mode, c.Edge.Mode, c.NFTables.MasqueradeBit = ModeNFTables, EdgeTCX, Default().Edge.MarkBit
	errs := c.Validate("linux")
	if want := "edge.markBit: must differ from nftables.masqueradeBit, and both are 6: choose another bit for one of them"; len(errs) != 1 || errs[0].Error() != want {
		t.Errorf("%v, want %s", errs, want)
	}
}

// TestEdgeKinds: the order in the file does not count.
func TestEdgeKinds(t *testing.T) {
	e := defaultEdge()
	if got, want := e.Kinds(), []state.FrontendKind{state.LoadBalancer, state.ExternalIP}; !slices.Equal(got, want) || !e.Annotated() {
		t.Errorf("the default takes %v, want %v; annotated is %v", got, want, e.Annotated())
	}
	e.Frontends, e.Services = []string{"NodePort", "LoadBalancer"}, EdgeAll
	if got, want := e.Kinds(), []state.FrontendKind{state.LoadBalancer, state.NodePort}; !slices.Equal(got, want) || e.Annotated() {
		t.Errorf("takes %v, want %v; annotated is %v", got, want, e.Annotated())
	}
}
