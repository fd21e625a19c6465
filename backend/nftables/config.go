package nftables

import (
	// Renamed because this package has a function field.
	fielderr "github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two
	// hooks.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// MaxAffinityClients is how many clients of Services with sessionAffinity are remembered in each IP family. A client counts once
	// for each Service port that it uses.
	MaxAffinityClients int32 `json:"maxAffinityClients"`
	// Counters has the kernel count new connections to each frontend, in all modes of Linux.
	Counters bool `json:"counters"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config {
	return Config{MasqueradeBit: defaultMasqueradeBit, MaxAffinityClients: defaultMaxAffinityClients}
}

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "NFTablesConfiguration" }

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*fielderr.Error {
	var errs fielderr.Errors
	errs.Bit(fielderr.Join(path, "masqueradeBit"), c.MasqueradeBit)
	if n := c.MaxAffinityClients; n < 1 || n > greatestMaxAffinityClients {
		errs.Add(fielderr.Join(path, "maxAffinityClients"), "must be from 1 to %d, got %d", greatestMaxAffinityClients, n)
	}
	return errs
}
