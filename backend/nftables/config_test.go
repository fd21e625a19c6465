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
	for _, n := range []int32{-1, 0, greatestMaxAffinityClients + 1} {
		c = DefaultConfig()
		c.MaxAffinityClients = n
		if errs := c.Validate("nftables"); len(errs) != 1 || errs[0].Path != "nftables.maxAffinityClients" {
			t.Errorf("errors of %d clients = %v", n, errs)
		}
	}
}
