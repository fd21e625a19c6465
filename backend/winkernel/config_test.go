package winkernel

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("winkernel"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.RootHNSEndpointName = ""
	errs := c.Validate("winkernel")
	if len(errs) != 1 || errs[0].Path != "winkernel.rootHnsEndpointName" {
		t.Errorf("errors = %v", errs)
	}
}
