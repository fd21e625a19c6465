package ui

import (
	"iter"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// maxCompared is the number of endpoints of an update that are compared. The dataplane waits for the comparison.
const maxCompared = 10_000

// differences yields the changes of an update for each Service, in the order of the update. Services beyond a bounded cost, and the
// Services of a full update, have no endpoints.
func differences(a *backend.Attempt) iter.Seq[ServiceChange] {
	return func(yield func(ServiceChange) bool) {
		room, u := maxCompared, a.Update
		for _, s := range u.Changed {
			if !yield(difference(a, s.Name, s, &room)) {
				return
			}
		}
		for _, name := range u.Removed {
			if !yield(difference(a, name, nil, &room)) {
				return
			}
		}
	}
}

// difference returns the change of one Service, whose new record is nil if it is gone. It takes the cost of the comparison from room.
func difference(a *backend.Attempt, name state.ServiceName, after *state.Service, room *int) ServiceChange {
	d := ServiceChange{Name: name.String(), Gone: after == nil}
	if a.Update.Full {
		return d
	}
	before := a.Before[name]
	d.New = before == nil && after != nil
	if *room -= endpointsIn(before) + endpointsIn(after); *room < 0 {
		return d
	}
	c := state.ChangesOf(before, after)
	d.Plus, d.Minus = slices.Clone(c.Added[:min(len(c.Added), maxAddrs)]), slices.Clone(c.Removed[:min(len(c.Removed), maxAddrs)])
	d.More = len(c.Added) - len(d.Plus) + len(c.Removed) - len(d.Minus)
	return d
}

// endpointsIn counts the endpoints of a record, once for each route. A record that is nil has none.
func endpointsIn(s *state.Service) (n int) {
	if s == nil {
		return 0
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, r := range []*state.Route{&p.Internal.Inside, &p.Internal.Outside, &p.External.Inside, &p.External.Outside} {
			n += len(r.Endpoints)
		}
	}
	return n
}
