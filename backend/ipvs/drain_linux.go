package ipvs

import (
	"context"
	"time"

	"github.com/switchyard-net/switchyard/backend"
)

const (
	// drainPeriod is how often endpoints are checked for connections that they still have.
	drainPeriod = 5 * time.Second
	// drainServers is how many virtual servers are looked at each time, at most: each takes a dump of its endpoints.
	drainServers = 256
)

// drain lets endpoints and servers go whose connections have ended.
func (b *Backend) drain(ctx context.Context) {
	tick := time.NewTicker(drainPeriod)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
			b.drainNow(time.Now())
		}
	}
}

// Retire has IPVS take nothing new: another dataplane ahead of it takes all connections by now, and the base no longer belongs to this
// one. With the next Apply, which must be of a full update, endpoints begin to go as their connections end. Flows of UDP go on to the
// endpoints that their Service keeps.
func (b *Backend) Retire() { b.above(backend.None{}, true) }

// Resume undoes Retire, above a base that may be another one than before: then its owner looks after what disturbs it. Nothing changes before the next Apply, which must be of a full update.
func (b *Backend) Resume(base backend.Backend) { b.above(base, false) }

func (b *Backend) above(base backend.Backend, retired bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if retired {
		b.countAbove(nil, true) // the base serves all from now on
	}
	b.base, b.retired, b.known = base, retired, false
}

// Carried returns how many virtual servers there are: the servers of a retired Backend carry connections. It may be called at any time.
func (b *Backend) Carried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.servers.byKey)
}

func (b *Backend) drainNow(now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.known || len(b.servers.draining) == 0 {
		return
	}
	ended, err := b.servers.drain(now, drainServers)
	if releaseErr := b.release(ended); err == nil {
		err = releaseErr
	}
	if err != nil {
		b.log.Warn("virtual servers are not cleared of endpoints that are gone; will try again", "error", err)
		b.known = false
		b.disturb()
	}
}
