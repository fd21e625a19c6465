package backend

import "github.com/switchyard-net/switchyard/state"

// Counter is a [Backend] that counts new connections by frontend. A dataplane need not be one, and one that is need not count as it is
// configured.
type Counter interface {
	// Counts reads back the counts of each of the frontends, in their order. A frontend that is not programmed has counted nothing.
	// Counts changes nothing. It may be called at any time, concurrently with all other methods. After Close it may fail. Its cost is
	// proportional to the keys, or to all frontends.
	//
	// A frontend counts from the moment in which it is programmed. It goes on when the endpoints change. When the process is replaced by another one,
	// or the frontend goes to another Service, it begins at 0, or goes on.
	Counts(keys []state.FrontendKey) ([]Counts, error)
}

// CounterBelow is a [Counter] below another dataplane. That dataplane serves some frontends itself and leaves them out of the records
// that this one gets. CounterBelow sees the first packet of each connection before that dataplane does, and also counts the packets for
// it. So counts go on while a frontend goes from one to the other.
type CounterBelow interface {
	Counter
	// CountAbove replaces the records of Services of which another dataplane serves a part. A record is nil if that dataplane serves
	// nothing of the Service. With full, all other records are gone. The frontends that the record given to Apply lacks count from the
	// next Apply on, which must have these Services. The goroutine that calls Apply calls it.
	CountAbove(whole map[state.ServiceName]*state.Service, full bool)
}

// Counts are what was counted for a frontend. Each number may be of another moment.
type Counts struct {
	// Connections are all new ones, wherever they went. Without an answer, each attempt of a client counts: a connection that is rejected or
	// dropped may be attempted again.
	Connections uint64
	// Rejects are the connections among them that were rejected because no endpoint exists. Drops are the ones that the traffic policy
	// or the source ranges dropped.
	Rejects, Drops uint64
}

// Add adds what another frontend has counted.
func (c *Counts) Add(o Counts) {
	c.Connections += o.Connections
	c.Rejects += o.Rejects
	c.Drops += o.Drops
}
