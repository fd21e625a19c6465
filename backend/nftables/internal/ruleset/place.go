package ruleset

import "github.com/switchyard-net/switchyard/state"

// target is an endpoint with its share of new connections.
type target struct {
	endpoint state.Endpoint
	// weight is how many slots the endpoint gets, at least 1.
	weight int
}

// place distributes targets over the slots of a view, and changes as few of the old slots as it can. Slot i of the result
// serves the endpoint there; a zero endpoint is a hole. The result has as many slots as the class of the targets' weight sum
// (1 for a sum of 1), and slot 0 is never a hole unless there are no targets: it has to serve whatever finds no other slot.
// Targets must be distinct. old is not modified.
func place(old []state.Endpoint, targets []target) []state.Endpoint {
	total := 0
	for _, t := range targets {
		total += t.weight
	}
	size := slotsFor(total)
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
	if size > 0 && !placed[0].Addr.IsValid() {
		for last := size - 1; last > 0; last-- {
			if placed[last].Addr.IsValid() {
				placed[0], placed[last] = placed[last], state.Endpoint{}
				break
			}
		}
	}
	return placed
}

// slotsFor returns how many slots a view has for endpoints of a weight sum.
func slotsFor(total int) int { return max(int(classOf(total)), min(total, 1)) }

// placeRoute places the endpoints of a route evenly. If that is the order in which they stand there, the route's own memory is
// returned.
func placeRoute(old []state.Endpoint, r *state.Route) []state.Endpoint {
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

// placeService lays out the routes of a record, close to how those of the former record are.
func placeService(former applied, s *state.Service) []placement {
	places := make([]placement, len(s.Ports))
	for i := range s.Ports {
		p := &s.Ports[i]
		old := former.place(p, i)
		for j, r := range routes(p) {
			if r != nil {
				places[i][j] = placeRoute(old[j], r)
			}
		}
	}
	return places
}

// place returns the placement of the port with p's identity, which most likely stands at index hint.
func (a *applied) place(p *state.Port, hint int) placement {
	if a.record == nil {
		return placement{}
	}
	same := func(i int) bool { return a.record.Ports[i].Compare(p) == 0 }
	if hint < len(a.record.Ports) && same(hint) {
		return a.places[hint]
	}
	for i := range a.record.Ports {
		if same(i) {
			return a.places[i]
		}
	}
	return placement{}
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
