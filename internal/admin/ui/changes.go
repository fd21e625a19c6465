package ui

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// maxChanges is the number of entries that a log keeps, and maxNamed the number of Services that an entry names. maxAddrs is the number of
// endpoints that a change of a Service names. maxError is the length of an error in bytes.
const (
	maxChanges = 256
	maxNamed   = 8
	maxAddrs   = 4
	maxError   = 1000
)

// Kind is what an entry of the log is about.
type Kind string

// The kinds.
const (
	// Programmed: an update was applied.
	Programmed Kind = "programmed"
	// Repaired: a verification found what something else had changed, and restored it.
	Repaired Kind = "repaired"
	// Failed: an update, or a verification, did not succeed.
	Failed Kind = "failed"
)

// Change is one entry of the log.
type Change struct {
	// Number grows by one with each entry.
	Number   uint64         `json:"number"`
	At       time.Time      `json:"at"`
	Kind     Kind           `json:"kind"`
	Revision state.Revision `json:"revision,omitempty"`
	// Full reports whether the update was the whole state.
	Full bool `json:"full,omitempty"`
	// Services are some of those that were changed or removed, of so many.
	Services []ServiceChange `json:"services,omitempty"`
	Changed  int             `json:"changed,omitempty"`
	Removed  int             `json:"removed,omitempty"`
	// Took is how long the dataplane worked, in seconds. Latency is the time from the oldest change of endpoints in
	// the update until the dataplane was done, in seconds. Latency is nil if that is not known.
	Took    float64  `json:"took"`
	Latency *float64 `json:"latency,omitempty"`
	// Written and Repaired count objects of the kernel.
	Written  int    `json:"written,omitempty"`
	Repaired int    `json:"repaired,omitempty"`
	Error    string `json:"error,omitempty"`
}

// ServiceChange is what a change was for one Service.
type ServiceChange struct {
	// Name is NAMESPACE/NAME.
	Name string `json:"name"`
	// New and Gone report whether the dataplane did not have the Service before, and does not have it now.
	New  bool `json:"new,omitempty"`
	Gone bool `json:"gone,omitempty"`
	// Plus and Minus are some of the endpoints that get connections now, or did before. More counts the others.
	Plus  []netip.Addr `json:"plus,omitempty"`
	Minus []netip.Addr `json:"minus,omitempty"`
	More  int          `json:"more,omitempty"`
}

// Changes is the log of what a dataplane did last. The zero value is an empty one. Its methods may be called concurrently.
type Changes struct {
	comings comings

	mu   sync.Mutex // guards all below
	last uint64     // number of the newest entry
	ring []Change   // the entry with number n is at (n-1) % maxChanges
}

// Attempted notes a call of the dataplane. Verifications that find nothing are left out. It is made for [backend.RunOptions].OnAttempt.
func (c *Changes) Attempted(a backend.Attempt) {
	if a.Update == nil && a.Repaired == 0 && a.Err == nil {
		return
	}
	e := c.entryOf(&a)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	e.Number = c.last
	if len(c.ring) < maxChanges {
		c.ring = append(c.ring, e)
		return
	}
	c.ring[(e.Number-1)%maxChanges] = e
}

// entryOf returns the entry of an attempt, and notes which endpoints came and went.
func (c *Changes) entryOf(a *backend.Attempt) Change {
	done := a.Began.Add(a.Took)
	e := Change{At: done, Kind: Programmed, Took: a.Took.Seconds(), Written: a.Written, Repaired: a.Repaired}
	switch {
	case a.Err != nil:
		e.Kind, e.Error = Failed, a.Err.Error()
		e.Error = e.Error[:min(len(e.Error), maxError)]
	case a.Update == nil:
		e.Kind = Repaired
	}
	u := a.Update
	if u == nil {
		return e
	}
	e.Revision, e.Full, e.Changed, e.Removed = u.Revision, u.Full, len(u.Changed), len(u.Removed)
	if u.Full && a.Err == nil {
		c.comings.begin(done)
	}
	for d := range differences(a) {
		if len(e.Services) < maxNamed {
			e.Services = append(e.Services, d.shown())
		}
		if a.Err == nil && a.Failed[d.name] == nil {
			c.comings.add(done, d)
		}
	}
	if len(u.Triggers) > 0 && a.Err == nil && !a.Retry {
		// Clocks differ between nodes.
		e.Latency = new(max(0, done.Sub(slices.MinFunc(u.Triggers, time.Time.Compare)).Seconds()))
	}
	return e
}

// After returns the entries that are newer than a number, oldest first, as far as they are kept.
func (c *Changes) After(number uint64) []Change {
	c.mu.Lock()
	defer c.mu.Unlock()
	var list []Change
	for n := max(number, c.last-uint64(len(c.ring))) + 1; n <= c.last; n++ {
		list = append(list, c.ring[(n-1)%maxChanges])
	}
	return list
}
