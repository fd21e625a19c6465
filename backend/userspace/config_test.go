package userspace

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("userspace"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.UDPIdleTimeout.Duration = 0
	errs := c.Validate("userspace")
	if len(errs) != 1 || errs[0].Path != "userspace.udpIdleTimeout" {
		t.Errorf("errors = %v", errs)
	}
}
