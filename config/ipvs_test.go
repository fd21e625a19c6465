package config

import (
	"slices"
	"testing"
	"time"
)

func TestIPVS(t *testing.T) {
	c := defaultIPVS()
	if errs := c.validate("ipvs"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.validate("ipvs")
	if len(errs) != 1 || errs[0].Path != "ipvs.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
}

func TestAllFaultsOfIPVS(t *testing.T) {
	minus := Duration{Duration: -time.Second}
	c := IPVS{MasqueradeBit: -1, Scheduler: "Round Robin", TCPTimeout: minus, TCPFinTimeout: minus, UDPTimeout: minus}
	var paths []string
	for _, err := range c.validate("") {
		paths = append(paths, err.Path)
	}
	want := []string{"masqueradeBit", "scheduler", "tcpTimeout", "tcpFinTimeout", "udpTimeout"}
	if !slices.Equal(paths, want) {
		t.Errorf("faults of %v, want %v", paths, want)
	}
}
