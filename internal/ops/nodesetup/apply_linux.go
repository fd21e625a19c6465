package nodesetup

import (
	"cmp"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/switchyard-net/switchyard/kernel/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// Files, as seen from the root directory.
const (
	netfilter    = "/proc/sys/net/netfilter/"
	maxFile      = netfilter + "nf_conntrack_max"
	hashsizeFile = "/sys/module/nf_conntrack/parameters/hashsize"
	cpusFile     = "/sys/devices/system/cpu/online"
)

// Apply writes what the options ask for, and returns a [*Warning] for each value that could not be written. It may be
// called again at any time. Values of the network namespace are written to the calling thread's.
func Apply(o Options) []error {
	loadConntrack()
	return apply(o, "/")
}

// loadConntrack makes the kernel load connection tracking, whose settings do not exist before. It loads it for the first that
// asks it something over netlink. Where that is refused, what cannot be set reports it.
func loadConntrack() {
	c, err := conntrack.Open()
	if err != nil {
		return
	}
	defer c.Close()
	// The answer does not matter.
	_ = c.Flows(conntrack.Filter{Family: state.IPv4, Protocol: state.SCTP, Dst: netip.IPv4Unspecified(), DstPort: 1},
		func([]conntrack.Flow) error { return nil })
}

func apply(o Options, root string) []error {
	w := &writer{root: root, log: cmp.Or(o.Logger, slog.New(slog.DiscardHandler))}
	c := &o.Conntrack
	if limit := c.Limit(w.cpus()); limit > 0 {
		w.raise(setting{maxFile, limit, "conntrack.maxPerCore: 0 (--conntrack-max-per-core=0)"})
		w.raise(setting{hashsizeFile, limit / 4, "conntrack.maxPerCore: 0 (--conntrack-max-per-core=0)"})
	}
	w.seconds("nf_conntrack_tcp_timeout_established", c.TCPEstablishedTimeout, "conntrack.tcpEstablishedTimeout: 0 (--conntrack-tcp-timeout-established=0)")
	w.seconds("nf_conntrack_tcp_timeout_close_wait", c.TCPCloseWaitTimeout, "conntrack.tcpCloseWaitTimeout: 0 (--conntrack-tcp-timeout-close-wait=0)")
	if c.TCPBeLiberal {
		w.set(setting{netfilter + "nf_conntrack_tcp_be_liberal", 1, "conntrack.tcpBeLiberal: false (--conntrack-tcp-be-liberal=false)"})
	}
	w.seconds("nf_conntrack_udp_timeout", c.UDPTimeout, "conntrack.udpTimeout: 0 (--conntrack-udp-timeout=0)")
	w.seconds("nf_conntrack_udp_timeout_stream", c.UDPStreamTimeout, "conntrack.udpStreamTimeout: 0 (--conntrack-udp-timeout-stream=0)")
	if o.OOMScoreAdj != nil {
		w.set(setting{oomFile, *o.OOMScoreAdj, "oomScoreAdj: 0 (--oom-score-adj=0)"})
	}
	return w.warnings
}

// setting is one file's value.
type setting struct {
	file  string
	value int
	// off is the field of the configuration, and the flag, with which the value is left alone, or is what processes have anyway.
	off string
}

// writer writes settings below a root directory, which is another than / in tests only.
type writer struct {
	root     string
	log      *slog.Logger
	warnings []error
}

func (w *writer) seconds(name string, d time.Duration, off string) {
	if s := int(d / time.Second); s > 0 {
		w.set(setting{netfilter + name, s, off})
	}
}

// set writes a value unless it is there.
func (w *writer) set(s setting) {
	w.write(s, func(is int) bool { return is == s.value })
}

// raise writes a value unless it is there or a larger one is. A larger limit is what the node's owner set. A larger hash table only
// takes memory, and making it smaller means to hash every connection again.
func (w *writer) raise(s setting) {
	w.write(s, func(is int) bool { return is >= s.value })
}

func (w *writer) read(file string) (int, error) {
	b, err := os.ReadFile(filepath.Join(w.root, file))
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func (w *writer) write(s setting, fits func(is int) bool) {
	value, was := strconv.Itoa(s.value), ""
	if is, err := w.read(s.file); err == nil {
		if fits(is) {
			return
		}
		was = strconv.Itoa(is)
	}
	if err := overwrite(filepath.Join(w.root, s.file), value); err != nil {
		w.warnings = append(w.warnings, &Warning{File: s.file, Value: value, Was: was, Err: err, Remedy: remedy(s, err)})
		return
	}
	w.log.Info("set kernel parameter", "file", s.file, "value", s.value, "was", was)
}

// overwrite writes to a file that exists: neither /proc nor /sys makes new ones.
func overwrite(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_TRUNC, 0)
	if err == nil {
		_, err = f.WriteString(value)
		err = errors.Join(err, f.Close())
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		return e.Err // the warning names the file already
	}
	return err
}

// remedy returns a remedy for an error. EROFS comes from containers that are not privileged. EACCES and EPERM come from
// nodes inside user or network namespaces (kind, rootless). ENOENT comes from a kernel module that is not loaded.
func remedy(s setting, err error) string {
	leave := ", or leave it alone with " + s.off
	switch {
	case errors.Is(err, syscall.EROFS):
		return "mount it read-write into the container, set it on the host" + leave
	case errors.Is(err, fs.ErrPermission) && s.file == oomFile:
		return "give the process the capability SYS_RESOURCE, which takes root of the host" + leave
	case errors.Is(err, fs.ErrPermission):
		return "it takes root outside all user and network namespaces: set it on the host" + leave
	case errors.Is(err, fs.ErrNotExist) && s.file != oomFile:
		return "load the kernel module nf_conntrack on the host" + leave
	case errors.Is(err, syscall.EINVAL):
		return "the kernel rejects the value: choose another" + leave
	}
	return "set it on the host" + leave
}

// cpus counts the node's CPUs that are online. The limit is for the whole node. runtime.NumCPU counts only the CPUs
// that the process may use, which are fewer with a static CPU policy (kubernetes/kubernetes#99225).
func (w *writer) cpus() int {
	b, err := os.ReadFile(filepath.Join(w.root, cpusFile))
	if err == nil {
		if n, ok := parseCPUs(strings.TrimSpace(string(b))); ok {
			return n
		}
	}
	return runtime.NumCPU()
}

// parseCPUs counts a list such as 0-3,5.
func parseCPUs(list string) (n int, ok bool) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		from, err1 := strconv.ParseUint(first, 10, 16)
		to, err2 := strconv.ParseUint(last, 10, 16)
		if err1 != nil || err2 != nil || to < from {
			return 0, false
		}
		n += int(to-from) + 1
	}
	return n, true
}
