package node

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// fleet knows the status of the nodes that follow a relay, for its page. It has one row of a few KiB at most for each node, however
// many clients the node has and whatever they report.
type fleet struct {
	mu      sync.Mutex // guards all below
	version uint64     // of the newest row
	members map[string]*member
	left    int       // members that no client follows
	swept   time.Time // when members was last looked through for those to forget
}

// member is a node of a fleet.
type member struct {
	row    *ui.Node  // never modified, but replaced
	sentAt time.Time // when the relay had the update with row.Revision for it
}

const (
	// leftPeriod is how long a node is remembered that has left, and maxLeft how many of them are.
	leftPeriod, maxLeft = 10 * time.Minute, 5000
	// maxFailures is how many failed Services of a node are named.
	maxFailures = 3
)

func newFleet() *fleet { return &fleet{members: make(map[string]*member)} }

// change replaces the row of a node. The mutex is held.
func (f *fleet) change(m *member, by func(row *ui.Node)) {
	row := *m.row
	by(&row)
	f.version++
	row.Version = f.version
	m.row = &row
}

// opened notes that a client follows.
func (f *fleet) opened(c server.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep()
	m := f.members[c.Node]
	switch {
	case m == nil:
		m = &member{row: &ui.Node{Name: c.Node}}
		f.members[c.Node] = m
	case m.row.Clients == 0:
		f.left--
		m.row = &ui.Node{Name: c.Node} // it may be another process, which shows nothing yet
	}
	f.change(m, func(row *ui.Node) {
		if row.Clients == 0 {
			row.Since = time.Now()
		}
		row.Clients++
		row.Client, row.Address = c.Name, c.Address
	})
}

// gone notes that a client follows no more.
func (f *fleet) gone(c server.Client) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[c.Node]
	if m == nil || m.row.Clients == 0 {
		return
	}
	f.change(m, func(row *ui.Node) {
		if row.Clients--; row.Clients > 0 {
			return
		}
		row.Gone, row.PendingSince, row.FailedSince = time.Now(), time.Time{}, time.Time{}
		row.Failed, row.Failures = 0, nil
	})
	if m.row.Clients > 0 {
		return
	}
	f.left++
	f.sweep()
	if f.left > maxLeft {
		f.forget(c.Node)
	}
}

// status notes what a client reports. If a node has several, that which reported last counts.
func (f *fleet) status(c server.Client, s server.Status) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[c.Node]
	if m == nil {
		return
	}
	now := time.Now()
	f.change(m, func(row *ui.Node) {
		switch {
		case row.PendingSince.IsZero():
		case s.Applied >= row.Revision:
			row.Took, row.PendingSince = new(now.Sub(m.sentAt).Seconds()), time.Time{}
		case s.Applied > row.Applied:
			row.PendingSince = m.sentAt // it shows the updates before
		}
		row.Client, row.Address, row.Reported, row.Applied = c.Name, c.Address, now, s.Applied
		switch {
		case s.FailedTotal == 0:
			row.FailedSince = time.Time{}
		case row.Failed == 0:
			row.FailedSince = now
		}
		row.Failed, row.Failures = s.FailedTotal, nil
		for _, name := range slices.SortedFunc(maps.Keys(s.Failed), state.ServiceName.Compare) {
			if len(row.Failures) < maxFailures {
				row.Failures = append(row.Failures, ui.Failure{Service: name.String(), Reason: s.Failed[name]})
			}
		}
	})
}

// sent notes that a client is sent an update.
func (f *fleet) sent(c server.Client, revision state.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := f.members[c.Node]
	if m == nil || m.row.Clients == 0 {
		return
	}
	m.sentAt = time.Now()
	f.change(m, func(row *ui.Node) {
		row.Revision = revision
		if row.PendingSince.IsZero() {
			row.PendingSince = m.sentAt
		}
	})
}

// sweep forgets nodes that left long ago. The mutex is held.
func (f *fleet) sweep() {
	now := time.Now()
	if f.left == 0 || now.Sub(f.swept) < linePeriod {
		return
	}
	f.swept = now
	for name, m := range f.members {
		if m.row.Clients == 0 && now.Sub(m.row.Gone) >= leftPeriod {
			f.forget(name)
		}
	}
}

// forget forgets a node that has left. The mutex is held.
func (f *fleet) forget(name string) {
	delete(f.members, name)
	f.left--
}

// rows are the nodes with a version above after.
func (f *fleet) rows(after uint64) (rows []*ui.Node) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sweep()
	if after == f.version && after > 0 {
		return nil
	}
	for _, m := range f.members {
		if m.row.Version > after {
			rows = append(rows, m.row)
		}
	}
	return rows
}

// newest is the newest revision that a node was sent, of those that follow.
func (f *fleet) newest() (newest state.Revision) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, m := range f.members {
		if m.row.Clients > 0 {
			newest = max(newest, m.row.Revision, m.row.Applied)
		}
	}
	return newest
}
