// Package ebpf owns the configuration section of the eBPF dataplane; the dataplane itself is not part of this release.
package ebpf

import (
	"path"

	"github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// CgroupPath is the cgroup v2 directory at which programs that translate at connect are attached.
	CgroupPath string `json:"cgroupPath"`
	// PinPath is the directory of a bpf file system in which maps and links outlive the process.
	PinPath string `json:"pinPath"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config {
	return Config{CgroupPath: "/sys/fs/cgroup", PinPath: "/sys/fs/bpf/switchyard"}
}

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "EBPFConfiguration" }

// Validate returns all faults of c, a section at that path.
func (c Config) Validate(section string) []*field.Error {
	var errs field.Errors
	for _, f := range []struct{ name, value string }{{"cgroupPath", c.CgroupPath}, {"pinPath", c.PinPath}} {
		if !path.IsAbs(f.value) {
			errs.Add(field.Join(section, f.name), "must be an absolute path, got %q", f.value)
		}
	}
	return errs
}
