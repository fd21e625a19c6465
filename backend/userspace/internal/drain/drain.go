// Package drain ends relayed connections when their endpoint has taken no more connections of their port for as long as the port allows.
package drain

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Uses reports whether one of two versions of a service, which may be nil, has a deadline.
func Uses(before, now *state.Service) bool {
	for _, s := range []*state.Service{before, now} {
		if s != nil && slices.ContainsFunc(s.Ports, func(p state.Port) bool { return p.DrainSeconds > 0 }) {
			return true
		}
	}
	return false
}

// After returns how long connections to an endpoint of a port may stay from now on, 0 for as long as they like. The port is looked up in the
// record of its service now, and in the one before if it is gone. Either may be nil.
func After(before, now *state.Service, id plan.PortID, endpoint netip.AddrPort) time.Duration {
	p := portOf(now, id)
	if p == nil {
		p = portOf(before, id)
	} else if takes(p, endpoint) {
		return 0
	}
	if p == nil {
		return 0
	}
	return time.Duration(p.DrainSeconds) * time.Second
}

func portOf(s *state.Service, id plan.PortID) *state.Port {
	if s == nil {
		return nil
	}
	i := slices.IndexFunc(s.Ports, func(p state.Port) bool {
		return p.Name == id.Port && p.Protocol == id.Protocol && p.Family == id.Family
	})
	if i < 0 {
		return nil
	}
	return &s.Ports[i]
}

// takes reports whether an endpoint takes new connections of a port.
func takes(p *state.Port, endpoint netip.AddrPort) bool {
	for _, r := range p.Routes() {
		if _, found := slices.BinarySearchFunc(r.Endpoints, state.Endpoint{Addr: endpoint}, state.Endpoint.Compare); found {
			return true
		}
	}
	return false
}

// Deadline is the deadline of one connection. The zero value has none. The connection's lock guards it.
type Deadline struct{ timer *time.Timer }

// Set has end called with the lock held once a time has passed, unless there is a deadline already, which stays. With 0, it has
// no deadline from now on. The caller holds the lock.
func (d *Deadline) Set(after time.Duration, lock sync.Locker, end func()) {
	switch {
	case after == 0:
		d.Stop()
		return
	case d.timer != nil:
		return
	}
	var own *time.Timer
	own = time.AfterFunc(after, func() {
		lock.Lock()
		defer lock.Unlock()
		if d.timer == own { // it has not been stopped in the meantime
			end()
		}
	})
	d.timer = own
}

// Stop removes the deadline. The caller holds the lock.
func (d *Deadline) Stop() {
	if d.timer != nil {
		d.timer.Stop()
		d.timer = nil
	}
}
