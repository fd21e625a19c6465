package ui

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// fakeCounting is a process that counts.
type fakeCounting struct {
	*fake
	connections map[state.ServiceName]uint64
}

func (f *fakeCounting) Connections() map[state.ServiceName]uint64 { return f.connections }

// TestRates: every five seconds a page gets the number of connections a second, and it learns when there are none
// left.
func TestRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fakeCounting{fake: newFake(t, 2)}
		stream := (&page{newServer(t.Context()), f}).follow()
		next := func() map[string]float64 {
			m, _ := stream.next(t.Context())
			return m.(*event).Rates
		}
		a, b := state.ServiceName{Namespace: "shop", Name: "web-000"}, state.ServiceName{Namespace: "shop", Name: "web-001"}
		for _, tt := range []struct {
			counted map[state.ServiceName]uint64
			want    map[string]float64
		}{
			{nil, nil}, // it does not count
			{map[state.ServiceName]uint64{a: 100}, nil},
			{map[state.ServiceName]uint64{a: 110, b: 5}, map[string]float64{"shop/web-000": 2, "shop/web-001": 1}},
			{map[state.ServiceName]uint64{a: 110, b: 5}, map[string]float64{}},
			{map[state.ServiceName]uint64{a: 3, b: 30}, map[string]float64{"shop/web-001": 5}}, // one restarts from 0
		} {
			f.connections = tt.counted
			got := next()
			if len(got) != len(tt.want) || (got == nil) != (tt.want == nil) {
				t.Errorf("%v: rates are %v, want %v", tt.counted, got, tt.want)
			}
			for name, rate := range tt.want {
				if got[name] != rate {
					t.Errorf("%v: %s has %v connections a second, want %v", tt.counted, name, got[name], rate)
				}
			}
			time.Sleep(time.Second)
			if got := next(); got != nil {
				t.Errorf("a second later there are rates %v", got)
			}
			time.Sleep(ratePeriod - time.Second)
		}
	})
}
