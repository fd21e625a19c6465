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
	// Lately reads what the dataplane has counted, unless that was done a moment ago. It is nil if nothing is counted.
	Lately() *Traffic
}

const (
	// ratePeriod is the least time that rates are measured over.
	ratePeriod = 5 * time.Second
	// maxRates is how many Services an event has rates of.
	maxRates = 3000
	// A graph has so many numbers, each of so long a time: 15 minutes.
	slots    = 60
	slotTime = 15 * time.Second
	// maxGap is how long nobody may ask for the time to count as measured: metrics are usually read once a minute, or more often.
	maxGap = 2 * time.Minute
	// maxRings is how many graphs are kept: 3 MiB.
	maxRings = 12_000
)

// ring has what was counted in each slot.
type ring [slots]float32

// rings are the graphs of a Service: all connections, refused ones and dropped ones. A graph without any is nil.
type rings [3]*ring

// Rate is how many new connections there are a second. Connections are all of them, wherever they go.
type Rate struct {
	Connections float64 `json:"connections"`
	Refused     float64 `json:"refused,omitempty"`
	Dropped     float64 `json:"dropped,omitempty"`
}

// Traffic is what was counted of new connections lately. It costs nothing unless somebody asks: it gets what is read for pages and for metrics.
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

// Add adds what each Service has counted since the last addition. The counts of the first addition can be of any age, and have no rate.
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

// advance begins new slots. Graphs that are flat by then are forgotten.
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

// spread adds what was counted in a time to the slots that it is part of.
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

// Graph is how many new connections a Service had a second, in the last 15 minutes.
type Graph struct {
	// End is when the last slot ends, and Step how long each slot is, in seconds.
	End  time.Time `json:"end"`
	Step float64   `json:"step"`
	// Known tells the slots of which it is known what was counted, the oldest first. A list is nil if all of its rates are 0.
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

// index is where slot i of a graph is kept, the oldest first.
func (t *Traffic) index(i int) int64 { return (t.slot + 1 + int64(i)) % slots }

// line is a ring in order, a second.
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

// ratesOf returns the rates of Services, and if they are too many, those that refuse or drop most connections, or have most.
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
