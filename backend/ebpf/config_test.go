package ebpf

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("ebpf"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.PinPath = "switchyard"
	errs := c.Validate("ebpf")
	if len(errs) != 1 || errs[0].Path != "ebpf.pinPath" {
		t.Errorf("errors = %v", errs)
	}
}
