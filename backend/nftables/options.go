package nftables

import (
	"cmp"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Options are the settings of the dataplane. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// LocalDetector distinguishes connections of pods from others where the state does not say ([state.Node]).
	LocalDetector state.LocalDetector
	// NodePortAddresses are the addresses on which NodePorts are served where the state does not say.
	NodePortAddresses state.NodePortAddresses
	// MasqueradeBit is the number of the bit of packet marks, 0 to 31, that marks connections for masquerading between two
	// hooks. Default 14, as kube-proxy's.
	MasqueradeBit *int
	// UpstreamMark is the packet mark bit, such as 0x2000, of the connections by which a proxy on the node gets its state. These connections
	// bypass Services, except for cluster IPs. 0: there are none.
	UpstreamMark uint32
	// Edge is the packet mark bit, such as 0x40, of connections that this node serves for all nodes ([state.Edge]). The programs of the edge mark their
	// packets. Marked packets that no rule translates are dropped. So are packets of TCP connections that the node does not know, and may have handed over. No
	// other program may use the bit. 0: there is no edge, and the tables have nothing for it.
	Edge uint32
	// MaxAffinityClients is how many clients are remembered in each family, for affinity: a client counts once for each Service
	// port that it uses. Further clients get no affinity until others time out. Each takes about 150 bytes of the kernel's
	// memory. Default 1,048,576.
	MaxAffinityClients int
	// Counters has the kernel count new connections to each frontend, for [Backend.Counts]. It takes three elements for each frontend, and a
	// lookup for each new connection.
	Counters bool
	// Locked is set if the caller ensures that no other process programs the network namespace. Otherwise New does.
	Locked bool
	// TakeOver is how long New waits for the end of another process that programs the network namespace. The kernel goes on routing
	// until then. Default: it does not wait.
	TakeOver time.Duration
	// Program is how this process is called, with its version, for the message to a second one. Default: the name of its executable.
	Program string
	// OnFlowsCut is called after each search for stale flows of a family, with its duration and the number of deleted flows. The number is an
	// estimate where the kernel deletes flows by a filter. A separate goroutine calls OnFlowsCut, which must return soon. It may be nil.
	OnFlowsCut func(f state.Family, took time.Duration, deleted int)
	// Elsewhere reports whether a dataplane above this one serves a frontend that is missing in the records of this one. This dataplane does
	// not delete the flows of such a frontend. A separate goroutine calls Elsewhere at any time. It may be nil.
	Elsewhere func(state.FrontendKey) bool
	// Scheduled reports whether IPVS has a virtual server for a frontend, even one that takes no new flows. Flows that IPVS has scheduled are
	// left to IPVS. The goroutine that calls Elsewhere calls Scheduled. It may be nil.
	Scheduled func(state.FrontendKey) bool
	// Schedules reports whether IPVS has any virtual server. The flows that it schedules then count as connections of endpoints, too. A separate
	// goroutine calls Schedules at any time. It may be nil.
	Schedules func() bool
	// ResetRemoved answers packets of translated TCP connections with a reset if their endpoint is gone. An endpoint is gone once it has left
	// its Service and no TCP port of another has it, not even as a lingering endpoint. The records must have lingering endpoints of TCP ports.
	// Otherwise connections are reset to endpoints that terminate and still serve. ResetRemoved takes 35 to 55 bytes for each endpoint.
	ResetRemoved bool
	// OnGone is called in Apply, after the commit, with the endpoints that are gone, if ResetRemoved is set. It may be nil.
	OnGone func([]netip.AddrPort)
	// OnResets is called in Apply and Verify with how many packets were answered with a reset because their endpoint is gone. The service is
	// the one that the endpoint left, or empty if that Service is gone itself. OnResets may be nil.
	OnResets func(service state.ServiceName, packets uint64)
	// ProbeTimeout is how long an endpoint that is suspected to be silent has to answer a probe. It is for ports with Ejection. From 100 ms to 20 s.
	// Default: 1 s.
	ProbeTimeout time.Duration
	// OnProbe is called after each probe of an endpoint. OnEjections is called when endpoints are ejected, or can return, with how many were ejected in
	// addition and how many are ejected. An endpoint counts once for each Service port. Separate goroutines call both, and they must return soon. Both may
	// be nil.
	OnProbe     func(ProbeResult)
	OnEjections func(added, now int)
}

// check returns an error if the options are invalid.
func (o *Options) check() error {
	if o.MaxAffinityClients < 0 || o.MaxAffinityClients > greatestMaxAffinityClients {
		return fmt.Errorf("MaxAffinityClients is %d, must be from 1 to %d, or 0 for the default",
			o.MaxAffinityClients, greatestMaxAffinityClients)
	}
	if o.ProbeTimeout != 0 && (o.ProbeTimeout < leastProbeTimeout || o.ProbeTimeout > mostProbeTimeout) {
		return fmt.Errorf("ProbeTimeout is %v, must be from %v to %v, or 0 for the default", o.ProbeTimeout, leastProbeTimeout, mostProbeTimeout)
	}
	if o.MasqueradeBit != nil && (*o.MasqueradeBit < 0 || *o.MasqueradeBit > 31) {
		return fmt.Errorf("MasqueradeBit is %d, must be from 0 to 31", *o.MasqueradeBit)
	}
	if taken := o.masqueradeMark() | o.UpstreamMark | backend.RelayMark; o.Edge&taken != 0 || o.Edge&(o.Edge-1) != 0 {
		return fmt.Errorf("option Edge is %#x, must be one bit and none of %#x, which have other purposes, or 0 for no edge", o.Edge, taken)
	}
	return nil
}

func (o *Options) masqueradeMark() uint32 {
	if o.MasqueradeBit != nil {
		return 1 << *o.MasqueradeBit
	}
	return 1 << defaultMasqueradeBit
}

// defaultMasqueradeBit is kube-proxy's default for masqueradeBit.
const defaultMasqueradeBit = 14

// The number of remembered clients of each family.
const (
	defaultMaxAffinityClients = 1 << 20
	// greatestMaxAffinityClients bounds the kernel's memory that a typing error costs.
	greatestMaxAffinityClients = 1 << 26
)

// How long probes wait.
const (
	defaultProbeTimeout = time.Second
	leastProbeTimeout   = 100 * time.Millisecond
	mostProbeTimeout    = 20 * time.Second
)

func (o *Options) probeTimeout() time.Duration { return cmp.Or(o.ProbeTimeout, defaultProbeTimeout) }

func (o *Options) onProbe() func(ProbeResult) {
	if o.OnProbe == nil {
		return func(ProbeResult) {}
	}
	return o.OnProbe
}

func (o *Options) onEjections() func(added, now int) {
	if o.OnEjections == nil {
		return func(int, int) {}
	}
	return o.OnEjections
}

// settings returns what the tables depend on in addition to the state, with the flags that they have.
func (o *Options) settings(flags nft.TableFlags) *ruleset.Settings {
	s := &ruleset.Settings{
		LocalDetector: o.LocalDetector, MasqueradeMark: o.masqueradeMark(), MaxAffinityClients: defaultMaxAffinityClients,
		TableFlags: flags, Counters: o.Counters, UpstreamMark: o.UpstreamMark, Edge: o.Edge,
	}
	if o.MaxAffinityClients > 0 {
		s.MaxAffinityClients = uint32(o.MaxAffinityClients)
	}
	return s
}
