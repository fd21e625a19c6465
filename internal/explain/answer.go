package explain

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/state"
)

// Class is a kind of client, as in [state.Traffic].
type Class string

// The classes.
const (
	Pod     Class = "pod"
	Node    Class = "node"
	Outside Class = "outside"
)

// Verdict is the outcome of a connection.
type Verdict string

// The verdicts.
const (
	// Forwarded: the connection goes to an endpoint.
	Forwarded Verdict = "forwarded"
	// Rejected: TCP gets a reset, everything else an ICMP port unreachable.
	Rejected Verdict = "rejected"
	// Dropped: the client hears nothing, and times out.
	Dropped Verdict = "dropped"
	// NotServed: the service proxy does nothing with the connection. It goes on as if there were no Services.
	NotServed Verdict = "not served"
)

// Answer is what happens to a connection on a node, and why. Its form as JSON is stable: fields may be added.
type Answer struct {
	// From and To are the question in words.
	From string `json:"from"`
	To   string `json:"to"`
	// Node is where the connection is looked at.
	Node    string  `json:"node"`
	Client  Client  `json:"client"`
	Verdict Verdict `json:"verdict"`
	// Because is the main reason in one sentence, and Remedy what can be done about it.
	Because string `json:"because"`
	Remedy  string `json:"remedy,omitempty"`
	// Reason is the word for the main reason, where package diagnosis gives it. Place is the file, line and column of the field at fault, if the
	// object comes from a file.
	Reason diagnosis.Reason `json:"reason,omitempty"`
	Place  string           `json:"place,omitempty"`
	// Service is the one whose frontend gets the connection, or should.
	Service  string    `json:"service,omitempty"`
	Frontend *Frontend `json:"frontend,omitempty"`
	// Policies are the rules that had a part in it.
	Policies []Policy `json:"policies,omitempty"`
	// Endpoints are all that the Service has for the port, and why each gets connections or not.
	Endpoints []Endpoint `json:"endpoints,omitempty"`
	// Slices are the EndpointSlices of the Service that have no endpoint for the port.
	Slices []Slice `json:"slices,omitempty"`
	// Edge is the slot of a connection that is handed over, and its node. It is nil if that is not known.
	Edge *Edge `json:"edge,omitempty"`
	// Source is whose address the server sees, WayBack where its answers go.
	Source  string `json:"source,omitempty"`
	WayBack string `json:"wayBack,omitempty"`
	// Kernel is the dataplane's state for the connection. It is nil if it was not read.
	Kernel *Kernel `json:"kernel,omitempty"`
	// Findings are what else is wrong with the Service, the worst first.
	Findings []diagnosis.Finding `json:"findings,omitempty"`
	// Notes are what else is worth knowing.
	Notes []string `json:"notes,omitempty"`
	// RefusedShare is the share of new connections that weights ask to refuse, from 0 to 1.
	RefusedShare float64 `json:"refusedShare,omitempty"`

	hashedBy string // the name of the policy that hashes connections, empty if none does
	even     bool   // the dataplane does not go by weights, and Endpoints say so
	usual    *usual // nil if the connection is not handed over by the state
}

// Client is who connects.
type Client struct {
	// Addr is not valid if it is not known.
	Addr netip.Addr `json:"address,omitzero"`
	// Port is 0 if it is not known.
	Port  uint16 `json:"port,omitempty"`
	Class Class  `json:"class"`
	// Why is what makes it one of the class.
	Why string `json:"why"`
}

// Frontend is the frontend that the client connects to.
type Frontend struct {
	Kind string `json:"kind"`
	// Addr is where the client connects to, also for a node port.
	Addr     netip.AddrPort `json:"address"`
	Protocol string         `json:"protocol"`
	// Port is the name of the Service's port.
	Port string `json:"port,omitempty"`
	// FirstPort and LastPort are the ends of the range that the port is in. They are 0 if it is in none.
	FirstPort uint16 `json:"firstPort,omitempty"`
	LastPort  uint16 `json:"lastPort,omitempty"`
	// Restricted reports whether only clients in Sources may connect.
	Restricted bool           `json:"restricted,omitempty"`
	Sources    []netip.Prefix `json:"sources,omitempty"`
	// AffinitySeconds is how long a client stays with its endpoint.
	AffinitySeconds int64 `json:"affinitySeconds,omitempty"`
}

// Policy is a rule and its meaning here.
type Policy struct {
	Name  string `json:"name"`
	Value string `json:"value"`
	Text  string `json:"text"`
}

// Endpoint is one that a Service has.
type Endpoint struct {
	Addr  netip.AddrPort `json:"address"`
	Node  string         `json:"node,omitempty"`
	Pod   string         `json:"pod,omitempty"`
	Slice string         `json:"slice"`
	// Gets reports whether the endpoint gets connections like this one.
	Gets bool `json:"gets"`
	// Reasons are why it does not, and Text is the same in words.
	Reasons []brain.Reason `json:"reasons,omitempty"`
	Text    string         `json:"text,omitempty"`
	// Masqueraded reports whether the endpoint sees an address of the node instead of the client's address.
	Masqueraded bool `json:"masqueraded,omitempty"`
	// Weight is the weight among the endpoints that get connections, and Share the share of new connections that it asks for, from 0 to 1. Both are 0
	// if all weights are the same.
	Weight uint32  `json:"weight,omitempty"`
	Share  float64 `json:"share,omitempty"`
	// Slots is how many slots the dataplane has for the endpoint, out of [Draw.Slots]. It is 0 if that was not read.
	Slots int `json:"slots,omitempty"`
}

// Slice is an EndpointSlice that has no endpoint for the port.
type Slice struct {
	Name   string       `json:"name"`
	Reason brain.Reason `json:"reason"`
	Text   string       `json:"text"`
}

// Connection is the first packet of a connection, as it reaches the node.
type Connection struct {
	Class    Class
	Src      netip.Addr // not valid if it is not known
	Dst      netip.AddrPort
	Protocol state.Protocol
}
