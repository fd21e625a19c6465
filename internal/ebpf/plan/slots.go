package plan

import (
	"iter"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// slots is how many slots each endpoint of a route has, if these are not one each. Programs draw a slot.
type slots struct {
	total int
	each  []int
}

// A route with weights has at most mostSlots slots. If it has more endpoints, netfilter serves it. With mostSlotsEach, weights take at most 32 times the
// memory of the same route without weights. These bounds misplace about 1% of connections, except for extreme weights.
const (
	mostSlots     = 256
	mostSlotsEach = 32
)

// slotsOf returns the slots of a route that refuses nothing, nil if each endpoint has one. ok is false if there are too many endpoints.
func slotsOf(r *state.Route) (s *slots, ok bool) {
	n := len(r.Endpoints)
	if r.Even() {
		return nil, true
	}
	if n > mostSlots {
		return nil, false
	}
	var sizes []int
	for size := 4; size <= min(mostSlots, n*mostSlotsEach); size *= 2 {
		sizes = append(sizes, size*3/4, size)
	}
	weights := r.Weights()
	s = &slots{total: apportion.Class(weights, sizes, 0)}
	s.each = apportion.Slots(weights, s.total)
	return s, true
}

// Slots returns how many slots the route has.
func (r *Route) Slots() int {
	if r.slots == nil {
		return len(r.Endpoints())
	}
	return r.slots.total
}

// EachSlot yields the endpoints of the slots, with the numbers of these from 0 on.
func (r *Route) EachSlot() iter.Seq2[int, state.Endpoint] {
	return func(yield func(int, state.Endpoint) bool) {
		slot := 0
		for i, e := range r.Endpoints() {
			times := 1
			if r.slots != nil {
				times = r.slots.each[i]
			}
			for range times {
				if !yield(slot, e) {
					return
				}
				slot++
			}
		}
	}
}
