package balance

import (
	"iter"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
)

// Affinity remembers which endpoints clients had. Clients beyond its limit get none remembered, until others time out.
type Affinity struct {
	max      int
	byClient map[visitor]*visit
	// The visits in the order of the last connection: the ones that time out first come first, if all have the same timeout.
	oldest, newest *visit
}

type visitor struct {
	port   plan.PortID
	client netip.Addr
}

type visit struct {
	visitor
	endpoint     netip.AddrPort
	last         time.Time
	timeout      time.Duration
	older, newer *visit
}

// NewAffinity returns an empty one for so many clients. A client counts once for each port that it uses.
func NewAffinity(limit int) *Affinity { return &Affinity{max: limit, byClient: map[visitor]*visit{}} }

// SetLimit changes how many clients are remembered. Those that are stay.
func (a *Affinity) SetLimit(limit int) { a.max = limit }

// Recall returns the endpoint that a client had, if it still counts.
func (a *Affinity) Recall(port plan.PortID, client netip.Addr, timeout time.Duration, now time.Time) (endpoint netip.AddrPort, ok bool) {
	v := a.byClient[visitor{port, client}]
	if v == nil || now.Sub(v.last) >= timeout {
		return endpoint, false
	}
	return v.endpoint, true
}

// Learn remembers that a client has got an endpoint.
func (a *Affinity) Learn(port plan.PortID, client netip.Addr, endpoint netip.AddrPort, timeout time.Duration, now time.Time) {
	key := visitor{port, client}
	v := a.byClient[key]
	if v != nil {
		a.unlink(v)
	} else {
		for n := 0; n < atOnce && a.oldest != nil && now.Sub(a.oldest.last) >= a.oldest.timeout; n++ {
			a.forget(a.oldest)
		}
		if len(a.byClient) >= a.max {
			return
		}
		v = &visit{visitor: key}
		a.byClient[key] = v
	}
	v.endpoint, v.timeout, v.last = endpoint, timeout, now
	v.older, v.newer = a.newest, nil
	if a.newest != nil {
		a.newest.newer = v
	} else {
		a.oldest = v
	}
	a.newest = v
}

// Len is how many clients are remembered. Some may have timed out.
func (a *Affinity) Len() int { return len(a.byClient) }

func (a *Affinity) forget(v *visit) {
	a.unlink(v)
	delete(a.byClient, v.visitor)
}

func (a *Affinity) unlink(v *visit) {
	if v.older != nil {
		v.older.newer = v.newer
	} else {
		a.oldest = v.newer
	}
	if v.newer != nil {
		v.newer.older = v.older
	} else {
		a.newest = v.older
	}
}

// Visit is the record of one client.
type Visit struct {
	Port     plan.PortID
	Client   netip.Addr
	Endpoint netip.AddrPort
	Timeout  time.Duration
	// Idle is how long ago its last connection began. The clock of another process may show another time.
	Idle time.Duration
}

// All yields the records of all clients, the oldest first.
func (a *Affinity) All(now time.Time) iter.Seq[Visit] {
	return func(yield func(Visit) bool) {
		for v := a.oldest; v != nil; v = v.newer {
			if !yield(Visit{v.port, v.client, v.endpoint, v.timeout, now.Sub(v.last)}) {
				return
			}
		}
	}
}
