package config

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/internal/source/upstream"
	"github.com/switchyard-net/switchyard/state"
)

// Edge is the section edge of the configuration: nodes hand connections from outside over to the nodes that have endpoints (docs/edge.md).
type Edge struct {
	// How connections are handed over: `none`, `tcx`, or `xdp`. Empty: `none`. With `xdp`, drivers also hand plain packets
	// over before the kernel makes packets of its own from them. Drivers that cannot are left out. `tcx` and `xdp` need
	// mode `nftables` or `ebpf`. The process then watches all Nodes, unless it follows a relay.
	Mode EdgeMode `json:"mode"`
	// The kinds of frontends whose connections are handed over: `LoadBalancer`, `ExternalIP` and `NodePort`.
	Frontends []string `json:"frontends"`
	// `annotated` takes the Services with the annotation `switchyard.net/edge: "true"`. `all` takes all but those with
	// `"false"`. Empty: `annotated`.
	Services EdgeServices `json:"services"`
	// The devices by which packets come from outside and from other nodes. Empty: those that have an address of this
	// Node.
	Interfaces []string `json:"interfaces"`
	// The UDP port at which this node takes packets from other nodes. The annotation `switchyard.net/edge` of the Node
	// tells them. A change restarts the edge of this node.
	Port int32 `json:"port"`
	// The number of the bit of packet marks, 0 to 31, that marks packets for endpoints of this node. It must differ from
	// `nftables.masqueradeBit`, from 12, and from the bit of connections to the API server: 13, or 11 if
	// `masqueradeBit` is 13.
	MarkBit int32 `json:"markBit"`
	// The most bytes of an IP packet between nodes, from 1336 to 65535. 0: what routes and devices allow.
	MTU int32 `json:"mtu"`
	// How many slots share the connections of a Service port among nodes: 251, 1021, 4093 or 16381. More share them more
	// evenly. All nodes must have the same. A change restarts the edge of this node.
	TableSize int32 `json:"tableSize"`
	// How many slots there are for all ports, at least `tableSize` and at most 67108864. Each takes 8 bytes of the
	// kernel's memory from the start. Ports beyond that are served the usual way. A change restarts the edge of this
	// node.
	MaxSlots int32 `json:"maxSlots"`
	// How long connections that were handed over go on after their frontend has left the edge, or after the edge is turned
	// off. 0: they end at once.
	Drain Duration `json:"drain"`
	// Leaves out the check whether the network takes packets that this node sends from the addresses of Services. Without
	// the check, nobody notices a network that drops answers to clients. Set it if clients get their answers, and other
	// nodes do not.
	TrustNetwork bool `json:"trustNetwork"`
}

// EdgeMode is how connections are handed over to other nodes. Empty means none.
type EdgeMode string

// The modes of the edge.
const (
	EdgeNone EdgeMode = "none"
	EdgeTCX  EdgeMode = "tcx"
	EdgeXDP  EdgeMode = "xdp"
)

// EdgeServices says which Services the edge takes. Empty means annotated.
type EdgeServices string

// The Services that the edge takes.
const (
	EdgeAnnotated EdgeServices = "annotated"
	EdgeAll       EdgeServices = "all"
)

// edgeKinds are the kinds of frontends that outside clients have.
var edgeKinds = []state.FrontendKind{state.LoadBalancer, state.ExternalIP, state.NodePort}

// edgeTableSizes are the numbers of slots of a port: primes, as Maglev's tables need them.
var edgeTableSizes = []int32{251, 1021, 4093, 16381}

const (
	// greatestEdgeSlots take 512 MiB.
	greatestEdgeSlots = 64 << 20
	// leastEdgeMTU has room for the least packet of IPv6, 1,280 bytes, and for 56 bytes of headers.
	leastEdgeMTU, greatestEdgeMTU = 1336, 65535
	// relayBit is the bit by which a relay and the dataplane below it recognize their packets: see backend.RelayMark.
	relayBit = 12
)

// defaultEdge is the section when nothing is configured. Bit 6 is none that kube-proxy, kubelet, or known network plugins use.
func defaultEdge() Edge {
	return Edge{
		Mode: EdgeNone, Frontends: []string{state.LoadBalancer.String(), state.ExternalIP.String()}, Services: EdgeAnnotated,
		Port: 7635, MarkBit: 6, TableSize: 1021, MaxSlots: 4 << 20, Drain: duration(15 * time.Minute),
	}
}

// Enabled reports whether connections are handed over.
func (e *Edge) Enabled() bool { return e.Mode != "" && e.Mode != EdgeNone }

// Annotated reports whether only Services are taken that ask for it.
func (e *Edge) Annotated() bool { return e.Services != EdgeAll }

// Kinds returns the kinds of frontends whose connections are handed over.
func (e *Edge) Kinds() (kinds []state.FrontendKind) {
	for _, k := range edgeKinds {
		if slices.Contains(e.Frontends, k.String()) {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// Mark returns the bit that marks packets for endpoints of this node, 0 if the edge is off.
func (e *Edge) Mark() uint32 {
	if !e.Enabled() {
		return 0
	}
	return 1 << e.MarkBit
}

// validateEdge adds the faults of section edge. Its mode and its bit must fit the rest of c, for a platform, if the edge is on.
func (c *Config) validateEdge(errs *FieldErrors, platform string) {
	e := &c.Edge
	oneOf(errs, "edge.mode", e.Mode, []EdgeMode{EdgeNone, EdgeTCX, EdgeXDP})
	oneOf(errs, "edge.services", e.Services, []EdgeServices{EdgeAnnotated, EdgeAll})
	e.validateLists(errs)
	if e.Port < 1 || e.Port > 65535 {
		errs.Add("edge.port", "must be a port from 1 to 65535, got %d", e.Port)
	}
	errs.Bit("edge.markBit", e.MarkBit)
	if m := e.MTU; m != 0 && (m < leastEdgeMTU || m > greatestEdgeMTU) {
		errs.Add("edge.mtu", "must be from %d to %d, or 0 for what routes and devices allow, got %d", leastEdgeMTU, greatestEdgeMTU, m)
	}
	if !slices.Contains(edgeTableSizes, e.TableSize) {
		errs.Add("edge.tableSize", "must be 251, 1021, 4093 or 16381, got %d", e.TableSize)
	} else if n := e.MaxSlots; n < e.TableSize || n > greatestEdgeSlots {
		errs.Add("edge.maxSlots", "must be from the tableSize of %d to %d, got %d", e.TableSize, greatestEdgeSlots, n)
	}
	errs.NotNegative("edge.drain", e.Drain)
	if !e.Enabled() {
		return
	}
	if mode := cmp.Or(c.Mode, DefaultMode(platform)); mode != ModeNFTables && mode != ModeEBPF {
		errs.Add("edge.mode", "must be none with mode %s: choose mode nftables or ebpf, or no edge", mode)
		return
	}
	c.validateEdgeBit(errs)
}

// validateEdgeBit finds other purposes of the bit that marks packets.
func (c *Config) validateEdgeBit(errs *FieldErrors) {
	bit, masquerade := c.Edge.MarkBit, c.MasqueradeBit()
	if bit < 0 || bit > 31 || masquerade < 0 || masquerade > 31 {
		return // reported
	}
	switch uint32(1) << bit {
	case 1 << masquerade:
		errs.Add("edge.markBit", "must differ from nftables.masqueradeBit, and both are %d: choose another bit for one of them", bit)
	case upstream.MarkBeside(1 << masquerade):
		errs.Add("edge.markBit", "must not be %d: with nftables.masqueradeBit %d, it marks the connections of this process to the API server; choose another bit", bit, masquerade)
	case 1 << relayBit:
		errs.Add("edge.markBit", "must not be %d, which mode userspace marks packets with: choose another bit", bit)
	}
}

// validateLists finds faults of the lists.
func (e *Edge) validateLists(errs *FieldErrors) {
	var known []string
	for _, k := range edgeKinds {
		known = append(known, k.String())
	}
	if len(e.Frontends) == 0 {
		errs.Add("edge.frontends", "must have at least one of %s: to hand nothing over, set edge.mode to none", strings.Join(known, ", "))
	}
	for i, kind := range e.Frontends {
		if !slices.Contains(known, kind) {
			errs.Add(IndexPath("edge.frontends", i), "must be one of %s, got %q", strings.Join(known, ", "), kind)
		} else if slices.Contains(e.Frontends[:i], kind) {
			errs.Add(IndexPath("edge.frontends", i), "must not be in the list twice, got %q", kind)
		}
	}
	for i, name := range e.Interfaces {
		if !state.IsInterfaceName(name) {
			errs.Add(IndexPath("edge.interfaces", i), "must be an interface's name of at most %d bytes, got %q", state.MaxInterfaceName, name)
		} else if slices.Contains(e.Interfaces[:i], name) {
			errs.Add(IndexPath("edge.interfaces", i), "must not be in the list twice, got %q", name)
		}
	}
}
