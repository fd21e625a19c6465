package ui

import (
	"cmp"
	"maps"
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
)

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
	if !last.IsZero() {
		t.rates = ratesOf(grown, at.Sub(last).Seconds())
	}
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
