package nodesetup

import (
	"fmt"
	"log/slog"
	"time"
)

// Options specifies the settings to write. Its zero value specifies none.
type Options struct {
	// Conntrack is about connection tracking.
	Conntrack Conntrack
	// OOMScoreAdj is the score of this process, -1000 (never killed when memory runs out) to 1000. nil leaves it
	// alone.
	OOMScoreAdj *int
	// Logger gets the written settings, at level Info. Default: nothing is logged.
	Logger *slog.Logger
}

// Conntrack is about connection tracking. In every field, 0 leaves the kernel's value alone.
type Conntrack struct {
	// MaxPerCore is the number of connections to track for each CPU of the node. 0 leaves the limit alone, whatever Min is.
	MaxPerCore int
	// Min is the number of connections to track at least.
	Min int
	// TCPEstablishedTimeout is how long an idle TCP connection is tracked. Like all timeouts here it is cut to whole
	// seconds; less than a second is none.
	TCPEstablishedTimeout time.Duration
	// TCPCloseWaitTimeout is the same in the state CLOSE_WAIT.
	TCPCloseWaitTimeout time.Duration
	// TCPBeLiberal keeps packets outside a connection's TCP window from being marked invalid. false leaves it alone.
	TCPBeLiberal bool
	// UDPTimeout is how long UDP flows are tracked that had no answer.
	UDPTimeout time.Duration
	// UDPStreamTimeout is the same for flows that had one.
	UDPStreamTimeout time.Duration
}

// maxConnections bounds what MaxPerCore asks for: nodes with hundreds of CPUs would give gigabytes to the table.
const maxConnections = 1 << 20

// Limit returns the value for nf_conntrack_max on a node of that many CPUs, 0 if it is to be left alone. As in kube-proxy, the
// bound of 1,048,576 is for what the CPUs ask for; a Min above it holds unless that bound is reached.
func (c Conntrack) Limit(cpus int) int {
	if c.MaxPerCore <= 0 {
		return 0
	}
	if c.MaxPerCore > maxConnections/max(cpus, 1) { // not multiplied: no overflow
		return maxConnections
	}
	return max(c.MaxPerCore*cpus, c.Min)
}

// Warning reports whether a value could not be written. It wraps the kernel's error.
type Warning struct {
	// File is the kernel's, below /proc or /sys.
	File string
	// Value is the desired value. Was is the current value, if it could be read.
	Value, Was string
	// Remedy is what an operator can do.
	Remedy string
	// Err is why it could not be written.
	Err error
}

// oomFile has the OOM score of the process.
const oomFile = "/proc/self/oom_score_adj"

// IsOOMScore reports whether the setting is the OOM score of the process. Ordinary containers lack the capability for it. The kubelet sets
// the score of a container itself.
func (w *Warning) IsOOMScore() bool { return w.File == oomFile }

// Error names the file, the values, the reason and the remedy.
func (w *Warning) Error() string {
	was := ""
	if w.Was != "" {
		was = " (it is " + w.Was + ")"
	}
	return fmt.Sprintf("cannot set %s to %s%s: %v; %s", w.File, w.Value, was, w.Err, w.Remedy)
}

// Unwrap returns the reason.
func (w *Warning) Unwrap() error { return w.Err }
