package ui

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/state"
)

// Counting is the source of a page whose dataplane may count new connections.
type Counting interface {
	Source
	// Lately reads the counts of the dataplane, unless they were read a moment ago. It is nil if the dataplane does not count.
	Lately() *Traffic
}

const (
	// ratePeriod is the least time that rates are measured over.
	ratePeriod = 5 * time.Second
	// maxRates is the number of Services with rates in an event.
	maxRates = 3000
	// A graph has 60 slots of 15 seconds: 15 minutes.
	slots    = 60
	slotTime = 15 * time.Second
	// maxGap is the longest time between two additions that a graph shows as measured. Metrics are usually read once a minute, or more often.
	maxGap = 2 * time.Minute
	// maxRings is the number of graphs that are kept: 3 MiB.
	maxRings = 12_000
)

// ring has the connections in each slot.
type ring [slots]float32

// rings are the graphs of a Service: all connections, refused ones and dropped ones. A graph without any is nil.
type rings [3]*ring

// Rate has the new connections of a Service per second. Connections includes those that are refused or dropped.
type Rate struct {
	Connections float64 `json:"connections"`
	Refused     float64 `json:"refused,omitempty"`
	Dropped     float64 `json:"dropped,omitempty"`
}

// Traffic has the new connections of the last 15 minutes. It gets the counts that pages and metrics read, so it costs nothing without them.
// The zero value is empty. Its methods may be called concurrently.
type Traffic struct {
	mu    sync.Mutex // guards all below
	at    time.Time  // of the last addition
	rates map[string]Rate

	slot    int64          // the number of the newest slot
	covered [slots]float32 // seconds of which it is known what was counted
	rings   map[state.ServiceName]*rings
	held    shares
}

// Due reports whether it is time for an addition. Others are left for the next one.
func (t *Traffic) Due(at time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at.IsZero() || at.Sub(t.at) >= ratePeriod
}

// Add adds the connections of each Service since the last addition. The counts of the first addition can be of any age, and have no rate.
func (t *Traffic) Add(at time.Time, grown map[state.ServiceName]view.Counts) {
	t.mu.Lock()
	defer t.mu.Unlock()
	last := t.at
	t.at = at
	t.advance(at.UnixNano() / int64(slotTime))
	if last.IsZero() {
		return
	}
	t.rates = ratesOf(grown, at.Sub(last).Seconds())
	if at.Sub(last) <= maxGap {
		t.spread(last, at, grown)
	}
}

// advance begins new slots, and drops graphs that are flat.
func (t *Traffic) advance(to int64) {
	if to <= t.slot {
		return
	}
	for slot := max(t.slot+1, to-slots+1); slot <= to; slot++ {
		t.covered[slot%slots] = 0
		for _, rs := range t.rings {
			for _, r := range rs {
				if r != nil {
					r[slot%slots] = 0
				}
			}
		}
	}
	t.slot = to
	for name, rs := range t.rings {
		for i, r := range rs {
			if r != nil && *r == (ring{}) {
				rs[i] = nil
				t.held.give(name.Namespace)
			}
		}
		if *rs == (rings{}) {
			delete(t.rings, name)
		}
	}
}

// spread divides the connections of a period among its slots.
func (t *Traffic) spread(from, to time.Time, grown map[state.ServiceName]view.Counts) {
	share := map[int64]float32{}
	for slot := from.UnixNano() / int64(slotTime); slot <= t.slot; slot++ {
		begins := time.Unix(0, slot*int64(slotTime))
		part := min(to.Sub(begins), slotTime) - max(from.Sub(begins), 0)
		t.covered[slot%slots] += float32(part.Seconds())
		share[slot%slots] = float32(part) / float32(to.Sub(from))
	}
	for name, c := range grown {
		for i, n := range []uint64{c.Connections, c.Rejects, c.Drops} {
			if r := t.ring(name, i, n > 0); r != nil && n > 0 {
				for slot, part := range share {
					r[slot] += part * float32(n)
				}
			}
		}
	}
}

// ring returns a graph of a Service. If there is none, it makes one if it is needed and there is room.
func (t *Traffic) ring(name state.ServiceName, of int, needed bool) *ring {
	rs := t.rings[name]
	if rs != nil && rs[of] != nil {
		return rs[of]
	}
	if !needed || !t.held.take(name.Namespace, maxRings) {
		return nil
	}
	if rs == nil {
		if t.rings == nil {
			t.rings = map[state.ServiceName]*rings{}
		}
		rs = &rings{}
		t.rings[name] = rs
	}
	rs[of] = &ring{}
	return rs[of]
}

// Graph has the new connections of a Service per second in the last 15 minutes.
type Graph struct {
	// End is the end of the last slot, and Step the length of each slot in seconds.
	End  time.Time `json:"end"`
	Step float64   `json:"step"`
	// Known reports for each slot, the oldest first, whether it was measured. A list of rates is nil if all of them are 0.
	Known       []bool    `json:"known"`
	Connections []float64 `json:"connections,omitempty"`
	Refused     []float64 `json:"refused,omitempty"`
	Dropped     []float64 `json:"dropped,omitempty"`
}

// graph returns the graph of a Service.
func (t *Traffic) graph(name state.ServiceName) *Graph {
	t.mu.Lock()
	defer t.mu.Unlock()
	g := &Graph{End: time.Unix(0, (t.slot+1)*int64(slotTime)), Step: slotTime.Seconds(), Known: make([]bool, slots)}
	for i := range g.Known {
		g.Known[i] = t.covered[t.index(i)] > 0
	}
	if rs := t.rings[name]; rs != nil {
		g.Connections, g.Refused, g.Dropped = t.line(rs[0]), t.line(rs[1]), t.line(rs[2])
	}
	return g
}

// index returns the position of slot i in a ring. Slot 0 is the oldest.
func (t *Traffic) index(i int) int64 { return (t.slot + 1 + int64(i)) % slots }

// line returns the rates of a ring per second, the oldest first.
func (t *Traffic) line(r *ring) []float64 {
	if r == nil {
		return nil
	}
	list := make([]float64, slots)
	for i := range list {
		if at := t.index(i); t.covered[at] > 0 {
			list[i] = math.Round(100*float64(r[at])/float64(t.covered[at])) / 100
		}
	}
	return list
}

// newest returns the rates of Services that have any, by NAMESPACE/NAME, and their time. They are nil if there are none yet. They must not be modified.
func (t *Traffic) newest() (at time.Time, rates map[string]Rate) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.at, t.rates
}

// ratesOf returns the rates of Services. If they are too many, it prefers Services that refuse or drop most, then those with most connections.
func ratesOf(grown map[state.ServiceName]view.Counts, seconds float64) map[string]Rate {
	names := slices.DeleteFunc(slices.Collect(maps.Keys(grown)), func(name state.ServiceName) bool { return grown[name].Connections == 0 })
	if len(names) > maxRates {
		slices.SortFunc(names, func(a, b state.ServiceName) int {
			x, y := grown[a], grown[b]
			return cmp.Or(cmp.Compare(y.Rejects+y.Drops, x.Rejects+x.Drops), cmp.Compare(y.Connections, x.Connections), a.Compare(b))
		})
		names = names[:maxRates]
	}
	rates := make(map[string]Rate, len(names))
	for _, name := range names {
		c := grown[name]
		rates[name.String()] = Rate{float64(c.Connections) / seconds, float64(c.Rejects) / seconds, float64(c.Drops) / seconds}
	}
	return rates
}
