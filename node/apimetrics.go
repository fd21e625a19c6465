package node

import (
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/ctusage"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// audience counts the clients that follow the node-local API of a Server or Relay, for the metrics.
type audience struct {
	sent atomic.Uint64 // bytes

	mu      sync.Mutex // guards all below
	clients map[uint64]*audienceMember
	relays  int
}

// audienceMember is a client that watches.
type audienceMember struct {
	// unapplied are the updates that were sent and are not reported as applied, the oldest first. It holds at most maxUnapplied.
	unapplied []sentUpdates
	// reports is set once the client has reported a status: not every client does.
	reports bool
}

// sentUpdates are updates that were sent within a second, or that follow too many others.
type sentUpdates struct {
	first time.Time      // when the first of them was sent
	last  state.Revision // of the last of them
}

// maxUnapplied bounds the memory for a client that does not keep up.
const maxUnapplied = 16

func newAudience() *audience { return &audience{clients: map[uint64]*audienceMember{}} }

// opened notes that a client watches.
func (a *audience) opened(c server.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[c.ID] = &audienceMember{}
}

// gone notes that a client is gone.
func (a *audience) gone(c server.Client) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.clients, c.ID)
}

// wasSent notes that a client is sent an update.
func (a *audience) wasSent(c server.Client, revision state.Revision) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.clients[c.ID]
	if m == nil {
		return // it is gone
	}
	now := time.Now()
	if n := len(m.unapplied); n == maxUnapplied || n > 0 && now.Sub(m.unapplied[n-1].first) < time.Second {
		m.unapplied[n-1].last = revision
		return
	}
	m.unapplied = append(m.unapplied, sentUpdates{now, revision})
}

// status notes what a client reports.
func (a *audience) status(c server.Client, s server.Status) {
	a.mu.Lock()
	defer a.mu.Unlock()
	m := a.clients[c.ID]
	if m == nil {
		return
	}
	m.unapplied = slices.DeleteFunc(m.unapplied, func(u sentUpdates) bool { return u.last <= s.Applied })
	m.reports = true
}

// relayFollows notes that a relay follows. The caller calls gone when it is gone.
func (a *audience) relayFollows() (gone func()) {
	add := func(n int) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.relays += n
	}
	add(1)
	return func() { add(-1) }
}

// measured returns the figures for the metrics.
func (a *audience) measured() metrics.Followers {
	a.mu.Lock()
	defer a.mu.Unlock()
	f := metrics.Followers{Dataplanes: len(a.clients), Relays: a.relays, Sent: a.sent.Load()}
	for _, m := range a.clients {
		if !m.reports || len(m.unapplied) == 0 {
			continue
		}
		if oldest := m.unapplied[0].first; f.OldestUnapplied.IsZero() || oldest.Before(f.OldestUnapplied) {
			f.OldestUnapplied = oldest
		}
	}
	return f
}

// follow has a server report its clients to the audience as well.
func (a *audience) follow(o *server.Options) {
	open, send, status, gone := o.OnOpen, o.OnSend, o.OnStatus, o.OnClose
	o.SentBytes = &a.sent
	o.OnOpen = func(c server.Client) {
		a.opened(c)
		if open != nil {
			open(c)
		}
	}
	o.OnSend = func(c server.Client, r state.Revision) {
		a.wasSent(c, r)
		if send != nil {
			send(c, r)
		}
	}
	o.OnStatus = func(c server.Client, s server.Status) {
		a.status(c, s)
		status(c, s)
	}
	o.OnClose = func(c server.Client) {
		a.gone(c)
		gone(c)
	}
}

// addMetrics adds the metrics of the clients of the API, of connection tracking, and of changes that wait.
func (n *Node) addMetrics(o *metrics.Options) {
	switch n.o.Role {
	case Proxy:
		o.PendingSince = func() time.Time { return n.health.PendingSince() }
		o.ConntrackEntries = conntrackEntries
	case Server:
		o.Role, o.Followers = "server", n.audience.measured
	case Relay:
		o.Role, o.Followers = "relay", n.audience.measured
	}
}

// conntrackEntries returns the entries of the connection tracking table, and false where there is none.
func conntrackEntries() (metrics.ConntrackEntries, bool) {
	entries, limit, err := ctusage.Read()
	return metrics.ConntrackEntries{Entries: entries, Limit: limit}, err == nil && limit > 0
}
