package backend

// Package node looks for the abilities below, beside [Inspector] and [Counter]. A dataplane need not have any.

// Drainer is a [Backend] that carries connections itself, and not by rules of the kernel alone: they end when it is closed.
type Drainer interface {
	Backend
	// Retire has it take no new connections, because another dataplane does. Apply and Verify go on: a connection ends when its endpoint is
	// gone. It programs no base any longer. The next Apply is of a full update.
	Retire()
	// Resume undoes Retire, above base, which is [None] if there is none. The next Apply is of a full update.
	Resume(base Backend)
	// Carried returns how many connections, or other things that have some, it carries. It may be called at any time, concurrently with all other methods.
	Carried() int
}

// FlowKeeper is a [Backend] that deletes stale flows in the background.
type FlowKeeper interface {
	Backend
	// LeaveFlows has it delete no flows until the next Apply: another dataplane is about to take over, and may begin flows to endpoints that this
	// one does not know. It is called by the goroutine that calls Apply.
	LeaveFlows()
}

// Reporter is a [Backend] that cannot do all that some services ask for, and programs the rest of them. Its problems are shown to operators,
// and are no failures.
type Reporter interface {
	Backend
	// Problems returns what it cannot do, with the names of services. It may be called at any time, concurrently with all other methods.
	Problems() []error
}
