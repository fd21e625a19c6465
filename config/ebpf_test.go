package config

import (
	"testing"

	"github.com/switchyard-net/switchyard/internal/ebpf/programs"
)

func TestEBPF(t *testing.T) {
	c := defaultEBPF()
	if errs := c.validate("ebpf"); len(errs) > 0 {
		t.Fatalf("the default has faults: %v", errs)
	}
	for path, set := range map[string]func(*EBPF){
		"ebpf.cgroupPath":   func(c *EBPF) { c.CgroupPath = "kubepods" },
		"ebpf.namespaceMap": func(c *EBPF) { c.NamespaceMap = "map" },
		"ebpf.meshPorts":    func(c *EBPF) { c.MeshPorts = []int32{1, 2, 3, 4, 5} },
		"ebpf.meshPorts[1]": func(c *EBPF) { c.MeshPorts = []int32{15001, 65536} },
	} {
		c := defaultEBPF()
		set(&c)
		if errs := c.validate("ebpf"); len(errs) != 1 || errs[0].Path != path {
			t.Errorf("errors = %v, want one of %s", errs, path)
		}
	}
}

func TestMeshPortsFitTheHooks(t *testing.T) {
	if maxMeshPorts != programs.MaxMeshPorts {
		t.Errorf("%d mesh ports may be configured, and hooks look at %d", maxMeshPorts, programs.MaxMeshPorts)
	}
}
