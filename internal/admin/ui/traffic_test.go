package ui

import (
	"fmt"
	"maps"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/state"
)

// fakeCounting is a process that counts, unless it has no traffic.
type fakeCounting struct {
	*fake
	traffic *Traffic
}

func (f *fakeCounting) Lately() *Traffic { return f.traffic }

// TestRates: every five seconds a page gets the number of connections a second, and it learns when there are none left, and when nothing
// is counted.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCounting{fake: newFake(t, 2)}
		stream := (&page{newServer(t.Context()), f}).follow()
		next := func() *event {
			m, _ := stream.next(t.Context())
			return m.(*event)
		}
		if e := next(); e.Rates != nil || e.Counted == nil || *e.Counted {
			t.Errorf("a process that does not count has the event %+v", e)
		}
		f.traffic = &Traffic{}
		time.Sleep(ratePeriod)
		a, b := state.ServiceName{Namespace: "shop", Name: "web-000"}, state.ServiceName{Namespace: "shop", Name: "web-001"}
		for i, tt := range []struct {
			grown map[state.ServiceName]view.Counts
			want  map[string]Rate
		}{
			{map[state.ServiceName]view.Counts{a: {Connections: 100}}, nil},
			{map[state.ServiceName]view.Counts{a: {Connections: 10}, b: {Connections: 15, Rejects: 10, Drops: 5}},
				map[string]Rate{"shop/web-000": {Connections: 2}, "shop/web-001": {Connections: 3, Refused: 2, Dropped: 1}}},
			{map[state.ServiceName]view.Counts{a: {}}, map[string]Rate{}},
		} {
			if !f.traffic.Due(time.Now()) {
				t.Error("an addition is not due after five seconds")
			}
			f.traffic.Add(time.Now(), tt.grown)
			e := next()
			if !maps.Equal(e.Rates, tt.want) || (e.Rates == nil) != (tt.want == nil) || (e.Counted != nil) != (i == 0) {
				t.Errorf("%v: rates are %v, want %v", tt.grown, e.Rates, tt.want)
			}
			time.Sleep(time.Second)
			if got := next().Rates; got != nil || f.traffic.Due(time.Now()) {
				t.Errorf("a second later there are rates %v", got)
			}
			time.Sleep(ratePeriod - time.Second)
		}
	})
}

// TestManyRates: of more Services than an event has room for, those are in it that refuse connections.
func TestManyRates(t *testing.T) {
	grown := map[state.ServiceName]view.Counts{{Namespace: "shop", Name: "refuses"}: {Connections: 1, Rejects: 1}}
	for i := range 2 * maxRates {
		grown[state.ServiceName{Namespace: "other", Name: fmt.Sprint(i)}] = view.Counts{Connections: 1000}
	}
	rates := ratesOf(grown, 1)
	if _, ok := rates["shop/refuses"]; !ok || len(rates) != maxRates {
		t.Errorf("%d Services have rates", len(rates))
	}
}
