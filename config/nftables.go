package config

// NFTables is the section nftables of the configuration.
type NFTables struct {
	// The number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two hooks.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// How many clients of Services with `sessionAffinity` are remembered in each IP family, 1 to 67108864. A client
	// counts once for each Service port that it uses. Further clients have no affinity until others time out. Each takes
	// about 150 bytes of the kernel's memory. A change forgets all clients.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// Counts new connections to each Service port, for `switchyard_service_*` metrics
	// (docs/operate.md#traffic-of-services). Rejected and dropped connections have counts of their own. All modes of
	// Linux have it, but not with `userspace.listen`. It costs a lookup for each new connection. A frontend takes 400
	// more bytes of the kernel's memory, and 600 in mode `ebpf` (docs/adr/0032-counters.md). If it is turned off, counts
	// are lost.
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
