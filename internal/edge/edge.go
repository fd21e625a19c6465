// Package edge hands connections from outside over to the nodes that serve them, in front of netfilter (direct server return).
//
// Programs at the devices of a node find packets to the frontends of ports with [state.Edge.Shares]. They send each to the node that has its slot, as it is,
// in a tunnel of UDP. There, other programs take the tunnel off, and netfilter serves the packet by [state.Edge.Local], because it has a mark. The answers go to
// the client directly. Connections that a node does not know go on to earlier owners of their slots, so that changes of shares end none.
//
// Everything that programs do not find is left to netfilter, as without them. Netfilter serves all new connections if the edge is lost. Nothing is
// pinned: the programs are gone with their process. Package plan computes the tables, and package programs has the programs.
package edge

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/bits"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/internal/edge/plan"
	"github.com/switchyard-net/switchyard/internal/edge/programs"
	"github.com/switchyard-net/switchyard/state"
)

// Settings are the settings of an [Edge]. Only Mark is required.
type Settings struct {
	// Interfaces are the devices by which packets come from outside and from other nodes. Default: those that have an address of the node. VLAN devices count as
	// devices of their own.
	Interfaces []string
	// Port is the UDP port at which this node takes packets. Default: [DefaultPort].
	Port uint16
	// Mark is the bit of packets that netfilter serves by the edge view.
	Mark uint32
	// MTU is the most bytes of an IP packet between nodes. Default: what routes and devices allow, which programs follow.
	MTU int
	// TableSize is how many slots each port has, one of [plan.TableSizes]. All nodes must have the same. Default: [DefaultTableSize].
	TableSize int
	// MaxSlots is how many slots there are for all ports. They take 8 bytes of memory each from the start. Default: [DefaultMaxSlots].
	MaxSlots int
	// XDP has drivers hand plain packets over, before the kernel makes packets of its own from them. Drivers that cannot do so are left out.
	XDP bool
	// Drain is how long connections of frontends go on that the edge no longer serves. Netfilter of this node serves new ones then. 0 lets go of them at once.
	Drain time.Duration
	// TrustNetwork leaves out the check whether the network takes answers to clients.
	TrustNetwork bool
	// NodePortAddresses are the addresses on which NodePorts are served where the state does not say.
	NodePortAddresses state.NodePortAddresses
	// Logger takes what an operator may want to know. Default: discard.
	Logger *slog.Logger
}

// The defaults of [Settings].
const (
	DefaultPort      = 7635
	DefaultTableSize = 1021
	DefaultMaxSlots  = 4 << 20
)

// complete returns the settings with defaults, or what is wrong with them.
func (s Settings) complete() (Settings, error) {
	s.Port, s.TableSize, s.MaxSlots = cmp.Or(s.Port, DefaultPort), cmp.Or(s.TableSize, DefaultTableSize), cmp.Or(s.MaxSlots, DefaultMaxSlots)
	if s.Logger == nil {
		s.Logger = slog.New(slog.DiscardHandler)
	}
	var errs []error
	if bits.OnesCount32(s.Mark) != 1 {
		errs = append(errs, fmt.Errorf("mark %#x is not one bit: set edge.markBit to a bit that nothing else uses", s.Mark))
	}
	if !slices.Contains(plan.TableSizes[:], s.TableSize) {
		errs = append(errs, fmt.Errorf("tables of %d slots: set edge.tableSize to one of %v", s.TableSize, plan.TableSizes))
	}
	if s.MaxSlots < s.TableSize || s.MaxSlots > mostSlots {
		errs = append(errs, fmt.Errorf("%d slots in all: set edge.maxSlots to %d at least and %d at most", s.MaxSlots, s.TableSize, mostSlots))
	}
	if s.MTU != 0 && (s.MTU < leastMTU || s.MTU > mostMTU) {
		errs = append(errs, fmt.Errorf("packets of %d bytes between nodes: set edge.mtu to %d at least and %d at most, or to 0", s.MTU, leastMTU, mostMTU))
	}
	if s.Drain < 0 {
		errs = append(errs, fmt.Errorf("a drain of %v: set edge.drain to 0 or more", s.Drain))
	}
	return s, errors.Join(errs...)
}

const (
	// mostSlots take 512 MB.
	mostSlots = 64 << 20
	// leastMTU has room for the least packet of IPv6, 1,280 bytes, and 56 bytes of headers.
	leastMTU, mostMTU = 1336, 65535
)

// PortName identifies a port of a Service in one IP family.
type PortName struct {
	Service  state.ServiceName
	Name     string
	Protocol state.Protocol
	Family   state.Family
}

// String names the port as in messages.
func (p PortName) String() string {
	return fmt.Sprintf("service %v, port %q, %v %v", p.Service, p.Name, p.Protocol, p.Family)
}

// Status is how an [Edge] is doing. It is a value of its own.
type Status struct {
	// Attached are the devices with programs, sorted, and Driver those whose drivers hand packets over.
	Attached, Driver []string
	// Reason is why the edge does not do all that it can, with the remedy where there is one. It has no single ports.
	Reason error
	// Left are ports with shares that are left to netfilter, with the reasons.
	Left map[PortName]error
	// Ports are how many the edge serves, and Draining the frontends whose connections go on for a while.
	Ports, Draining int
}

// Stats are packets since the edge was opened, by what was done with them.
type Stats [programs.Actions]uint64

// Slot is the slot of a connection.
type Slot struct {
	// Number is the number of the slot, out of Of.
	Number, Of int
	// Owner is the name of the node that serves the connection. Earlier are those before it, the last one first.
	Owner   string
	Earlier []string
}

// reasons why ports are left to netfilter.
var (
	errNoRoom    = errors.New("no room for its slots: raise edge.maxSlots")
	errFrontends = errors.New("no room for its frontends: raise edge.maxSlots")
)

// addressesOf returns the addresses of a node that serve its NodePorts, out of those that the cluster knows.
func addressesOf(node *state.Node, rule state.NodePortAddresses) map[netip.Addr]bool {
	if node.NodePorts != nil {
		rule = *node.NodePorts
	}
	serving := map[netip.Addr]bool{}
	for _, addr := range rule.Select(node.Addresses, node) {
		serving[addr] = true
	}
	return serving
}
