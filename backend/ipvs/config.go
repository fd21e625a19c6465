package ipvs

import (
	"net/netip"
	"regexp"

	"github.com/switchyard-net/switchyard/field"
)

// Config is the dataplane's section of the configuration.
type Config struct {
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// Scheduler is the kernel's name of the scheduler, such as rr or lc. Empty means rr.
	Scheduler string `json:"scheduler"`
	// ExcludeCIDRs are addresses of virtual servers that belong to others and are left alone.
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs"`
	// StrictARP keeps the node from answering ARP requests for addresses of its IPVS interface.
	StrictARP bool `json:"strictARP"`
	// TCPTimeout is how long an idle TCP connection is kept. 0 leaves the kernel's setting as it is.
	TCPTimeout field.Duration `json:"tcpTimeout"`
	// TCPFinTimeout is how long a TCP connection is kept after a FIN. 0 leaves the kernel's setting as it is.
	TCPFinTimeout field.Duration `json:"tcpFinTimeout"`
	// UDPTimeout is how long an idle UDP flow is kept. 0 leaves the kernel's setting as it is.
	UDPTimeout field.Duration `json:"udpTimeout"`
}

// DefaultConfig returns the section as it is when nothing is configured.
func DefaultConfig() Config { return Config{MasqueradeBit: 14} }

// Kind is the kind of a file that holds the section alone.
func (Config) Kind() string { return "IPVSConfiguration" }

// schedulerName is how the kernel names its schedulers. Which of them there are depends on its modules.
var schedulerName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,14}$`)

// Validate returns all faults of c, a section at path.
func (c Config) Validate(path string) []*field.Error {
	var errs field.Errors
	errs.Bit(field.Join(path, "masqueradeBit"), c.MasqueradeBit)
	if c.Scheduler != "" && !schedulerName.MatchString(c.Scheduler) {
		errs.Add(field.Join(path, "scheduler"), "must be the name of a scheduler such as rr, wrr, lc or sh, got %q", c.Scheduler)
	}
	errs.NotNegative(field.Join(path, "tcpTimeout"), c.TCPTimeout)
	errs.NotNegative(field.Join(path, "tcpFinTimeout"), c.TCPFinTimeout)
	errs.NotNegative(field.Join(path, "udpTimeout"), c.UDPTimeout)
	return errs
}
