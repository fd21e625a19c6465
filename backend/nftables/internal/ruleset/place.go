package ruleset

import (
	"iter"
	"slices"

	"github.com/switchyard-net/switchyard/backend/nftables/internal/least"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

// target is an endpoint with its share of new connections.
type target struct {
	endpoint state.Endpoint
	// weight is how many slots the endpoint gets, at least 1.
	weight int
}

// place distributes targets over the slots of a view, and changes as few of the old slots as it can. Slot i of the result serves the
// endpoint at index i. A zero endpoint is a hole. The number of slots is the class of the targets' weight sum, or 1 for a sum of 1. Slot 0
// serves every packet that finds no other slot, so it is a hole only without targets. Targets must be distinct. old is not modified.
func place(old []state.Endpoint, targets []target) []state.Endpoint {
	total := 0
	for _, t := range targets {
		total += t.weight
	}
	return placeIn(slotsFor(total), old, targets)
}

// placeIn is place for a number of slots that is at least the targets' weight sum.
func placeIn(size int, old []state.Endpoint, targets []target) []state.Endpoint {
	placed := make([]state.Endpoint, size)
	missing := make(map[state.Endpoint]int, len(targets)) // slots that an endpoint still has to get
	for _, t := range targets {
		missing[t.endpoint] = t.weight
	}
	for i, e := range old {
		if i < size && missing[e] > 0 {
			placed[i] = e
			missing[e]--
		}
	}
	hole := 0
	for _, t := range targets {
		for range missing[t.endpoint] {
			for placed[hole].Addr.IsValid() {
				hole++
			}
			placed[hole] = t.endpoint
		}
	}
	fillFirst(placed)
	return placed
}

// fillFirst moves the last endpoint to slot 0 if that is a hole.
func fillFirst(placed []state.Endpoint) {
	if len(placed) == 0 || placed[0].Addr.IsValid() {
		return
	}
	for last := len(placed) - 1; last > 0; last-- {
		if placed[last].Addr.IsValid() {
			placed[0], placed[last] = placed[last], state.Endpoint{}
			return
		}
	}
}

// slotsFor returns how many slots a view has for endpoints of a weight sum.
func slotsFor(total int) int { return max(int(classOf(total)), min(total, 1)) }

// placeFor places the endpoints of a port's route. A route that is hashed has only slot 0.
func placeFor(p *state.Port, old []state.Endpoint, r *state.Route) []state.Endpoint {
	if consistent.Serves(p, r) {
		return placeNet(old, r)
	}
	if isShared(p, r) {
		return placeSlots(old, r, least.Slots)
	}
	return placeRoute(old, r)
}

// placeRoute places the endpoints of a route, evenly or by their weights. If that is the order in which they stand there, the route's own
// memory is returned. A placement has no weights: an endpoint stays in its slots when its weight changes.
func placeRoute(old []state.Endpoint, r *state.Route) []state.Endpoint {
	if r.Weighted() {
		return placeWeighted(old, r)
	}
	n := len(r.Endpoints)
	if len(old) == 0 && (n < 2 || classOf(n) == uint32(n)) {
		return r.Endpoints
	}
	if sameSlots(old, r.Endpoints) {
		return r.Endpoints
	}
	targets := make([]target, n)
	for i, e := range r.Endpoints {
		targets[i] = target{e, 1}
	}
	return place(old, targets)
}

// sameSlots reports whether exactly the endpoints fill the slots, in order.
func sameSlots(old, endpoints []state.Endpoint) bool {
	if len(old) != len(endpoints) || (len(old) > 1 && classOf(len(old)) != uint32(len(old))) {
		return false
	}
	for i := range old {
		if old[i] != endpoints[i] {
			return false
		}
	}
	return true
}

// placeService lays out the routes of a record, close to the layout of the previous record.
func placeService(previous applied, s *state.Service) []placement {
	places := make([]placement, len(s.Ports))
	for i := range s.Ports {
		p := &s.Ports[i]
		old := previous.place(p, i)
		for j, r := range routes(p) {
			if r != nil {
				places[i][j] = placeFor(p, old[j], r)
			}
		}
	}
	return places
}

// place returns the placement of the port with p's identity, which most likely stands at index hint.
func (a *applied) place(p *state.Port, hint int) placement {
	if i := a.find(p, hint); i >= 0 {
		return a.places[i]
	}
	return placement{}
}

// find returns the index of the port with p's identity, which most likely is hint, and -1 if there is none.
func (a *applied) find(p *state.Port, hint int) int {
	if a.record == nil {
		return -1
	}
	same := func(i int) bool { return a.record.Ports[i].Compare(p) == 0 }
	if hint < len(a.record.Ports) && same(hint) {
		return hint
	}
	return slices.IndexFunc(a.record.Ports, func(o state.Port) bool { return o.Compare(p) == 0 })
}

// follow is placeService for a previous record that is placed as a whole. It avoids a search for all endpoints of a route if only a few
// change.
func (a *applied) follow(s *state.Service) []placement {
	places := make([]placement, len(s.Ports))
	for i := range s.Ports {
		p := &s.Ports[i]
		var old placement
		var were [numRoutes]*state.Route
		wasHashed := false
		if at := a.find(p, i); at >= 0 {
			wasHashed = hashKind(&a.record.Ports[at]) != 0
			old, were = a.places[at], routes(&a.record.Ports[at])
		}
		for j, r := range routes(p) {
			if r == nil {
				continue
			}
			placed, ok := []state.Endpoint(nil), false
			if were[j] != nil && !were[j].Weighted() && !r.Weighted() && !wasHashed && !consistent.Serves(p, r) {
				placed, ok = replaceFew(old[j], were[j].Endpoints, r.Endpoints)
			}
			if !ok {
				placed = placeFor(p, old[j], r)
			}
			places[i][j] = placed
		}
	}
	return places
}

// replaceFew returns what place makes of the placement of some endpoints, from, if few of these change or the slots stay. ok is false if it is
// for place to find out. The result may be old.
func replaceFew(old, from, to []state.Endpoint) (placed []state.Endpoint, ok bool) {
	if SameMemory(from, to) {
		return old, true
	}
	size := slotsFor(len(to))
	if len(from) == 0 || size < len(old) {
		return nil, false
	}
	most := len(to) / 4
	var gone, come []state.Endpoint
	for e, added := range endpointChanges(from, to) {
		if added {
			come = append(come, e)
		} else {
			gone = append(gone, e)
		}
		if len(gone)+len(come) > most {
			return nil, false
		}
	}
	if len(gone)+len(come) == 0 {
		return old, true
	}
	placed = make([]state.Endpoint, size)
	copy(placed, old)
	left := func(e state.Endpoint) bool { return slices.Contains(gone, e) }
	if len(gone) > 8 {
		set := make(map[state.Endpoint]struct{}, len(gone))
		for _, e := range gone {
			set[e] = struct{}{}
		}
		left = func(e state.Endpoint) bool { _, is := set[e]; return is }
	}
	for i, e := range placed {
		if left(e) {
			placed[i] = state.Endpoint{}
		}
	}
	hole := 0
	for _, e := range come {
		for placed[hole].Addr.IsValid() {
			hole++
		}
		placed[hole] = e
	}
	fillFirst(placed)
	return placed, true
}

// SameMemory reports whether two lists are one, so that it takes no time to see that they are equal.
func SameMemory[T any](a, b []T) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

// endpointChanges yields the endpoints that only one of two sorted lists has, in order, and whether it is the second.
func endpointChanges(from, to []state.Endpoint) iter.Seq2[state.Endpoint, bool] {
	return func(yield func(e state.Endpoint, added bool) bool) {
		if SameMemory(from, to) {
			return
		}
		for len(from) > 0 || len(to) > 0 {
			switch {
			case len(from) > 0 && len(to) > 0 && from[0] == to[0]:
				from, to = from[1:], to[1:]
			case len(to) == 0 || len(from) > 0 && from[0].Compare(to[0]) <= 0:
				if !yield(from[0], false) {
					return
				}
				from = from[1:]
			default:
				if !yield(to[0], true) {
					return
				}
				to = to[1:]
			}
		}
	}
}

// fillHoles puts some endpoint into each slot that has none, and reports whether there were any.
func (a *applied) fillHoles() (filled bool) {
	for i := range a.places {
		for _, slots := range a.places[i] {
			for j := range slots {
				if !slots[j].Addr.IsValid() {
					slots[j], filled = slots[0], true
				}
			}
		}
	}
	return filled
}
