package ui

import (
	"iter"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// maxCompared is the number of endpoints of an update that are compared. The dataplane waits for the comparison.
const maxCompared = 10_000

// difference is the change of one Service in an update.
type difference struct {
	name      state.ServiceName
	new, gone bool
	// plus are the endpoints that get connections now, and minus those that did before. Both are sorted.
	plus, minus []netip.Addr
}

// differences yields the changes of an update for each Service, in the order of the update. Services beyond a bounded cost, and the
// Services of a full update, have no endpoints.
func differences(a *backend.Attempt) iter.Seq[*difference] {
	return func(yield func(*difference) bool) {
		room, u := maxCompared, a.Update
		for _, s := range u.Changed {
			if !yield(compare(a, s.Name, s, &room)) {
				return
			}
		}
		for _, name := range u.Removed {
			if !yield(compare(a, name, nil, &room)) {
				return
			}
		}
	}
}

// compare returns the change of one Service, whose new record is nil if it is gone. It takes the cost of the comparison from room.
func compare(a *backend.Attempt, name state.ServiceName, after *state.Service, room *int) *difference {
	d := &difference{name: name, gone: after == nil}
	if a.Update.Full {
		return d
	}
	before := a.Before[name]
	d.new = before == nil && after != nil
	if *room -= endpointsIn(before) + endpointsIn(after); *room >= 0 {
		c := state.ChangesOf(before, after)
		d.plus, d.minus = c.Added, c.Removed
	}
	return d
}

// shown returns the part of a difference that the log keeps.
func (d *difference) shown() ServiceChange {
	s := ServiceChange{Name: d.name.String(), New: d.new, Gone: d.gone}
	s.Plus, s.Minus = slices.Clone(d.plus[:min(len(d.plus), maxAddrs)]), slices.Clone(d.minus[:min(len(d.minus), maxAddrs)])
	s.More = len(d.plus) - len(s.Plus) + len(d.minus) - len(s.Minus)
	return s
}

// endpointsIn counts the endpoints of a record, once for each route. A record that is nil has none.
func endpointsIn(s *state.Service) (n int) {
	if s == nil {
		return 0
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		for _, r := range p.Routes() {
			n += len(r.Endpoints)
		}
	}
	return n
}
