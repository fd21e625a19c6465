package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// placeWeighted places the endpoints of a weighted route. Each gets a number of slots by its weight, at least one, and all slots are filled.
// So one draw always hits. A share that is refused has slots that are not filled, at least one. Equal weights are placed as no weights are, which takes fewer slots and is exact.
func placeWeighted(old []state.Endpoint, r *state.Route) []state.Endpoint {
	if !r.Even() {
		return placeSlots(old, r, weightedClass(r.Weights(), len(old)))
	}
	targets := make([]target, len(r.Endpoints))
	for i, e := range r.Endpoints {
		targets[i] = target{withoutWeight(e), 1}
	}
	return place(old, targets)
}

// placeSlots places the endpoints of a weighted route in so many slots.
func placeSlots(old []state.Endpoint, r *state.Route, size int) []state.Endpoint {
	targets := make([]target, len(r.Endpoints))
	slots := apportion.Slots(r.Weights(), size)
	for i, e := range r.Endpoints {
		targets[i] = target{withoutWeight(e), slots[i]}
	}
	return placeIn(size, old, targets)
}

// classKind is the kind of the set that has the number of slots of a port's route.
func classKind(p *state.Port, r *state.Route) kind {
	if r.Even() && !isShared(p, r) {
		return endpoints
	}
	return shares
}

// isShared reports whether the weights of a port's route are numbers of slots, which change from time to time. So the class stays, also while they happen to
// be the same.
func isShared(p *state.Port, r *state.Route) bool {
	if !least.Asks(p) || !r.Weighted() {
		return false
	}
	sum := r.Refused
	for _, e := range r.Endpoints {
		sum += uint32(e.Weight)
	}
	return sum == least.Slots
}

func withoutWeight(e state.Endpoint) state.Endpoint {
	e.Weight = 0
	return e
}

// weightedClasses are the classes of weighted routes as package apportion takes them.
var weightedClasses = func() (list []int) {
	for _, n := range shareClasses {
		list = append(list, int(n))
	}
	return list
}()

// weightedClass returns how many slots weights get. A class that there was stays while it is accurate, unless far fewer slots would do.
func weightedClass(weights []uint32, was int) int {
	// A class of at most four times the first one is not far larger than any.
	if _, is := slices.BinarySearch(weightedClasses, was); !is || was > 4*weightedClasses[0] && was > 4*apportion.Class(weights, weightedClasses, 0) {
		was = 0
	}
	return apportion.Class(weights, weightedClasses, was)
}
