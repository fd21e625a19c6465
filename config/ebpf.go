package config

import (
	"fmt"
	"path"
)

// EBPF is the section ebpf of the configuration.
type EBPF struct {
	// CgroupPath is the cgroup v2 directory whose processes connect through hooks. Empty: the root, which has all.
	CgroupPath string `json:"cgroupPath"`
	// Pods is whether hooks also translate connections of pods. They always translate the node's connections.
	Pods bool `json:"pods"`
	// MeshPorts are the TCP ports by which pods with a service mesh proxy are recognized. Their connections are left to netfilter.
	MeshPorts []int32 `json:"meshPorts"`
	// NamespaceMap is the path of a pinned BPF map that lists the network namespaces of this node, where a kernel has several nodes.
	NamespaceMap string `json:"namespaceMap"`
}

// maxMeshPorts is how many ports of service meshes the hooks can look at.
const maxMeshPorts = 4

// The proxies of Istio and Linkerd listen there for the connections of their pod's processes.
const (
	istioPort   = 15001
	linkerdPort = 4140
)

// defaultEBPF is the section when nothing is configured.
func defaultEBPF() EBPF {
	return EBPF{Pods: true, MeshPorts: []int32{istioPort, linkerdPort}}
}

// validate returns all faults of c, a section at that path.
func (c EBPF) validate(section string) []*FieldError {
	var errs FieldErrors
	for _, f := range []struct{ name, value string }{{"cgroupPath", c.CgroupPath}, {"namespaceMap", c.NamespaceMap}} {
		if f.value != "" && !path.IsAbs(f.value) {
			errs.Add(JoinPath(section, f.name), "must be an absolute path, or empty, got %q", f.value)
		}
	}
	if n := len(c.MeshPorts); n > maxMeshPorts {
		errs.Add(JoinPath(section, "meshPorts"), "must have at most %d ports, got %d", maxMeshPorts, n)
	}
	for i, port := range c.MeshPorts {
		if port < 1 || port > 65535 {
			errs.Add(fmt.Sprintf("%s[%d]", JoinPath(section, "meshPorts"), i), "must be a port from 1 to 65535, got %d", port)
		}
	}
	return errs
}
