package config

import (
	"net/netip"
	"regexp"
)

// IPVS is the section ipvs of the configuration.
type IPVS struct {
	// The number of the bit of packet marks, 0 to 31, that marks connections for masquerading, in this mode.
	MasqueradeBit int32 `json:"masqueradeBit"`
	// The kernel's name of the scheduler, such as rr or lc. Empty means rr.
	Scheduler string `json:"scheduler"`
	// Addresses of virtual servers that belong to others and are left alone.
	ExcludeCIDRs []netip.Prefix `json:"excludeCIDRs"`
	// Keeps the node from answering ARP requests for addresses of its IPVS interface.
	StrictARP bool `json:"strictARP"`
	// How long an idle TCP connection is kept. 0 leaves the kernel's setting as it is.
	TCPTimeout Duration `json:"tcpTimeout"`
	// How long a TCP connection is kept after a FIN. 0 leaves the kernel's setting as it is.
	TCPFinTimeout Duration `json:"tcpFinTimeout"`
	// How long an idle UDP flow is kept. 0 leaves the kernel's setting as it is.
	UDPTimeout Duration `json:"udpTimeout"`
}

// defaultIPVS is the section when nothing is configured.
func defaultIPVS() IPVS { return IPVS{MasqueradeBit: 14} }

// schedulerName is how the kernel names its schedulers. Which of them there are depends on its modules.
var schedulerName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,14}$`)

// validate returns all faults of c, a section at path.
func (c IPVS) validate(path string) []*FieldError {
	var errs FieldErrors
	errs.Bit(JoinPath(path, "masqueradeBit"), c.MasqueradeBit)
	if c.Scheduler != "" && !schedulerName.MatchString(c.Scheduler) {
		errs.Add(JoinPath(path, "scheduler"), "must be the name of a scheduler such as rr, wrr, lc or sh, got %q", c.Scheduler)
	}
	errs.NotNegative(JoinPath(path, "tcpTimeout"), c.TCPTimeout)
	errs.NotNegative(JoinPath(path, "tcpFinTimeout"), c.TCPFinTimeout)
	errs.NotNegative(JoinPath(path, "udpTimeout"), c.UDPTimeout)
	return errs
}
