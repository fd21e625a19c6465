package ebpf

import "testing"

func TestConfig(t *testing.T) {
	c := DefaultConfig()
	if errs := c.Validate("ebpf"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	for path, set := range map[string]func(*Config){
		"ebpf.cgroupPath":   func(c *Config) { c.CgroupPath = "kubepods" },
		"ebpf.namespaceMap": func(c *Config) { c.NamespaceMap = "map" },
		"ebpf.meshPorts":    func(c *Config) { c.MeshPorts = []int32{1, 2, 3, 4, 5} },
		"ebpf.meshPorts[1]": func(c *Config) { c.MeshPorts = []int32{15001, 65536} },
	} {
		c := DefaultConfig()
		set(&c)
		if errs := c.Validate("ebpf"); len(errs) != 1 || errs[0].Path != path {
			t.Errorf("errors = %v, want one of %s", errs, path)
		}
	}
}
