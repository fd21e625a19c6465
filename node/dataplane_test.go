package node

import (
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/config"
)

// TestSelectMode: a mode without a dataplane is an error with a remedy, unless nftables may take its place.
func TestSelectMode(t *testing.T) {
	for _, tt := range []struct {
		goos  string
		mode  config.Mode
		allow bool
		want  config.Mode
		err   string
	}{
		{"linux", "", false, config.ModeNFTables, ""},
		{"linux", config.ModeNFTables, false, config.ModeNFTables, ""},
		{"linux", config.ModeIPTables, true, config.ModeNFTables, ""},
		{"linux", config.ModeIPVS, true, config.ModeNFTables, ""},
		{"linux", config.ModeIPTables, false, "", "mode iptables has no dataplane in this release: set mode to nftables, or leave it blank, or set allowModeFallback"},
		{"linux", config.ModeIPVS, false, "", "allowModeFallback"},
		{"linux", config.ModeEBPF, true, "", "mode ebpf has no dataplane in this release: set mode to nftables, or leave it blank"},
		{"linux", config.ModeUserspace, true, "", "mode userspace has no dataplane"},
		{"windows", "", true, "", "mode kernelspace has no dataplane in this release: set mode to nftables, on Linux"},
		{"darwin", "", true, "", "on Linux"},
	} {
		c := config.Default()
		c.Mode, c.AllowModeFallback = tt.mode, tt.allow
		got, err := SelectMode(c, tt.goos)
		if got != tt.want || (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s, mode %q, fallback %v: got %q, %v, want %q and %q", tt.goos, tt.mode, tt.allow, got, err, tt.want, tt.err)
		}
	}
}

// TestFallbackKeepsTheBit: where nftables takes the place of a mode, it marks packets as the mode would.
func TestFallbackKeepsTheBit(t *testing.T) {
	c := config.Default()
	c.Mode, c.IPTables.MasqueradeBit, c.NFTables.MasqueradeBit = config.ModeIPTables, 7, 9
	if bit := *nftablesOptions(c, DataplaneOptions{}).MasqueradeBit; bit != 7 {
		t.Errorf("the bit is %d, want 7", bit)
	}
	was := settingsOf(c)
	c.IPTables.MasqueradeBit = 8
	if settingsOf(c).bit == was.bit {
		t.Error("a change of the bit goes unnoticed")
	}
}
