package iptables

import "github.com/switchyard-net/switchyard/field"

// Config is the dataplane's section of the configuration.
type Config struct {
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// LocalhostNodePorts serves NodePorts on the IPv4 loopback addresses, too.
	LocalhostNodePorts bool `json:"localhostNodePorts"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config { return Config{MasqueradeBit: 14} }

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "IPTablesConfiguration" }

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*field.Error {
	var errs field.Errors
	errs.Bit(field.Join(path, "masqueradeBit"), c.MasqueradeBit)
	return errs
}
