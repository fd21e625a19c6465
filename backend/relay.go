package backend

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// RelayMark is the bit of packet marks by which a relay and the dataplane below it tell each other's packets: 0x1000. It is set between two hooks, and on the relay's
// own sockets. Packets of nobody else may have it.
const RelayMark = 1 << 12

// Listener is where a relay above a dataplane takes the connections of one family and protocol.
type Listener struct {
	Family   state.Family
	Protocol state.Protocol
	// Outside is set if it is for clients that are neither pods nor this node.
	Outside bool
	At      netip.AddrPort
}

// Leader is a dataplane that leads connections to a relay above it.
type Leader interface {
	Backend
	// LeadTo has the first packet of a connection go to a listener if the packet has the [RelayMark] when it comes, and if the dataplane would forward it to an
	// endpoint. Packets to the addresses of listeners that do not have the mark when they arrive are refused. So only who sets the mark gets connections, and
	// without it they go to endpoints. It counts from the next Apply on, which must be of a full update.
	LeadTo(listeners []Listener)
}
