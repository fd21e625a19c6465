package config

// IPTables is the section iptables of the configuration.
type IPTables struct {
	// The number of the bit of packet marks, 0 to 31, that marks connections for masquerading, in this mode.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// Also serves NodePorts on the IPv4 loopback addresses.
	LocalhostNodePorts bool `json:"localhostNodePorts"`
}

// defaultIPTables is the section when nothing is configured.
func defaultIPTables() IPTables { return IPTables{MasqueradeBit: 14} }

// validate returns all faults of c, a section at path.
func (c IPTables) validate(path string) []*FieldError {
	var errs FieldErrors
	errs.Bit(JoinPath(path, "masqueradeBit"), c.MasqueradeBit)
	return errs
}
