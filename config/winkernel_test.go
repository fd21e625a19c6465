package config

import "testing"

func TestWinkernel(t *testing.T) {
	c := defaultWinkernel()
	if errs := c.validate("winkernel"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	c.RootHNSEndpointName = ""
	errs := c.validate("winkernel")
	if len(errs) != 1 || errs[0].Path != "winkernel.rootHnsEndpointName" {
		t.Errorf("errors = %v", errs)
	}
}
