package config

// NFTables is the section nftables of the configuration.
type NFTables struct {
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two
	// hooks.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// MaxAffinityClients is how many clients of Services with sessionAffinity are remembered in each IP family. A client counts once
	// for each Service port that it uses.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// Counters has the kernel count new connections to each frontend, in all modes of Linux.
	Counters bool `json:"counters"`
}

// greatestAffinityClients bounds the kernel's memory that a typing error costs.
const greatestAffinityClients = 1 << 26

// defaultNFTables is the section when nothing is configured.
func defaultNFTables() NFTables {
	return NFTables{MasqueradeBit: 14, MaxAffinityClients: 1 << 20}
}

// validate returns all faults of c, a section at path.
func (c NFTables) validate(path string) []*FieldError {
	var errs FieldErrors
	errs.Bit(JoinPath(path, "masqueradeBit"), c.MasqueradeBit)
	if n := c.MaxAffinityClients; n < 1 || n > greatestAffinityClients {
		errs.Add(JoinPath(path, "maxAffinityClients"), "must be from 1 to %d, got %d", greatestAffinityClients, n)
	}
	return errs
}
