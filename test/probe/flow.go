// Package probe is the vocabulary for questions about single connections: who connects where, and what must happen.
// The oracle answers them from the cluster's objects, the tracer from a node's state, the lab with real packets.
package probe

import (
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Client is the kind of client that opens a connection, as in [state.Traffic].
type Client uint8

// The kinds of client.
const (
	FromPod Client = iota + 1
	FromNode
	FromOutside
)

func (c Client) String() string {
	switch c {
	case FromPod:
		return "pod"
	case FromNode:
		return "node"
	case FromOutside:
		return "outside"
	}
	return fmt.Sprintf("Client(%d)", uint8(c))
}

// Packet is the first packet of a connection, as it reaches this node.
type Packet struct {
	From     Client
	Src      netip.Addr
	Dst      netip.AddrPort
	Protocol state.Protocol
}

func (p Packet) String() string {
	return fmt.Sprintf("%v %v from %v to %v", p.From, p.Protocol, p.Src, p.Dst)
}

// Outcome is the outcome of a connection.
type Outcome uint8

// The outcomes.
const (
	// Pass: the packet is none of the proxy's business.
	Pass Outcome = iota + 1
	Forward
	Reject
	Drop
)

func (o Outcome) String() string {
	switch o {
	case Pass:
		return "pass"
	case Forward:
		return "forward"
	case Reject:
		return "reject"
	case Drop:
		return "drop"
	}
	return fmt.Sprintf("Outcome(%d)", uint8(o))
}

// Answer specifies what must happen to a connection.
type Answer struct {
	Outcome Outcome
	// Choices are the endpoints that may get the connection, ordered by address; empty unless Outcome is Forward.
	Choices []Choice
	// Balance is how one of the Choices is chosen where there is no affinity.
	Balance state.Balance
	// Affinity is the Service port (see [ServicePort]) whose connections of the same client stay with the same endpoint, through all of its
	// frontends. It is empty if there is no affinity.
	Affinity string
	// Ejection reports whether endpoints that do not answer get no new connections.
	Ejection bool
	// DrainSeconds is how long the connection may stay with an endpoint that gets no new ones. 0 sets no deadline.
	DrainSeconds uint32
	// Ping reports whether the node answers echo requests at the address.
	Ping bool
}

// ServicePort names a port of a Service in one family.
func ServicePort(service state.ServiceName, port string, proto state.Protocol, f state.Family) string {
	return fmt.Sprintf("%v:%s/%v/%v", service, port, proto, f)
}

// Choice is an endpoint that may get a connection.
type Choice struct {
	Endpoint netip.AddrPort
	// Masquerade reports whether the endpoint sees an address of this node instead of the client's.
	Masquerade bool
	// Weight is the endpoint's share of connections in proportion to the other choices, 0 if all share evenly.
	Weight uint16
}
