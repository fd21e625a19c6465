package iptables

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("iptables"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.Validate("iptables")
	if len(errs) != 1 || errs[0].Path != "iptables.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
}
