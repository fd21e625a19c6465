package ruleset

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// portDiff is in what two versions of a port differ. It is what a change of some endpoints of many costs.
type portDiff struct {
	ports [2]*state.Port
	// slots are the indexes at which the placements of a route differ.
	slots [numRoutes][]int
	// whole is set for traffic, first internal, then external, whose frontends have to be rendered as a whole. changed is set if anything differs.
	whole, changed [2]bool
	// endpoints are those that only one of the versions has in a route.
	endpoints [2][numRoutes][]state.Endpoint
	// numbers are the numbers of the endpoints of a port with affinity. An endpoint in both versions has the same number in both.
	numbers [2]map[netip.AddrPort]uint32
}

// diffPorts returns nil if the two versions have to be rendered as a whole.
func diffPorts(a, b *state.Port, as, bs *placement) *portDiff {
	if a.Affinity != b.Affinity || hashKind(a) != 0 || hashKind(b) != 0 { // frontends that hash have few elements
		return nil
	}
	d := &portDiff{ports: [2]*state.Port{a, b}}
	were, are := routes(a), routes(b)
	for i := range numRoutes {
		var was, is state.Route
		if were[i] != nil {
			was = *were[i]
		}
		if are[i] != nil {
			is = *are[i]
		}
		for e, added := range endpointChanges(was.Endpoints, is.Endpoints) {
			side := 0
			if added {
				side = 1
			}
			d.endpoints[side][i] = append(d.endpoints[side][i], e)
		}
		d.slots[i] = diffSlots(as[i], bs[i])
		if len(d.slots[i]) > 0 || was.Verdict != is.Verdict || classKind(a, &was) != classKind(b, &is) || len(was.Endpoints) != len(is.Endpoints) {
			d.changed[i.traffic()] = true
		}
	}
	for i, t := range [...][2]*state.Traffic{{&a.Internal, &b.Internal}, {&a.External, &b.External}} {
		if isSplit(t[0]) != isSplit(t[1]) || t[0].Masquerade != t[1].Masquerade {
			d.whole[i], d.changed[i] = true, true
		}
	}
	if !sameEdges(a, b) {
		d.whole[edgeLocal.traffic()], d.changed[edgeLocal.traffic()] = true, true
	}
	if a.Affinity == 0 {
		return d
	}
	for i, p := range d.ports {
		d.numbers[i] = endpointNumbersOf(p)
	}
	for addr, n := range d.numbers[0] {
		if m, ok := d.numbers[1][addr]; ok && m != n {
			return nil // one with the same hash has come or gone: nearly never
		}
	}
	return d
}

// side returns which of the versions p is.
func (d *portDiff) side(p *state.Port) int {
	if p == d.ports[0] {
		return 0
	}
	return 1
}

// internalRoutes is how many routes each traffic has.
const internalRoutes = externalInside

// diffSlots returns the indexes at which two placements differ.
func diffSlots(a, b []state.Endpoint) (slots []int) {
	if SameMemory(a, b) {
		return nil
	}
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			slots = append(slots, i)
		}
	}
	return slots
}

// trafficOf returns which traffic a frontend has.
func trafficOf(f *state.Frontend) int {
	if f.Kind == state.ClusterIP {
		return 0
	}
	return 1
}

// isKept reports whether a frontend of one version, p, is one of the other, which looks at its traffic in the same way. Their ranges may differ: of
// these, a frontend has a number only, which is always rendered.
func (d *portDiff) isKept(p *state.Port, f *state.Frontend) bool {
	if d.whole[trafficOf(f)] {
		return false
	}
	a, b := d.ports[0].Frontends, d.ports[1].Frontends
	if len(a) == len(b) && len(a) > 0 && &a[0] == &b[0] {
		return true
	}
	if p == d.ports[0] {
		a = b
	}
	i, ok := slices.BinarySearchFunc(a, *f, state.Frontend.Compare)
	return ok && a[i].Restricted == f.Restricted
}

// changes reports whether anything differs for a frontend that is kept.
func (d *portDiff) changes(f *state.Frontend) bool { return d.changed[trafficOf(f)] }

// only returns the endpoints that one version, p, has in a route, and the other has not.
func (d *portDiff) only(p *state.Port, route int) []state.Endpoint {
	return d.endpoints[d.side(p)][route]
}

// isNumbered reports whether an endpoint of one version, p, has the same number in the other.
func (d *portDiff) isNumbered(p *state.Port, addr netip.AddrPort) bool {
	_, ok := d.numbers[1-d.side(p)][addr]
	return ok
}

// renderChange renders the possible differences of two versions of a service into p.old and p.new. Either version may
// have no record. Ports that are the same memory, or equal except for few endpoints, cost little.
func (p *Plan) renderChange(was, is *applied) {
	p.old.reset()
	p.new.reset()
	var before, after []state.Port
	if was.record != nil {
		before = was.record.Ports
		p.old.above(was)
	}
	if is.record != nil {
		after = is.record.Ports
		p.new.above(is)
	}
	listless := len(was.numbers)+len(is.numbers) == 0
	var oldLists, newLists sourceLists
	for i, j := 0, 0; i < len(before) || j < len(after); {
		switch {
		case j == len(after) || i < len(before) && before[i].Compare(&after[j]) < 0:
			p.old.port(was, &before[i], &was.places[i], &oldLists, nil)
			p.old.pingPort(&before[i])
			i++
		case i == len(before) || before[i].Compare(&after[j]) > 0:
			p.new.port(is, &after[j], &is.places[j], &newLists, nil)
			p.new.pingPort(&after[j])
			j++
		default:
			// The lists of a service are numbered in the order of its frontends, so that those are gone through if there are any.
			if !sameShape(&before[i], &after[j]) || !listless && isRestricted(&before[i]) {
				d := diffPorts(&before[i], &after[j], &was.places[i], &is.places[j])
				p.old.port(was, &before[i], &was.places[i], &oldLists, d)
				p.new.port(is, &after[j], &is.places[j], &newLists, d)
				p.pingChange(&before[i], &after[j])
			}
			i++
			j++
		}
	}
}

// sameShape reports whether two versions of a port are the same memory.
func sameShape(a, b *state.Port) bool {
	if a == b {
		return true
	}
	if n := len(a.Frontends); n != len(b.Frontends) || n > 0 && &a.Frontends[0] != &b.Frontends[0] || a.Affinity != b.Affinity || a.Balance != b.Balance {
		return false
	}
	same := func(r, o *state.Route) bool {
		return r.Verdict == o.Verdict && r.Refused == o.Refused && SameMemory(r.Endpoints, o.Endpoints)
	}
	sameTraffic := func(s, t *state.Traffic) bool {
		return s.Masquerade == t.Masquerade && same(&s.Inside, &t.Inside) && same(&s.Outside, &t.Outside)
	}
	if !sameEdges(a, b) || a.Edge != nil && !same(&a.Edge.Local, &b.Edge.Local) {
		return false
	}
	return sameTraffic(&a.Internal, &b.Internal) && sameTraffic(&a.External, &b.External)
}

// sameEdges reports whether the edges of two versions of a port are the same, up to their routes. The share of each node is not a matter of the tables.
func sameEdges(a, b *state.Port) bool {
	return a.Edge == b.Edge || a.Edge != nil && b.Edge != nil && a.Edge.Except == b.Edge.Except && (len(a.Edge.Shares) > 0) == (len(b.Edge.Shares) > 0)
}

func isRestricted(p *state.Port) bool {
	return slices.ContainsFunc(p.Frontends, func(f state.Frontend) bool { return f.Restricted })
}
