package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/iptables"
	"github.com/switchyard-net/switchyard/backend/ipvs"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/backend/userspace"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/internal/source/upstream"
	"github.com/switchyard-net/switchyard/internal/spelling"
	"github.com/switchyard-net/switchyard/internal/winkernel"
	"github.com/switchyard-net/switchyard/state"
)

// Dataplane is what a [Node] needs of a dataplane in addition to [backend.Backend].
type Dataplane interface {
	backend.Backend
	// Reconfigure makes the dataplane go on with another configuration, of the same mode. Nothing in the kernel changes before the next
	// Apply, which is of a full update. No other method is called until Reconfigure returns. After an error the dataplane goes on
	// unchanged.
	//
	// A dataplane of [Options].Dataplane gets each configuration that [Node.Reconfigure] gets, because only the
	// dataplane knows which fields concern it. It may have settings of its own, which config.Config does not have. When
	// they change, the program calls [Node.Reconfigure] with the same configuration, and the dataplane takes them over
	// here.
	Reconfigure(c *config.Config) error
	// Close ends the dataplane. The programmed rules stay.
	Close() error
}

// DataplaneOptions are what a dataplane is opened with in addition to the configuration.
type DataplaneOptions struct {
	// Logger gets what an operator may want to know. Required.
	Logger *slog.Logger
	// Program is [Options].Program: how this process is called, for the message to a second one. It may be empty.
	Program string
	// TakeOver is how long the dataplane waits for the end of another process that programs this kernel. The node does not wait for it.
	TakeOver time.Duration
	// OnFlowsCut is to be called after each round in which stale flows of a family were looked for, for the metrics. It is not nil. See
	// [nftables.Options].
	OnFlowsCut func(f state.Family, took time.Duration, deleted int)
	// TCPLingers reports whether records have the lingering endpoints of TCP ports while config.ResetConnectionsToRemovedEndpoints is set.
	// States that are made elsewhere do not: then connections must not be reset.
	TCPLingers bool
	// OnResets is to be called with how many packets were answered with a reset because their endpoint has left a Service, for the metrics.
	// It is not nil. See [nftables.Options].
	OnResets func(service state.ServiceName, packets uint64)
	// OnProbe and OnEjections are to be called after probes of endpoints, and when endpoints are ejected or return, for the metrics. They are not nil.
	// See [nftables.Options].
	OnProbe     func(nftables.ProbeResult)
	OnEjections func(added, now int)
	// OnIPTablesRules is to be called with how many rules a table of iptables has, and how many were written, for the metrics. It is not nil. See
	// [iptables.Options].
	OnIPTablesRules func(table string, f state.Family, total, written int)
	// OnProgress is to be called while the dataplane gets on with an update or a verification that takes long, about once a second, for /livez.
	// It is not nil.
	OnProgress func()

	// relayFiles is how many file descriptors a relay may have, 0 for as many as the process leaves it.
	relayFiles int
	// memory is how many bytes the process may use, 0 if that is not known.
	memory int64
	// onHNSFailure is [winkernel.Options].OnFailure.
	onHNSFailure func(winkernel.Failure)

	// announce tells other nodes the port at which this one takes packets, 0 if it takes none. It does not wait, and reports whether this process can tell them.
	// saw notes the port that they see. Both may be nil where there is no edge.
	announce func(port uint16) (can bool)
	saw      func(port uint16)

	// commit is [ipvs.Options].Commit. scheduled is the option Scheduled of the other dataplanes that run with IPVS.
	commit    func(fn func() error) error
	scheduled func(state.FrontendKey) bool
}

// DataplaneError is why [New] cannot open the dataplane of a mode. A right or a feature of the kernel is missing, or another process
// has the dataplane.
type DataplaneError struct {
	Mode config.Mode
	Err  error
}

func (e *DataplaneError) Error() string { return e.Err.Error() }
func (e *DataplaneError) Unwrap() error { return e.Err }

// dataplane is the dataplane of one mode.
type dataplane struct {
	mode config.Mode
	// metrics is what /proxyMode and the metrics call the mode.
	metrics string
	// part is what /healthz calls a dataplane that is a [backend.Reporter], empty for others.
	part string
	// open makes the dataplane of the calling thread's network namespace. base is nil for one that is not above it.
	open func(ctx context.Context, c *config.Config, o DataplaneOptions, base *nftablesDataplane) (Dataplane, error)
	// above is set if the dataplane is nftables, or a layer above it.
	above bool
	// cleanup removes all that the dataplane ever puts into the kernel, or on Windows into the HNS network of c. It reports whether
	// there was anything. It is nil if the cleanup of another mode does that.
	cleanup func(ctx context.Context, c *config.Config) (removed bool, err error)
	// remove does so in a process that has the lock of the network namespace. If keepLoopback is set, it leaves the sysctl for
	// NodePorts on loopback addresses unchanged.
	remove func(ctx context.Context, c *config.Config, keepLoopback bool) error
	// programmed reports whether there is anything that cleanup would remove. It is nil if another mode reports that.
	programmed func(c *config.Config) (bool, error)
	// note tells operators about the choice of this dataplane. It is empty if they asked for it.
	note modeNote
	// available returns why the dataplane cannot run on this node, so that [config.Config.AllowModeFallback] counts. It is nil if it always can.
	available func() error
}

// dataplanes lists the dataplanes of an operating system, named as in runtime.GOOS. A mode that is not in the list cannot run there.
func dataplanes(goos string) []dataplane {
	switch goos {
	case "linux":
		return []dataplane{
			{
				mode: config.ModeNFTables, metrics: metrics.ModeNFTables, part: "weights", above: true,
				open: func(_ context.Context, _ *config.Config, _ DataplaneOptions, base *nftablesDataplane) (Dataplane, error) {
					return base, nil
				},
				cleanup: anyConfig(nftables.Cleanup), programmed: anyHeld(nftables.Programmed),
				remove: func(_ context.Context, _ *config.Config, keepLoopback bool) error {
					_, err := nftables.Remove(keepLoopback)
					return err
				},
			},
			{
				mode: config.ModeIPVS, metrics: metrics.ModeIPVS, above: true, open: openIPVS,
				cleanup: anyConfig(ipvs.Cleanup), programmed: anyHeld(ipvs.Programmed), available: ipvs.Available,
				remove: func(context.Context, *config.Config, bool) error { return ipvs.Remove() },
			},
			{mode: config.ModeEBPF, metrics: metrics.ModeEBPF, part: "socketHooks", above: true, open: openEBPF}, // its hooks end with the process
			{
				mode: config.ModeIPTables, metrics: metrics.ModeIPTables, open: openIPTables,
				cleanup: anyConfig(iptables.Cleanup), programmed: anyHeld(iptables.Programmed), available: iptables.Available,
				remove: func(ctx context.Context, _ *config.Config, keepLoopback bool) error {
					_, err := iptables.Remove(ctx, keepLoopback)
					return err
				},
			},
			{
				mode: config.ModeUserspace, metrics: metrics.ModeUserspace, part: "relay", above: true, open: openUserspace,
				cleanup: anyConfig(userspace.Cleanup), programmed: anyHeld(userspace.Programmed),
				remove: func(context.Context, *config.Config, bool) error { _, err := userspace.Remove(); return err },
			},
		}
	case "windows":
		return []dataplane{
			{
				mode: config.ModeKernelspace, metrics: metrics.ModeKernelspace, part: "hns", open: openWinkernel,
				cleanup: func(ctx context.Context, c *config.Config) (bool, error) {
					return winkernel.Cleanup(ctx, winkernel.Config(c.Winkernel))
				},
				programmed: func(c *config.Config) (bool, error) { return winkernel.Programmed(winkernel.Config(c.Winkernel)) },
				remove: func(ctx context.Context, c *config.Config, _ bool) error {
					_, err := winkernel.Cleanup(ctx, winkernel.Config(c.Winkernel))
					return err
				},
			},
			{
				mode: config.ModeUserspace, metrics: metrics.ModeUserspace, part: "relay", open: openStandaloneRelay,
				cleanup: anyConfig(userspace.Cleanup), programmed: anyHeld(userspace.Programmed),
				remove: func(context.Context, *config.Config, bool) error { _, err := userspace.Remove(); return err },
			},
		}
	}
	return nil
}

// anyConfig and anyHeld are for dataplanes whose traces do not depend on the configuration.
func anyConfig(cleanup func(context.Context) (bool, error)) func(context.Context, *config.Config) (bool, error) {
	return func(ctx context.Context, _ *config.Config) (bool, error) { return cleanup(ctx) }
}

func anyHeld(programmed func() (bool, error)) func(*config.Config) (bool, error) {
	return func(*config.Config) (bool, error) { return programmed() }
}

// dataplaneOf returns the dataplane of a mode on an operating system.
func dataplaneOf(mode config.Mode, goos string) (dataplane, bool) {
	for _, d := range dataplanes(goos) {
		if d.mode == mode {
			return d, true
		}
	}
	return dataplane{}, false
}

// SelectMode returns the mode whose dataplane serves c on an operating system, named as in runtime.GOOS. An empty mode stands for the
// best one. Where the mode has no dataplane, it is an error with a remedy.
func SelectMode(c *config.Config, goos string) (config.Mode, error) {
	mode, others := cmp.Or(c.Mode, config.DefaultMode(goos)), Modes(goos)
	switch like := spelling.Closest(string(mode), others); {
	case slices.Contains(others, string(mode)):
		return mode, nil
	case len(others) == 0:
		return "", fmt.Errorf("mode %s has no dataplane on %s: dataplanes need Linux or Windows", mode, goos)
	case like != "":
		return "", fmt.Errorf("mode %s has no dataplane on %s: did you mean %s?", mode, goos, like)
	}
	return "", fmt.Errorf("mode %s has no dataplane on %s: leave mode blank, or set it to one of %s", mode, goos, strings.Join(others, ", "))
}

// Modes are the modes that have a dataplane on an operating system, named as in runtime.GOOS.
func Modes(goos string) []string {
	var modes []string
	for _, d := range dataplanes(goos) {
		modes = append(modes, string(d.mode))
	}
	return modes
}

// Cleanup removes all that the dataplanes of an operating system ever put into the kernel, in the calling thread's
// network namespace. It reports whether there was anything. Connections that are established stay translated. It fails
// while another process programs the network namespace. On Windows it removes everything from the HNS network that c
// names, and connections end.
func Cleanup(ctx context.Context, c *config.Config, goos string) (removed bool, err error) {
	for _, d := range dataplanes(goos) {
		if d.cleanup == nil {
			continue
		}
		there, failed := d.cleanup(ctx, c)
		removed, err = removed || there, errors.Join(err, failed)
	}
	return removed, err
}

// Programmed reports whether the kernel holds anything of a dataplane of an operating system, in the calling thread's network
// namespace. If so, a start would take it over. On Windows that is the HNS network that c names.
func Programmed(c *config.Config, goos string) (bool, error) {
	for _, d := range dataplanes(goos) {
		if d.programmed == nil {
			continue
		}
		if held, err := d.programmed(c); held || err != nil {
			return held, err
		}
	}
	return false, nil
}

// nftablesDataplane is the nftables dataplane with the edge in front of it, in terms of the configuration.
type nftablesDataplane struct {
	*nftables.Backend
	options DataplaneOptions
	entry   *entry
}

// Reconfigure implements [Dataplane].
func (d *nftablesDataplane) Reconfigure(c *config.Config) error {
	d.entry.wait()
	o := nftablesOptions(c, d.options)
	o.Edge = d.entry.mark(c)
	if err := d.Backend.Reconfigure(o); err != nil {
		return err
	}
	d.entry.reconfigure(c)
	return nil
}

func nftablesOptions(c *config.Config, o DataplaneOptions) nftables.Options {
	return nftables.Options{
		Logger: o.Logger, Locked: true, OnFlowsCut: o.OnFlowsCut,
		ResetRemoved: c.ResetConnectionsToRemovedEndpoints && o.TCPLingers, OnResets: o.OnResets,
		MasqueradeBit: new(int(c.MasqueradeBit())), UpstreamMark: UpstreamMark(c), MaxAffinityClients: int(c.NFTables.MaxAffinityClients),
		Counters: countsIn(c), ProbeTimeout: c.Ejection.ProbeTimeout.Duration, OnProbe: o.OnProbe, OnEjections: o.OnEjections, Edge: c.Edge.Mark(),
	}
}

// UpstreamMark returns the mark of a source's connections to its upstream, in a process with this configuration.
// Dataplanes leave these connections alone, except for connections to cluster IPs.
func UpstreamMark(c *config.Config) uint32 {
	return upstream.MarkBeside(uint32(1) << c.MasqueradeBit())
}

// dataplaneSettings are the settings of c that a dataplane and [backend.Run] use: if none of them changes, both go on undisturbed.
type dataplaneSettings struct {
	mode             config.Mode
	fallback         bool
	detector         state.LocalDetector // a part of the node, as nodePorts
	nodePorts        state.NodePortAddresses
	own              [2]bool // whether c sets the two
	bit, clients     int32
	reset, counters  bool
	verify, interval time.Duration
	probeTimeout     time.Duration
	// The sections of other modes are zero.
	edge      config.Edge
	ebpf      config.EBPF
	ipvs      config.IPVS
	userspace config.Userspace
	winkernel config.Winkernel
	healthz   uint16 // its port, which HNS forwards health checks to
}

func settingsOf(c *config.Config) dataplaneSettings {
	detector, nodePorts := ownSettings(c)
	s := dataplaneSettings{
		mode: c.Mode, fallback: c.AllowModeFallback,
		detector: c.LocalDetector(), nodePorts: c.NodePorts(), own: [2]bool{detector != nil, nodePorts != nil},
		bit: c.MasqueradeBit(), clients: c.NFTables.MaxAffinityClients, reset: c.ResetConnectionsToRemovedEndpoints,
		counters: countsIn(c), probeTimeout: c.Ejection.ProbeTimeout.Duration,
		verify: c.SyncPeriod.Duration, interval: c.CommitInterval(),
	}
	switch cmp.Or(c.Mode, config.DefaultMode(runtime.GOOS)) {
	case config.ModeNFTables:
		s.edge = c.Edge
	case config.ModeEBPF:
		s.ebpf, s.edge = c.EBPF, c.Edge
	case config.ModeIPVS:
		s.ipvs = c.IPVS
	case config.ModeUserspace:
		s.userspace = c.Userspace
	case config.ModeKernelspace:
		s.winkernel, s.healthz = c.Winkernel, c.HealthzBindAddress.Port()
	}
	return s
}
