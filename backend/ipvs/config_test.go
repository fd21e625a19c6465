package ipvs

import (
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/field"
)

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("ipvs"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.Validate("ipvs")
	if len(errs) != 1 || errs[0].Path != "ipvs.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
}

func TestAllFaultsAtOnce(t *testing.T) {
	minus := field.Duration{Duration: -time.Second}
	c := Config{MasqueradeBit: -1, Scheduler: "Round Robin", TCPTimeout: minus, TCPFinTimeout: minus, UDPTimeout: minus}
	var paths []string
	for _, err := range c.Validate("") {
		paths = append(paths, err.Path)
	}
	want := []string{"masqueradeBit", "scheduler", "tcpTimeout", "tcpFinTimeout", "udpTimeout"}
	if !slices.Equal(paths, want) {
		t.Errorf("faults of %v, want %v", paths, want)
	}
}
