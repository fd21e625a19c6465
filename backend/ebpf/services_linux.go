package ebpf

import (
	"errors"
	"fmt"
	"iter"
	stdmaps "maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/ebpf/maps"
	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

// services are those that the base has, with what the hooks do for them.
type services struct {
	byName map[state.ServiceName]*service
	// settings are the settings of the plans.
	settings *plan.Settings
	// pending are services for which the hooks may not do yet all that they can, and left those for which there was no room.
	pending, left map[state.ServiceName]bool
	// lost are services that are incomplete in the base. Hooks do nothing for them.
	lost map[state.ServiceName]bool
	// owned counts the services that have frontends of their own at addresses which serve NodePorts.
	owned map[netip.Addr]int
	// routes is the memory of the last plan that was made.
	routes []plan.Route
	// counters count the connections to the frontends of all records, nil if nothing is counted.
	counters *maps.Counters
}

// service is the hooks' part of one service.
type service struct {
	// record is what the base was given last, nil for a service that it has failed to remove.
	record *state.Service
	// had is the last record that the base has shown completely, for a service that is lost. Otherwise it is nil.
	had *state.Service
	// owned are the addresses that count in services.owned.
	owned []netip.Addr
	// routes are what the hooks have, in the order of plans. They are a part of what the base has.
	routes []maps.Placed
}

func newServices() *services {
	return &services{
		byName: map[state.ServiceName]*service{}, pending: map[state.ServiceName]bool{}, left: map[state.ServiceName]bool{},
		lost: map[state.ServiceName]bool{}, owned: map[netip.Addr]int{}, settings: &plan.Settings{},
	}
}

// plan returns what the hooks can do for a record. It is valid until the next call.
func (s *services) plan(record *state.Service, settings *plan.Settings) []plan.Route {
	s.routes = plan.Append(s.routes[:0], record, settings)
	return s.routes
}

// withdraw has the hooks stop serving everything that is wrong after u.
func (s *services) withdraw(t *maps.Tables, u *state.Update, settings *plan.Settings) error {
	t.Reclaim()
	if s.counters != nil {
		s.counters.Reclaim()
	}
	var errs []error
	limit := func(name state.ServiceName, record *state.Service) {
		e := s.byName[name]
		if e == nil || len(e.routes) == 0 {
			return
		}
		var routes []plan.Route
		if record != nil {
			routes = s.plan(record, settings)
		}
		s.pending[name] = true // if the base fails, it keeps its previous version
		errs = append(errs, e.limit(t, routes))
	}
	for _, record := range u.Changed {
		limit(record.Name, record)
	}
	for _, name := range s.gone(u) {
		limit(name, nil)
	}
	if !u.Full && !settings.Equal(s.settings) {
		changed := names(u)
		for name, e := range s.byName {
			if !changed[name] {
				limit(name, e.record)
			}
		}
	}
	return errors.Join(errs...)
}

// names returns the services that u is about.
func names(u *state.Update) map[state.ServiceName]bool {
	set := make(map[state.ServiceName]bool, len(u.Changed)+len(u.Removed))
	for _, record := range u.Changed {
		set[record.Name] = true
	}
	for _, name := range u.Removed {
		set[name] = true
	}
	return set
}

// gone returns the services that u takes away. For the first update, it does not go through them.
func (s *services) gone(u *state.Update) []state.ServiceName {
	if len(s.byName) == 0 {
		return u.Removed
	}
	return u.Gone(stdmaps.Keys(s.byName))
}

// nodePorts returns the addresses at which hooks may serve NodePorts. It leaves out addresses of settings at which a service, also one
// in u, has frontends of its own.
func (s *services) nodePorts(u *state.Update, settings *plan.Settings) []netip.Addr {
	var owned []netip.Addr
	for _, record := range u.Changed {
		owned = plan.Owned(owned, record, settings)
	}
	if len(s.owned)+len(owned) == 0 {
		return settings.NodePorts
	}
	return slices.DeleteFunc(slices.Clone(settings.NodePorts), func(addr netip.Addr) bool {
		return s.owned[addr] > 0 || slices.Contains(owned, addr)
	})
}

// own counts the addresses of a service that are its own, by the record and by the previous one while the service is lost.
func (s *services) own(e *service) {
	for _, addr := range e.owned {
		if s.owned[addr]--; s.owned[addr] == 0 {
			delete(s.owned, addr)
		}
	}
	e.owned = plan.Owned(plan.Owned(e.owned[:0], e.record, s.settings), e.had, s.settings)
	for _, addr := range e.owned {
		s.owned[addr]++
	}
}

// applied takes down what the base shows after u.
func (s *services) applied(u *state.Update, settings *plan.Settings, failed map[state.ServiceName]error) {
	s.use(settings)
	gone := s.gone(u)
	if len(s.byName) == 0 { // the first: maps that grow step by step take twice as long
		s.byName, s.pending = make(map[state.ServiceName]*service, len(u.Changed)), make(map[state.ServiceName]bool, len(u.Changed))
	}
	var replaced []*state.Service
	for _, name := range gone {
		if e := s.byName[name]; e != nil {
			replaced = s.put(replaced, name, e, nil, failed[name] != nil)
		}
	}
	for _, record := range u.Changed {
		e := s.byName[record.Name]
		if e == nil {
			e = &service{}
			s.byName[record.Name] = e
		}
		replaced = s.put(replaced, record.Name, e, record, failed[record.Name] != nil)
	}
	if s.counters == nil {
		return
	}
	for _, record := range replaced { // last, so that frontends go on that go to another service
		s.counters.Drop(record)
	}
}

// put replaces the record of a service, nil to remove it. The base may have failed with it. It appends the previous records to its
// first argument.
func (s *services) put(replaced []*state.Service, name state.ServiceName, e *service, record *state.Service, failed bool) []*state.Service {
	if s.counters != nil {
		s.counters.Hold(record)
	}
	if failed && !s.lost[name] {
		e.had = e.record
	} else {
		replaced = append(replaced, e.record)
	}
	if !failed {
		replaced = append(replaced, e.had)
		e.had = nil
	}
	e.record = record
	s.own(e)
	switch {
	case failed:
	case record == nil:
		delete(s.byName, name)
		delete(s.pending, name)
		delete(s.left, name)
		delete(s.lost, name)
		return replaced
	default:
		delete(s.lost, name)
	}
	s.pending[name] = true
	return replaced
}

// count has connections to the frontends of all records counted from now on, nil for no longer.
func (s *services) count(counters *maps.Counters) {
	if s.counters = counters; counters == nil {
		return
	}
	for _, e := range s.byName {
		counters.Hold(e.record)
		counters.Hold(e.had)
	}
}

// use takes settings for all plans that follow.
func (s *services) use(settings *plan.Settings) {
	same := settings.Equal(s.settings)
	if s.settings = settings; same {
		return
	}
	for name, e := range s.byName {
		s.own(e)
		s.pending[name] = true
	}
}

// letGo has the hooks let go of services.
func (s *services) letGo(t *maps.Tables, failed map[state.ServiceName]error) error {
	var errs []error
	for name := range failed {
		if e := s.byName[name]; e != nil {
			errs = append(errs, e.limit(t, nil))
		}
	}
	return errors.Join(errs...)
}

// failed records the services that are incomplete in the base.
func (s *services) failed(failed map[state.ServiceName]error) {
	for name := range failed {
		if s.byName[name] != nil {
			s.lost[name] = true
		}
	}
}

// repaired records which services the base still has failed with after it was verified. It has the services tried again for which there
// was no room.
func (s *services) repaired(failed map[state.ServiceName]error) {
	for name := range s.lost {
		if failed[name] == nil {
			delete(s.lost, name)
			e := s.byName[name]
			if s.counters != nil {
				s.counters.Drop(e.had)
			}
			e.had = nil
			s.own(e)
			s.pending[name] = true
		}
	}
	for name := range s.left {
		s.pending[name] = true
	}
	s.left = map[state.ServiceName]bool{}
}

// has returns the record of a service that the base shows, nil if that is not certain.
func (s *services) has(name state.ServiceName) *state.Service {
	if e := s.byName[name]; e != nil && !s.lost[name] {
		return e.record
	}
	return nil
}

// extend has the hooks do all that they can for the services that are pending. If there is no room, it returns [maps.ErrFull], and the
// rest is still pending.
func (s *services) extend(t *maps.Tables) error {
	for name := range s.pending {
		if record := s.has(name); record != nil {
			if err := s.byName[name].extend(t, s.plan(record, s.settings)); err != nil {
				return errors.Join(err, t.Flush())
			}
		}
		delete(s.pending, name)
		delete(s.left, name)
	}
	s.pending = map[state.ServiceName]bool{} // going through a map costs as much as it was ever large
	return t.Flush()
}

// leave leaves the services that are pending to the base.
func (s *services) leave(t *maps.Tables) error {
	var errs []error
	for name := range s.pending {
		errs = append(errs, s.byName[name].limit(t, nil))
		s.left[name] = true
	}
	s.pending = map[state.ServiceName]bool{}
	return errors.Join(errs...)
}

// layout is the plan of the hooks for all services, and the required sizes of maps.
type layout struct {
	needs    maps.Needs
	services []placing
}

// placing is a service on its way into other maps.
type placing struct {
	*service
	routes []plan.Route
	// placed are the routes with their places, once they have some.
	placed []maps.Placed
}

// layout returns what the hooks are to do for all services.
func (s *services) layout() *layout {
	l := &layout{services: make([]placing, 0, len(s.byName))}
	var routes []plan.Route // of all, so that there are few lists
	for name, e := range s.byName {
		from := len(routes)
		if e.record != nil && !s.lost[name] {
			if cap(routes)-from < 2*len(e.record.Ports) {
				routes, from = make([]plan.Route, 0, max(routesAtOnce, 2*len(e.record.Ports))), 0
			}
			routes = plan.Append(routes, e.record, s.settings)
		}
		l.services = append(l.services, placing{service: e, routes: routes[from:len(routes):len(routes)]})
		for i := range routes[from:] {
			l.needs.Add(&routes[from+i])
		}
	}
	return l
}

// routesAtOnce is how many routes a list of them has room for.
const routesAtOnce = 4096

// place puts all services into maps that are empty. They stay where they are until moved is called with the layout.
func (l *layout) place(t *maps.Tables) error {
	for i := range l.services {
		p, there := &l.services[i], service{}
		if err := there.extend(t, p.routes); err != nil {
			return fmt.Errorf("service %v: %w", p.record.Name, err)
		}
		p.placed = there.routes
	}
	return t.Flush()
}

// moved takes down that services are in other maps, at the places of a layout of all of them.
func (s *services) moved(l *layout) {
	for _, p := range l.services {
		p.service.routes = p.placed
	}
	s.pending, s.left = map[state.ServiceName]bool{}, map[state.ServiceName]bool{}
}

// unloaded records that the maps are gone.
func (s *services) unloaded() {
	for _, e := range s.byName {
		e.routes = nil
	}
	s.pending, s.left = map[state.ServiceName]bool{}, map[state.ServiceName]bool{}
}

// placed yields all routes that the hooks have.
func (s *services) placed() iter.Seq[*maps.Placed] {
	return func(yield func(*maps.Placed) bool) {
		for _, e := range s.byName {
			for i := range e.routes {
				if !yield(&e.routes[i]) {
					return
				}
			}
		}
	}
}

// limit removes from the hooks everything that is not in the plan next.
func (e *service) limit(t *maps.Tables, next []plan.Route) error {
	var errs []error
	kept := e.routes[:0]
	for i := range e.routes {
		r := &e.routes[i]
		var to *plan.Route
		if next, to = advance(next, &r.Route); !limitRoute(t, r, to) {
			to = nil
		}
		for bit, f := range r.Beyond(to) {
			errs = append(errs, t.Delete(r.Port.Family, f))
			r.Frontends &^= 1 << bit
		}
		if r.Frontends == 0 {
			t.Remove(r)
			continue
		}
		kept = append(kept, *r)
	}
	clear(e.routes[len(kept):])
	e.routes = kept
	return errors.Join(errs...)
}

// limitRoute makes a route lead to no endpoints and serve no clients that to does not have. to is nil if no route takes its place. It
// returns false if the route must go: it leads to none of the endpoints of to, or there is no room to say which.
func limitRoute(t *maps.Tables, r *maps.Placed, to *plan.Route) bool {
	if to == nil {
		return false
	}
	within, fewer := r.Within(to)
	switch {
	case len(within.Endpoints()) == 0:
		return false
	case fewer:
		at, err := t.Replace(r, &within)
		if err != nil {
			return false // the base has all of them
		}
		*r = maps.Placed{Route: within, At: at}
	case within.Clients != r.Clients:
		r.Route = within
		t.Show(r)
	}
	return true
}

// advance returns the route in a plan that replaces r, nil if there is none, and the rest of the plan from there on.
func advance(routes []plan.Route, r *plan.Route) (rest []plan.Route, to *plan.Route) {
	for len(routes) > 0 {
		switch order := routes[0].Compare(r); {
		case order == 0:
			return routes, &routes[0]
		case order > 0:
			return routes, nil
		}
		routes = routes[1:]
	}
	return nil, nil
}

// extend has the hooks do all that is in a plan, and nothing else. After an error they do a part of it.
func (e *service) extend(t *maps.Tables, next []plan.Route) error {
	if err := e.limit(t, next); err != nil {
		return err
	}
	had := e.routes
	e.routes = make([]maps.Placed, 0, len(next))
	for i := range next {
		var old *maps.Placed
		if len(had) > 0 && had[0].Compare(&next[i]) == 0 {
			old, had = &had[0], had[1:]
		}
		now, err := extendRoute(t, old, &next[i])
		if now != nil {
			e.routes = append(e.routes, *now)
		}
		if err != nil {
			e.routes = append(e.routes, had...)
			return err
		}
	}
	return nil
}

// extendRoute extends a route of the hooks until it serves all of next. had is nil if the hooks have no route. It returns the route that
// the hooks have afterwards, also after an error.
func extendRoute(t *maps.Tables, had *maps.Placed, next *plan.Route) (*maps.Placed, error) {
	now := &maps.Placed{Route: *next}
	var held *plan.Route
	var err error
	switch {
	case had == nil:
		if now.At, err = t.Add(next); err != nil {
			return nil, err
		}
	case slices.Equal(had.Endpoints(), next.Endpoints()):
		now.At, held = had.At, &had.Route
		if had.Clients != now.Clients {
			t.Show(now)
		}
	default:
		if now.At, err = t.Replace(had, next); err != nil {
			return had, err
		}
		held = &had.Route
	}
	for bit := range next.Beyond(held) {
		now.Frontends &^= 1 << bit
	}
	for bit, f := range next.Beyond(held) {
		if err := t.Put(next.Port.Family, f, now.At); err != nil {
			return now, err
		}
		now.Frontends |= 1 << bit
	}
	return now, nil
}
