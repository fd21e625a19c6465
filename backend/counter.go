package backend

import "github.com/switchyard-net/switchyard/state"

// Counter is a [Backend] that counts new connections by frontend. A dataplane need not be one, and one that is need not count as it is
// configured.
type Counter interface {
	// Counts reads back what was counted for each of the frontends, in their order. What is not programmed has counted nothing. It changes
	// nothing, and may be called at any time, beside all other methods and after Close, when it may fail; its cost is proportional to the keys.
	//
	// A frontend counts from the moment in which it is programmed. It goes on when the endpoints change. When the process is replaced by another one,
	// or the frontend goes to another Service, it begins at 0, or goes on.
	Counts(keys []state.FrontendKey) ([]Counts, error)
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
