package ebpf

import (
	"fmt"
	"path"

	"github.com/switchyard-net/switchyard/backend/ebpf/internal/programs"
	"github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// CgroupPath is the cgroup v2 directory whose processes connect through hooks. Empty: the root, which has all.
	CgroupPath string `json:"cgroupPath"`
	// Pods is whether connections of pods are translated by hooks; those of the node always are.
	Pods bool `json:"pods"`
	// MeshPorts are the TCP ports by which pods with a service mesh proxy are recognized. Their connections are left to netfilter.
	MeshPorts []int32 `json:"meshPorts"`
	// NamespaceMap is the path of a pinned BPF map that lists the network namespaces of this node, where a kernel has several nodes.
	NamespaceMap string `json:"namespaceMap"`
}

// The proxies of Istio and Linkerd listen there, for what they take from the processes of their pod.
const (
	istioPort   = 15001
	linkerdPort = 4140
)

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config {
	return Config{Pods: true, MeshPorts: []int32{istioPort, linkerdPort}}
}

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "EBPFConfiguration" }

// Validate returns all faults of c, a section at that path.
func (c Config) Validate(section string) []*field.Error {
	var errs field.Errors
	for _, f := range []struct{ name, value string }{{"cgroupPath", c.CgroupPath}, {"namespaceMap", c.NamespaceMap}} {
		if f.value != "" && !path.IsAbs(f.value) {
			errs.Add(field.Join(section, f.name), "must be an absolute path, or empty, got %q", f.value)
		}
	}
	if n := len(c.MeshPorts); n > programs.MaxMeshPorts {
		errs.Add(field.Join(section, "meshPorts"), "must have at most %d ports, got %d", programs.MaxMeshPorts, n)
	}
	for i, port := range c.MeshPorts {
		if port < 1 || port > 65535 {
			errs.Add(fmt.Sprintf("%s[%d]", field.Join(section, "meshPorts"), i), "must be a port from 1 to 65535, got %d", port)
		}
	}
	return errs
}
