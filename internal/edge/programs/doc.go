// Package programs has the programs of the edge, and attaches them to the devices by which packets come to a node.
//
// edge.c has the programs, decide.h what they do with packets from outside, and packet.h what they read. tables.h has their maps, tunnel.h the headers between nodes, and size.h what is
// done about packets that are too large. "make programs" compiles them into the object files that are embedded here.
package programs

// The sizes and numbers in tables.h.
const (
	// MaxNodes is how many nodes there is room for.
	MaxNodes = 16384
	// Self is the number of this node.
	Self = 0
	// Version is the version of the header of 8 bytes behind UDP: the version, a hop, two zeros, and an ID in network byte order. HopProbe is the hop of a probe, which a
	// node sends back if the ID is its sender's. ProbeSize is how many bytes of UDP a probe has at least.
	Version   = 1
	HopProbe  = 254
	ProbeSize = 28
	// HopClaim is the hop of a claim: a packet of ProbeSize whose source need not be its sender's. It has a number of 64 bits at its end. The node that gets it tells
	// the node with the ID, by a packet with HopHeard. The program there keeps the number in the map "claims", at the number modulo Claims.
	HopClaim = 253
	HopHeard = 252
	Claims   = 64
	// Owners is how many owners a slot knows: the one that it has, and earlier ones.
	Owners = 4
)

// Action is what was done with a packet. A packet may count as several.
type Action int

// The actions, in the order of enum action in tables.h.
const (
	HandedOver Action = iota
	OwnShare
	Known
	Inside
	Drained
	Asked
	Returned
	TakenIn
	Probe
	TooBig
	Split
	Fragment
	ICMPError
	Clamped
	Forged
	Foreign
	Malformed
	NoNode
	NoRoute
	Failed
	// Actions is how many there are.
	Actions
)

var actionNames = [Actions]string{
	"handed-over", "own-share", "known", "inside", "drained", "asked", "returned", "taken-in", "probe", "too-big", "split", "fragment", "icmp-error", "clamped",
	"forged", "foreign", "malformed", "no-node", "no-route", "failed",
}

// String returns the action as it is named in metrics.
func (a Action) String() string {
	if a < 0 || a >= Actions {
		return "unknown"
	}
	return actionNames[a]
}

// The flags in the low half of the value of a frontend, next to the number of its table.
const (
	FrontendTable   = 1<<29 - 1
	FrontendThere   = 1 << 29
	FrontendDrains  = 1 << 30
	FrontendNoShare = 1 << 31
)

// The flags of the address of a node.
const (
	AddressSelf = 1 << iota
	AddressNodePorts
	AddressOwned
)
