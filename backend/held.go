package backend

import (
	"maps"

	"github.com/switchyard-net/switchyard/state"
)

// held is what a dataplane holds.
type held struct {
	// records are the last good records of services: those that the dataplane was given last, and has not refused.
	records map[state.ServiceName]*state.Service
	// failed are services that were refused or are incomplete. They change as a whole. A change counts at least as many entries as the map says,
	// because nobody knows which entries are missing.
	failed map[state.ServiceName]int
	// holders are the failed services by the frontends of their records. The state may give these frontends to other services.
	holders map[keyHash]state.ServiceName
}

func newHeld(services int) *held {
	return &held{
		records: make(map[state.ServiceName]*state.Service, services), failed: map[state.ServiceName]int{}, holders: map[keyHash]state.ServiceName{},
	}
}

// refusals are the services of an update that the dataplane has refused. If it refused the last good record as well, the service is in twice.
type refusals struct {
	refused map[state.ServiceName]error
	twice   map[state.ServiceName]bool
}

// add adds the services of v that the dataplane has refused, and reports whether to call it again.
func (r *refusals) add(e *RefusedError, v *state.Update) (again bool) {
	asked := map[state.ServiceName]bool{}
	for _, s := range v.Changed {
		asked[s.Name] = true
	}
	for _, name := range v.Removed {
		asked[name] = true
	}
	for name, err := range e.Services {
		switch {
		case !asked[name]:
		case r.refused[name] == nil:
			r.refused[name], again = err, true
		case !r.twice[name]:
			r.twice[name], again = true, true
		}
	}
	return again
}

// resolve returns u with the last good records of services that were refused, and with all services that lose a frontend to another one. It looks at
// all of u only if services have failed.
func (h *held) resolve(u *state.Update, r *refusals) *state.Update {
	if len(r.refused)+len(h.holders) == 0 {
		return u
	}
	keep := map[state.ServiceName]bool{}
	for name := range r.refused {
		keep[name] = true
	}
	if !u.Full {
		for name := range h.losers(u, r.refused) {
			keep[name] = true
		}
	}
	v := u.Keep(maps.Keys(keep), func(name state.ServiceName) *state.Service {
		if r.twice[name] {
			return nil
		}
		return h.records[name]
	})
	if len(r.refused) == 0 {
		return v
	}
	for _, s := range u.Changed {
		if r.refused[s.Name] != nil {
			v.Refused = append(v.Refused, s)
		}
	}
	return v
}

// losers returns the failed services that lose a frontend to a service of u and are not in u themselves.
func (h *held) losers(u *state.Update, refused map[state.ServiceName]error) map[state.ServiceName]bool {
	losers := map[state.ServiceName]bool{}
	if len(h.holders) == 0 {
		return losers
	}
	for _, s := range u.Changed {
		if refused[s.Name] != nil {
			continue
		}
		for p, f := range s.Frontends() {
			if holder, ok := h.holders[hashOf(p.Key(f))]; ok {
				losers[holder] = true
			}
		}
	}
	if len(losers) == 0 {
		return losers
	}
	for _, s := range u.Changed {
		delete(losers, s.Name)
	}
	for _, name := range u.Removed {
		delete(losers, name)
	}
	return losers
}

// note records that the dataplane holds v, the resolved u, and which services are incomplete.
func (h *held) note(u, v *state.Update, r *refusals, incomplete map[state.ServiceName]error) {
	isCertain := len(h.failed)+len(r.refused)+len(incomplete) == 0
	entries := map[state.ServiceName]int{}
	if !isCertain {
		for name := range r.refused {
			entries[name] = 1
		}
		for name := range incomplete {
			entries[name] = max(1, weightOf(h.records[name]), h.failed[name])
		}
	}
	if u.Full {
		*h = *newHeld(len(v.Changed))
	}
	for _, name := range v.Removed {
		h.set(name, nil)
	}
	for _, s := range v.Changed {
		h.set(s.Name, s)
	}
	for name := range r.twice {
		h.set(name, nil)
	}
	if isCertain {
		return
	}
	for _, s := range u.Changed {
		n := entries[s.Name]
		if incomplete[s.Name] != nil {
			n = max(n, weightOf(s))
		}
		h.fail(s.Name, n)
	}
	for _, name := range u.Removed {
		h.fail(name, entries[name])
	}
	if u.Full {
		for name := range incomplete { // also services that were not removed
			h.fail(name, entries[name])
		}
	}
}

// weightOf returns how many entries a service takes.
func weightOf(s *state.Service) (n int) {
	ports := portsOf(s)
	for i := range ports {
		n += weight(&ports[i])
	}
	return n
}

// set records what the dataplane holds of a service, nil for nothing.
func (h *held) set(name state.ServiceName, record *state.Service) {
	failed := h.failed[name]
	h.fail(name, 0)
	if record == nil {
		delete(h.records, name)
	} else {
		h.records[name] = record
	}
	h.fail(name, failed)
}

// fail records that a service has failed, and how many entries a change of it counts at least. 0 means that it has not failed.
func (h *held) fail(name state.ServiceName, entries int) {
	was := h.failed[name]
	if entries == 0 {
		delete(h.failed, name)
	} else {
		h.failed[name] = entries
	}
	if (was == 0) == (entries == 0) {
		return
	}
	for p, f := range h.records[name].Frontends() {
		if k := hashOf(p.Key(f)); was == 0 {
			h.holders[k] = name
		} else if h.holders[k] == name {
			delete(h.holders, k)
		}
	}
}
