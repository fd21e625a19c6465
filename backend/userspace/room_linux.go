package userspace

import (
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
)

// makeRoom ends a connection if there are more than most: the one that was used least recently of those who have the most. After most was lowered,
// each that comes ends two, until there are no more than that. The caller holds no connection's mu: the one that ends may be anybody's.
func (r *relay) makeRoom(newest *ledger.Place[*conn], most int) {
	for range 2 {
		c, ok := r.places.MakeRoom(most, newest, time.Now())
		if !ok {
			return
		}
		c.abort()
		r.warnCrowded()
	}
}

// makeRoomForFlow is makeRoom for flows of UDP.
func (r *relay) makeRoomForFlow(newest *ledger.Place[*flow]) {
	most := r.options().MaxUDPFlows
	for range 2 {
		f, ok := r.flowPlaces.MakeRoom(most, newest, time.Now())
		if !ok {
			return
		}
		f.close()
		r.warnCrowded()
	}
}

// logTime is when something was logged last.
type logTime struct{ at atomic.Pointer[time.Time] }

// due reports whether it may be logged again, and notes that it is.
func (l *logTime) due(now time.Time) bool {
	last := l.at.Load()
	return (last == nil || now.Sub(*last) >= ledger.CrowdedFor) && l.at.CompareAndSwap(last, &now)
}

// warnCrowded logs that something has ended to make room, at most once a minute.
func (r *relay) warnCrowded() {
	if r.crowded.due(time.Now()) {
		for _, err := range r.crowding() {
			r.log.Warn("connections end to make room for others", "error", err)
		}
	}
}

// crowding is why connections and flows have ended within the last minute that others had to have room.
func (r *relay) crowding() []error {
	o := r.options()
	return ledger.Problems(r.places.Note(), o.MaxConnections, r.flowPlaces.Note(), o.MaxUDPFlows, time.Now())
}

// Amounts returns how many connections and flows of UDP there are. It may be called at any time.
func (b *Backend) Amounts() (connections, flows Amount) {
	r := b.relay
	o := r.options()
	return Amount(r.places.Amount(o.MaxConnections)), Amount(r.flowPlaces.Amount(o.MaxUDPFlows))
}
