package backend

import (
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// Inspector is a [Backend] that can read back its content for single connections. A dataplane need not be an Inspector.
type Inspector interface {
	// Inspect reads from the kernel the outcome of a new connection. It changes nothing. It may be called at any time, concurrently with all
	// other methods. After Close it may fail.
	Inspect(q Query) (Held, error)
}

// EndpointInspector is a [Backend] that knows of endpoints what no record says. A dataplane need not be one.
type EndpointInspector interface {
	// InspectEndpoints is Inspect for Silent and Deadlines only, and returns nothing else. It lists neither endpoints nor connections, so that it
	// can be called for many frontends.
	InspectEndpoints(q Query) (Held, error)
}

// Query is a new connection to a frontend.
type Query struct {
	Frontend state.FrontendKey
	// Dst is the destination of the client, also for a node port.
	Dst netip.Addr
	// Node reports whether the client is this node, and Outside whether it is neither a pod nor this node.
	Node, Outside bool
	// Edge reports whether a node hands the connection over to this one ([state.Edge]), maybe itself.
	Edge bool
	// Source is the address of the client. It is not valid if it is not known.
	Source netip.Addr
	// Endpoints are the endpoints for Held.Deadlines.
	Endpoints []netip.AddrPort
}

// Held is the content of a dataplane for a connection.
type Held struct {
	// Verdict is [state.Unused] if the dataplane lacks the frontend.
	Verdict state.Verdict
	// Endpoints are those that the connection can get, in order.
	Endpoints []netip.AddrPort
	// Draw is how one of Endpoints is chosen.
	Draw Draw
	// Objects are the objects that were found, in the words of the kernel's tools.
	Objects []string
	// Silent are endpoints that the connection cannot get for now, because they do not answer.
	Silent []Silent
	// Differences are between parts of the dataplane that may take the same connection and send it to different destinations.
	Differences []string
	// Connections are the open connections of the client to the same frontend, or of all clients if its address is not known. If there
	// are many, Connections has some of them. Count is how many there are.
	Connections []Connection
	Count       int
	// Deadlines are until when open connections through the frontend stay with the endpoints of the query, for those with a drain deadline. A
	// deadline that has passed is not after the time of the call.
	Deadlines map[netip.AddrPort]time.Time
}

// Draw is how a dataplane chooses among endpoints. The zero value does not say.
type Draw struct {
	// Even reports whether all endpoints are as likely. Then there is nothing below.
	Even bool
	// Slots is the number of slots. Shares has how many of them each of [Held.Endpoints] has. A connection with another slot is refused.
	Slots  int
	Shares []int
	// Hashed reports whether a hash chooses the slot, and not chance.
	Hashed bool
	// Known reports whether Slot is the client's slot: the hash is of the address alone, and the address is known. Endpoint is the endpoint there.
	// It is not valid if the slot has none.
	Known    bool
	Slot     int
	Endpoint netip.AddrPort
}

// Connection is an open connection. Client has opened it, and Server answers.
type Connection struct{ Client, Server netip.AddrPort }

// Silent is an endpoint that gets no new connections from this node, because it does not answer.
type Silent struct {
	Endpoint netip.AddrPort
	// Since is when it first did not answer, and Probes is how many probes of this process it has not answered.
	Since  time.Time
	Probes int
}

// maxConnections is how many connections are listed.
const maxConnections = 20

// Add adds a connection.
func (h *Held) Add(client, server netip.AddrPort) {
	if h.Count++; len(h.Connections) < maxConnections {
		h.Connections = append(h.Connections, Connection{client, server})
	}
}
