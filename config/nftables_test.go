package config

import "testing"

func TestNFTables(t *testing.T) {
	c := defaultNFTables()
	if errs := c.validate("nftables"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.validate("nftables")
	if len(errs) != 1 || errs[0].Path != "nftables.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
	for _, n := range []int32{-1, 0, greatestAffinityClients + 1} {
		c = defaultNFTables()
		c.MaxAffinityClients = n
		if errs := c.validate("nftables"); len(errs) != 1 || errs[0].Path != "nftables.maxAffinityClients" {
			t.Errorf("errors of %d clients = %v", n, errs)
		}
	}
}
