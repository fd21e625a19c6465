package backend

import "github.com/switchyard-net/switchyard/state"

// Counter is a [Backend] that counts new connections by frontend. A dataplane need not be one, and one that is need not count as it is
// configured.
type Counter interface {
	// Counts reads back what was counted for each of the frontends, in their order. What is not programmed has counted nothing. It changes
	// nothing, and may be called at any time, beside all other methods and after Close, when it may fail; its cost is proportional to the keys, or to all
	// frontends.
	//
	// A frontend counts from the moment in which it is programmed. It goes on when the endpoints change. When the process is replaced by another one,
	// or the frontend goes to another Service, it begins at 0, or goes on.
	Counts(keys []state.FrontendKey) ([]Counts, error)
}

// CounterBelow is a [Counter] that may stand below another dataplane, which serves some frontends itself and leaves them out of the records that this one
// gets. It sees the first packet of each connection before that one does, and counts, too, what is not for itself: so counts go on while a frontend
// goes from one to the other.
type CounterBelow interface {
	Counter
	// CountAbove replaces the records of Services of which another dataplane serves a part, nil for those of which it serves nothing; with full,
	// all others are gone. The frontends that the record given to Apply lacks count from the next Apply on, which must have these Services. It is called
	// by the goroutine that calls Apply.
	CountAbove(whole map[state.ServiceName]*state.Service, full bool)
}

// Counts are what was counted for a frontend. Each number may be of another moment.
type Counts struct {
	// Connections are all new ones, wherever they went. Without an answer, each attempt of a client counts: a connection that is rejected or
	// dropped may be attempted again.
	Connections uint64
	// Rejects and Drops are those of them that were rejected, for want of an endpoint, and dropped: by the traffic policy or the source ranges.
	Rejects, Drops uint64
}

// Add adds what another frontend has counted.
func (c *Counts) Add(o Counts) {
	c.Connections += o.Connections
	c.Rejects += o.Rejects
	c.Drops += o.Drops
}
