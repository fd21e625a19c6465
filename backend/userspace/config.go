package userspace

import (
	"time"

	"github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// UDPIdleTimeout is how long a UDP flow is kept after its last packet.
	UDPIdleTimeout field.Duration `json:"udpIdleTimeout"`
}

// DefaultConfig returns the section as it is when nothing is configured. The time-out is that of kube-proxy when it had a
// userspace mode.
func DefaultConfig() Config {
	return Config{UDPIdleTimeout: field.Duration{Duration: 250 * time.Millisecond}}
}

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "UserspaceConfiguration" }

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*field.Error {
	var errs field.Errors
	if c.UDPIdleTimeout.Duration <= 0 {
		errs.Add(field.Join(path, "udpIdleTimeout"), "must be greater than 0, got %v", c.UDPIdleTimeout)
	}
	return errs
}
