// Package ledger tracks the load of each Service port's endpoints and the owner of each relayed connection, so that no client takes another
// client's room.
package ledger

import (
	"container/list"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
)

// maxFailing is how many endpoints are remembered that have failed. Beyond it, the one that failed first is forgotten. Each takes about 500 bytes.
const maxFailing = 1 << 16

// Loads is how all endpoints are doing, by Service port. Each port has a lock of its own, so that no Service waits for the size of another. The zero value
// is empty. Its methods may be called concurrently.
type Loads struct {
	ports sync.Map // plan.PortID → *port
	// made counts those that were added since the last sweep, which follows after sweepAfter.
	made, sweepAfter atomic.Int64
	// Visits are the clients with affinity.
	Visits Visits

	mu sync.Mutex // guards all below. It is taken when an endpoint has failed or has taken a connection again, after the mutex of a port
	// failing are the endpoints that have failed, the one whose last failure is oldest first: failingKey.
	failing   list.List
	byFailing map[failingKey]*list.Element
}

type failingKey struct {
	port     plan.PortID
	endpoint netip.AddrPort
}

// port is the endpoints of one port. It is kept for a while when none of them has a load.
type port struct {
	mu    sync.Mutex
	loads balance.Loads
	gone  bool
}

// of calls do with the loads of a port.
func (l *Loads) of(id plan.PortID, do func(*balance.Loads)) {
	for {
		v, ok := l.ports.Load(id)
		if !ok {
			if v, ok = l.ports.LoadOrStore(id, &port{}); !ok {
				l.grown()
			}
		}
		p := v.(*port)
		p.mu.Lock()
		if p.gone {
			p.mu.Unlock()
			continue
		}
		do(&p.loads)
		p.mu.Unlock()
		return
	}
}

// leastSweep is how many ports are there at least before a sweep.
const leastSweep = 1024

// grown notes that a port was added. Once there are twice as many as had a load at the last look, those without one go.
func (l *Loads) grown() {
	if l.made.Add(1) <= max(l.sweepAfter.Load(), leastSweep) {
		return
	}
	l.made.Store(0)
	left := int64(0)
	l.ports.Range(func(id, v any) bool {
		p := v.(*port)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.loads.Len() > 0 {
			left++
			return true
		}
		p.gone = true
		l.ports.CompareAndDelete(id, v)
		return true
	})
	l.sweepAfter.Store(left)
}

// Choose returns an endpoint for a connection, as [balance.Choose] does. It counts as a connection of the endpoint until End.
func (l *Loads) Choose(policy balance.Policy, r *balance.Request, now time.Time, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	l.of(r.Port.ID, func(loads *balance.Loads) { endpoint, ok = balance.Choose(loads, &l.Visits, policy, r, now, draw) })
	return endpoint, ok
}

// Begin notes that a connection to an endpoint of a port has begun elsewhere.
func (l *Loads) Begin(id plan.PortID, endpoint netip.AddrPort) {
	l.of(id, func(loads *balance.Loads) { loads.Begin(endpoint) })
}

// End notes that a connection has ended.
func (l *Loads) End(id plan.PortID, endpoint netip.AddrPort) {
	l.of(id, func(loads *balance.Loads) { loads.End(endpoint) })
}

// Dialed notes whether an endpoint has taken a connection. It reports whether that ejects it.
func (l *Loads) Dialed(id plan.PortID, endpoint netip.AddrPort, taken bool, rule balance.Ejection, now time.Time) (ejected bool) {
	key := failingKey{id, endpoint}
	if taken {
		l.of(id, func(loads *balance.Loads) {
			if loads.Succeeded(endpoint) {
				l.forget(key)
			}
		})
		return false
	}
	if rule.Failures <= 0 {
		return false
	}
	var oldest *failingKey
	l.of(id, func(loads *balance.Loads) {
		ejected = loads.Failed(endpoint, rule, now)
		oldest = l.remember(key)
	})
	if oldest != nil {
		l.of(oldest.port, func(loads *balance.Loads) {
			if !l.fails(*oldest) { // else it has failed again since
				loads.Succeeded(oldest.endpoint)
			}
		})
	}
	return ejected
}

// remember notes that an endpoint has failed. It returns another one that is to be forgotten, if there are too many.
func (l *Loads) remember(key failingKey) (oldest *failingKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.byFailing[key]; at != nil {
		l.failing.MoveToBack(at)
		return nil
	}
	if l.byFailing == nil {
		l.byFailing = map[failingKey]*list.Element{}
	}
	l.byFailing[key] = l.failing.PushBack(key)
	if len(l.byFailing) <= maxFailing {
		return nil
	}
	first := l.failing.Remove(l.failing.Front()).(failingKey)
	delete(l.byFailing, first)
	return &first
}

func (l *Loads) forget(key failingKey) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if at := l.byFailing[key]; at != nil {
		l.failing.Remove(at)
		delete(l.byFailing, key)
	}
}

func (l *Loads) fails(key failingKey) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.byFailing[key] != nil
}

// Visits is a [balance.Affinity] whose methods may be called concurrently. Each takes the same time, however many clients there are.
type Visits struct {
	mu sync.Mutex
	of *balance.Affinity
}

// Reset forgets all clients, and remembers at most so many from now on.
func (v *Visits) Reset(limit int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of = balance.NewAffinity(limit)
}

// SetLimit changes how many clients are remembered. Those that are stay.
func (v *Visits) SetLimit(limit int) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of.SetLimit(limit)
}

// Recall implements [balance.Visits].
func (v *Visits) Recall(id plan.PortID, client netip.Addr, timeout time.Duration, now time.Time) (endpoint netip.AddrPort, ok bool) {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of.Recall(id, client, timeout, now)
}

// Learn implements [balance.Visits].
func (v *Visits) Learn(id plan.PortID, client netip.Addr, endpoint netip.AddrPort, timeout time.Duration, now time.Time) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.of.Learn(id, client, endpoint, timeout, now)
}

// Len is how many clients are remembered.
func (v *Visits) Len() int {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.of.Len()
}

// All returns the records of all clients, the oldest first.
func (v *Visits) All(now time.Time) (all []balance.Visit) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for visit := range v.of.All(now) {
		all = append(all, visit)
	}
	return all
}

// Len is how many ports have loads, and how many endpoints have failed.
func (l *Loads) Len() (ports, failing int) {
	l.ports.Range(func(_, v any) bool {
		p := v.(*port)
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.loads.Len() > 0 {
			ports++
		}
		return true
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	return ports, len(l.byFailing)
}
