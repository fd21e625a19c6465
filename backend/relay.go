package backend

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// RelayMark is the bit of packet marks, 0x1000, by which a relay and the dataplane below it recognize their packets. It is set between two
// hooks, and on the relay's own sockets. No other packets may have it.
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
	// LeadTo sends a connection to a listener if its first packet arrives with the [RelayMark] and the dataplane would forward it to an
	// endpoint. The dataplane refuses packets to the addresses of listeners that arrive without the mark. So only the owner of the mark gets
	// connections. Without the mark, connections go to endpoints. LeadTo takes effect with the next Apply, which must be of a full update.
	LeadTo(listeners []Listener)
}
