package ipvs

import (
	"context"
	"time"
)

const (
	// drainPeriod is how often it is looked which endpoints have no connections any more.
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
