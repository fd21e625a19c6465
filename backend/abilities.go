package backend

import "github.com/switchyard-net/switchyard/state"

// Package node looks for the abilities below, and for [Inspector], [EndpointInspector] and [Counter]. All of them are optional.

// Drainer is a [Backend] that carries connections itself. They end when it is closed.
type Drainer interface {
	Backend
	// Retire stops taking new connections, because another dataplane takes them. Apply and Verify are still called, so that a connection ends when
	// its endpoint is gone. They no longer program a base. The next update is full.
	Retire()
	// Resume undoes Retire, above base, which is [None] if there is none. The next update is full.
	Resume(base Backend)
	// Carried returns the number of connections, or of other objects that carry connections. It may be called at any time, concurrently with all
	// other methods.
	Carried() int
}

// FlowKeeper is a [Backend] that deletes stale flows in the background.
type FlowKeeper interface {
	Backend
	// LeaveFlows stops the deletion of flows until the next Apply. Another dataplane is about to take over, and may begin flows to endpoints that
	// this one does not know. The goroutine that calls Apply calls it.
	LeaveFlows()
}

// Reporter is a [Backend] that may lack features that some services need, and programs the rest. Its problems are shown to operators, and are
// not failures.
type Reporter interface {
	Backend
	// Problems returns the missing features, with the names of services. It may be called at any time, concurrently with all other methods.
	Problems() []error
}

// Featured is a [Backend] that can program features of records: see [state.Features]. Other backends get records without features.
type Featured interface {
	Backend
	// Features returns the features that the dataplane can program. They change only before an update that is full.
	Features() state.Features
}

// FeaturesOf returns the features that a dataplane can program.
func FeaturesOf(b Backend) state.Features {
	if f, ok := b.(Featured); ok {
		return f.Features()
	}
	return 0
}
