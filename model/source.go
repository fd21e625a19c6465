package model

import (
	"context"
	"net/netip"
)

// Source delivers the cluster's objects to a sink: the full set first, then every change. Package source/kube follows an API server. Package
// kubeconv converts Kubernetes' objects for other sources.
type Source interface {
	// Run delivers until ctx ends, and then returns nil. It calls sink.Complete exactly once, after the first full set.
	// It returns an error only if it can never deliver; temporary errors are retried and logged. Run is called once.
	Run(ctx context.Context, sink Sink) error
}

// Sink takes what one source delivers. Its methods are called by one goroutine at a time.
type Sink interface {
	// Update adds or replaces the objects in set and forgets those in deleted, all at once: no state between is ever
	// published. The sink owns the objects from now on. An object that is deleted need not be known; setting an equal
	// object again is harmless.
	Update(set []Object, deleted []Ref)
	// Complete reports whether the first full set has been delivered. Nothing is published before all sources are complete.
	Complete()
}

// The interfaces below are optional: package node uses them if a [Source] implements them.

// WithProblems is a Source that knows why objects may be missing.
type WithProblems interface {
	// Problems returns the current problems. It may be called concurrently with Run, and must not block.
	Problems() []error
}

// WithEligibility is a Source that knows whether the cluster wants load balancers to use this node.
type WithEligibility interface {
	// NodeEligible reports whether load balancers should send connections to this node: it exists, and is not about to go. It may be
	// called concurrently with Run, and must not block.
	NodeEligible() bool
}

// WithPeers is a Source that connects to other machines.
type WithPeers interface {
	// Peers returns the addresses to which the Source has connected of late, and a channel that is closed when there are others. It may be
	// called concurrently with Run, and must not block.
	Peers() (addrs []netip.AddrPort, changed <-chan struct{})
}

// WithEdge is a Source that can tell other nodes whether this Node takes part in the edge.
type WithEdge interface {
	// AnnounceEdge tells others that this Node takes packets at a UDP port, as soon as it does. WithdrawEdge tells them that it will take none.
	// Each is one attempt of at most 15 seconds, and does nothing if the cluster says so already. Both may be called concurrently with Run. An error names
	// the remedy, and changes nothing for routing.
	AnnounceEdge(ctx context.Context, port uint16) error
	WithdrawEdge(ctx context.Context) error
}

// WithEvents is a Source that can report events to the cluster.
type WithEvents interface {
	// Report reports an event. It may be called concurrently with Run. An error changes nothing for routing.
	Report(ctx context.Context, e Event) error
}

// Event is reported to operators through the API server. Its fields are the fields of events.k8s.io/v1.
type Event struct {
	// Kind, Namespace and Name identify its object: a Node (without a namespace) or a Service.
	Kind, Namespace, Name string
	// Reason is a word for machines, such as Starting; Action names the operation; Note is for people.
	Reason, Action, Note string
	// Warning is set if it is not as it should be.
	Warning bool
}
