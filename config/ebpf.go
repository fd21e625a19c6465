package config

import (
	"fmt"
	"path"
)

// EBPF is the section ebpf of the configuration.
type EBPF struct {
	// The cgroup v2 directory whose processes connect through socket hooks. Empty: the root, which has all. A node that
	// shares its kernel with others, such as one of kind, needs it.
	CgroupPath string `json:"cgroupPath"`
	// Whether connections of pods are translated at their sockets; connections of the node always are.
	Pods bool `json:"pods"`
	// At most four TCP ports. A pod in which something listens on one of them, as the proxies of Istio and Linkerd do,
	// is left to netfilter.
	MeshPorts []int32 `json:"meshPorts"`
	// The path of a pinned BPF map of this node's network namespaces, by cookie. 1 is a pod, 2 is the node. For several
	// nodes on one kernel. Empty: all namespaces do.
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
