package ui

import (
	"net/netip"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

const (
	// historySpan is the length of graphs.
	historySpan = slots * slotTime
	// maxComings is the number of comings and goings that are kept, 3 MiB in total. maxComingsOf is the number for one Service.
	maxComings   = 20_000
	maxComingsOf = 64
	// sweepPause is the time between two sweeps.
	sweepPause = 30 * time.Second
)

// Coming is the time at which an endpoint began to get connections, or stopped.
type Coming struct {
	At   time.Time  `json:"at"`
	Addr netip.Addr `json:"address"`
	Up   bool       `json:"up"`
}

// Comings are the comings and goings of a Service's endpoints, oldest first.
type Comings struct {
	// Since is the time from which Items is complete.
	Since time.Time `json:"since"`
	Items []Coming  `json:"items"`
}

// comings has the Comings of all Services. The zero value is empty.
type comings struct {
	mu    sync.Mutex // guards all below
	since time.Time  // from when on all are complete, except for what lost says
	of    map[state.ServiceName]*Comings
	held  shares
	// lost has the last time at which a namespace had no room for one.
	lost  map[string]time.Time
	swept time.Time
}

// begin forgets everything: the dataplane got the whole state.
func (c *comings) begin(at time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.since, c.of, c.held, c.lost, c.swept = at, map[state.ServiceName]*Comings{}, shares{}, map[string]time.Time{}, at
}

// add adds the endpoints of a change.
func (c *comings) add(at time.Time, d *difference) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sweep(at)
	for i, addrs := range [][]netip.Addr{d.minus, d.plus} {
		for _, addr := range addrs {
			c.addOne(d.name, Coming{at, addr, i == 1})
		}
	}
}

func (c *comings) addOne(name state.ServiceName, item Coming) {
	list := c.of[name]
	switch {
	case c.of == nil: // the dataplane has not had the whole state
		return
	case list != nil && len(list.Items) == maxComingsOf:
		list.Since = list.Items[0].At
		list.Items = append(list.Items[:0], list.Items[1:]...)
	case !c.held.take(name.Namespace, maxComings):
		c.lost[name.Namespace] = item.At
		return
	case list == nil:
		list = &Comings{Since: c.since}
		c.of[name] = list
	}
	list.Items = append(list.Items, item)
}

// sweep removes items that are too old.
func (c *comings) sweep(now time.Time) {
	if now.Sub(c.swept) < sweepPause {
		return
	}
	c.swept = now
	for name, list := range c.of {
		old := 0
		for old < len(list.Items) && now.Sub(list.Items[old].At) > historySpan {
			c.held.give(name.Namespace)
			old++
		}
		if list.Items = append(list.Items[:0], list.Items[old:]...); len(list.Items) == 0 {
			delete(c.of, name)
		}
	}
	for namespace, at := range c.lost {
		if now.Sub(at) > historySpan {
			delete(c.lost, namespace)
		}
	}
}

// get returns the Comings of a Service in the last 15 minutes. They are nil as long as nothing is known.
func (c *comings) get(name state.ServiceName, now time.Time) *Comings {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of == nil {
		return nil
	}
	got := &Comings{Since: c.since, Items: []Coming{}}
	if list := c.of[name]; list != nil {
		got.Since = list.Since
		got.Items = append(got.Items, list.Items...)
	}
	if lost := c.lost[name.Namespace]; lost.After(got.Since) {
		got.Since = lost
	}
	if begin := now.Add(-historySpan); begin.After(got.Since) {
		got.Since = begin
	}
	return got
}
