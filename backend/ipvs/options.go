package ipvs

import (
	"fmt"
	"log/slog"
	"net/netip"
	"regexp"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of the dataplane. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// LocalDetector distinguishes connections of pods from others where the state does not say ([state.Node]).
	LocalDetector state.LocalDetector
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two hooks. Default 14.
	// The base may use the same.
	MasqueradeBit *int
	// Scheduler is the kernel's name of the scheduler. Default: rr. The schedulers wrr, wlc, sed, nq, sh, mh and twos know weights. With others, the
	// base serves frontends with different weights. It always serves frontends that refuse a share of connections. Services that ask for least
	// connections have wlc.
	Scheduler string
	// ExcludeCIDRs are addresses of virtual servers that belong to others. Frontends there are left to the base.
	ExcludeCIDRs []netip.Prefix
	// StrictARP keeps the node from answering ARP requests for addresses of the device, and from announcing them.
	StrictARP bool
	// TCPTimeout, TCPFinTimeout and UDPTimeout are how long connections are kept without a packet. 0 leaves the kernel's setting as it is.
	TCPTimeout, TCPFinTimeout, UDPTimeout time.Duration
	// ResetRemoved ends TCP connections to a removed endpoint with a reset. An endpoint is removed once no route of the frontend has it, and
	// it is not among the lingering endpoints of its port.
	ResetRemoved bool
	// Commit is to run fn, which commits one batch to nf_tables or fails. A base that watches for commits of other programs must not
	// take this one for theirs. It may be called by any goroutine. Default: it only runs fn.
	Commit func(fn func() error) error
	// DrainTimeout is how long connections to an endpoint may go on that gets no new ones. Default: an hour.
	DrainTimeout time.Duration
}

// Defaults of options.
const (
	defaultScheduler    = "rr"
	defaultDrainTimeout = time.Hour
	// defaultMasqueradeBit is kube-proxy's default for masqueradeBit.
	defaultMasqueradeBit = 14
)

// schedulerName is how the kernel names its schedulers. Which of them there are depends on its modules.
var schedulerName = regexp.MustCompile(`^[a-z][a-z0-9_-]{0,14}$`)

// weighing are the schedulers that share connections by the weights of real servers.
var weighing = []string{"wrr", "wlc", "sed", "nq", "sh", "mh", "twos"}

// countingScheduler counts the connections of real servers, in relation to their weights. Frontends have it whose connections are to be counted.
const countingScheduler = "wlc"

// weighs reports whether the scheduler does.
func (o *Options) weighs() bool { return slices.Contains(weighing, o.Scheduler) }

// complete fills in defaults, and returns an error if the options are invalid.
func (o *Options) complete() error {
	if o.MasqueradeBit != nil && (*o.MasqueradeBit < 0 || *o.MasqueradeBit > 31) {
		return fmt.Errorf("MasqueradeBit is %d, must be from 0 to 31", *o.MasqueradeBit)
	}
	for name, d := range map[string]time.Duration{
		"TCPTimeout": o.TCPTimeout, "TCPFinTimeout": o.TCPFinTimeout, "UDPTimeout": o.UDPTimeout, "DrainTimeout": o.DrainTimeout,
	} {
		if d < 0 {
			return fmt.Errorf("%s is %v, must not be negative", name, d)
		}
	}
	if o.Scheduler == "" {
		o.Scheduler = defaultScheduler
	}
	if !schedulerName.MatchString(o.Scheduler) {
		return fmt.Errorf("scheduler %q: must be the name of a scheduler such as rr, wrr, lc or sh", o.Scheduler)
	}
	if o.Commit == nil {
		o.Commit = func(fn func() error) error { return fn() }
	}
	if o.DrainTimeout == 0 {
		o.DrainTimeout = defaultDrainTimeout
	}
	return nil
}

// mark returns the bit of packet marks.
func (o *Options) mark() uint32 {
	if o.MasqueradeBit != nil {
		return 1 << *o.MasqueradeBit
	}
	return 1 << defaultMasqueradeBit
}
