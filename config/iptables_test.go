package config

import "testing"

func TestIPTables(t *testing.T) {
	c := defaultIPTables()
	if errs := c.validate("iptables"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.MasqueradeBit = 32
	errs := c.validate("iptables")
	if len(errs) != 1 || errs[0].Path != "iptables.masqueradeBit" {
		t.Errorf("errors of bit 32 = %v", errs)
	}
}
