package backend

import "github.com/switchyard-net/switchyard/state"

// Counter is a [Backend] that counts new connections by frontend. A dataplane need not be a Counter, and its configuration may turn
// counting off.
type Counter interface {
	// Counts reads the counts of the given frontends, in their order. A frontend that is not programmed has a count of 0. Counts changes
	// nothing. It may be called at any time, concurrently with all other methods. After Close it may fail. Its cost is proportional to the
	// keys, or to all frontends.
	//
	// The count of a frontend starts when the frontend is programmed. It goes on when the endpoints change. When another process replaces this
	// one, or the frontend moves to another Service, the count may start again at 0 or go on.
	Counts(keys []state.FrontendKey) ([]Counts, error)
}

// CounterBelow is a [Counter] below another dataplane. That dataplane serves some frontends itself and leaves them out of the records
// that this one gets. CounterBelow sees the first packet of each connection before that dataplane does, and also counts the packets for
// it. So counts go on while a frontend goes from one to the other.
type CounterBelow interface {
	Counter
	// CountAbove replaces the whole records of Services that another dataplane serves in part. A record is nil if that dataplane serves
	// nothing of the Service. With full, records of all other Services are removed. The whole records have frontends that the records given to
	// Apply lack. These frontends count from the next Apply on, which must have their Services. The goroutine that calls Apply also calls
	// CountAbove.
	CountAbove(whole map[state.ServiceName]*state.Service, full bool)
}

// Counts are the counts of a frontend. Each number may be of another moment.
type Counts struct {
	// Connections are all new connections with any outcome. Without an answer, each attempt of a client counts, because a client may repeat a
	// rejected or dropped connection.
	Connections uint64
	// Rejects are the connections among them that were rejected because no endpoint exists, or because they are in the share that a route
	// refuses. Drops are the ones that the traffic policy or the source ranges dropped.
	Rejects, Drops uint64
}

// Add adds what another frontend has counted.
func (c *Counts) Add(o Counts) {
	c.Connections += o.Connections
	c.Rejects += o.Rejects
	c.Drops += o.Drops
}
