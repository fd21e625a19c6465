package iptables

import (
	"fmt"
	"log/slog"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Variant is one of the two programs named iptables. They keep their rules in different places of the kernel, and neither sees the rules of
// the other.
type Variant string

// The variants.
const (
	// Automatic is the one whose rules the node has already, or for which the kubelet left a hint; else nft.
	Automatic Variant = ""
	// Legacy writes the tables of ip_tables.
	Legacy Variant = "legacy"
	// NFT writes tables of nf_tables in the shape of ip_tables.
	NFT Variant = "nft"
)

// Options are the settings of the dataplane. The zero value is useful.
type Options struct {
	// Logger takes what an operator may want to know. Nothing is logged if it is nil.
	Logger *slog.Logger
	// Variant is which iptables is used. The CNI plugin and others should use the same.
	Variant Variant
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
	// MaxAffinityClients is how many clients each endpoint of a Service port with affinity remembers. Further clients
	// get no affinity until others time out. A change applies to new endpoints only. Default 65,536.
	MaxAffinityClients int
	// Counters has the rules count new connections to each frontend ([Backend.Counts]). It costs one to three lookups for each new connection to an
	// address of a Service or to a node port.
	Counters bool
	// Locked is set if the caller ensures that no other process programs the network namespace. Otherwise New does.
	Locked bool
	// TakeOver is how long New waits for the end of another process that programs the network namespace. The kernel goes on routing
	// until then. Default: it does not wait.
	TakeOver time.Duration
	// Program is how this process is called, with its version, for the message to a second one. Default: the name of its executable.
	Program string
	// OnFlowsCut is called after each search for stale flows of a family, with its duration and the number of deleted flows. It must return
	// soon. It may be nil.
	OnFlowsCut func(f state.Family, took time.Duration, deleted int)
	// Scheduled reports whether IPVS has a virtual server for a frontend, even one that takes no new flows. Flows that IPVS has scheduled are
	// left to IPVS. A separate goroutine calls Scheduled at any time. It may be nil.
	Scheduled func(state.FrontendKey) bool
	// OnProgress is called about once a second while a program of iptables that Apply or Verify waits for uses the processor: it gets on. One
	// that waits for a lock, or is stuck, does not. It must return soon. It may be nil.
	OnProgress func()
	// OnRules is called in Apply and Verify after each change of a family, for the tables nat and filter. It gets the number of our rules in
	// the table, and how many of them were written. It may be nil.
	OnRules func(table string, f state.Family, total, written int)
}

const (
	// defaultMasqueradeBit is kube-proxy's default for masqueradeBit.
	defaultMasqueradeBit = 14
	// defaultMaxAffinityClients is what a set of the kernel takes where nothing is said.
	defaultMaxAffinityClients = 1 << 16
	// greatestMaxAffinityClients bounds the kernel's memory that a typing error costs.
	greatestMaxAffinityClients = 1 << 22
)

// check returns an error if the options are invalid.
func (o *Options) check() error {
	if o.Variant != Automatic && o.Variant != Legacy && o.Variant != NFT {
		return fmt.Errorf("Variant is %q, must be %q, %q or empty", o.Variant, Legacy, NFT)
	}
	if o.MaxAffinityClients < 0 || o.MaxAffinityClients > greatestMaxAffinityClients {
		return fmt.Errorf("MaxAffinityClients is %d, must be from 1 to %d, or 0 for the default", o.MaxAffinityClients, greatestMaxAffinityClients)
	}
	if o.MasqueradeBit != nil && (*o.MasqueradeBit < 0 || *o.MasqueradeBit > 31) {
		return fmt.Errorf("MasqueradeBit is %d, must be from 0 to 31", *o.MasqueradeBit)
	}
	return nil
}
