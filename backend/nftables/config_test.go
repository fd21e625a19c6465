package nftables

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("nftables"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.Validate("nftables")
	if len(errs) != 1 || errs[0].Path != "nftables.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
}
