package ruleset

import (
	"slices"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// placeWeighted places the endpoints of a weighted route. Each gets a number of slots by its weight, at least one, and all slots are filled.
// So one draw always hits. A share that is refused has slots that are not filled, at least one. Equal weights are placed as no weights are, which takes fewer slots and is exact.
func placeWeighted(old []state.Endpoint, r *state.Route) []state.Endpoint {
	targets := make([]target, len(r.Endpoints))
	for i, e := range r.Endpoints {
		targets[i] = target{withoutWeight(e), 1}
	}
	if r.Even() {
		return place(old, targets)
	}
	weights := r.Weights()
	size := weightedClass(weights, len(old))
	slots := apportion.Slots(weights, size)
	for i := range targets {
		targets[i].weight = slots[i]
	}
	return placeIn(size, old, targets)
}

// classKind is the kind of the set that has the number of slots of a route.
func classKind(r *state.Route) kind {
	if r.Even() {
		return endpoints
	}
	return shares
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
