package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// desired is the whole state that the tables are to show.
type desired struct {
	services []*state.Service
	node     *state.Node
	spared   spared
}

// after returns what is desired once u is applied to what the mirror holds.
func (m *mirror) after(u *state.Update) desired {
	d := desired{services: u.Changed, node: u.Node, spared: spared{services: records{}}}
	if u.Full {
		return d
	}
	d.spared.all = m.spared.all
	maps.Copy(d.spared.services, m.spared.services)
	touched := map[state.ServiceName]bool{}
	for _, s := range u.Changed {
		touched[s.Name] = true
	}
	for _, name := range u.Removed {
		touched[name] = true
	}
	maps.DeleteFunc(d.spared.services, func(name state.ServiceName, _ *state.Service) bool { return touched[name] })
	d.services = slices.Clone(d.services)
	for name, a := range m.services {
		if !touched[name] {
			d.services = append(d.services, a.record)
		}
	}
	return d
}

// resync plans the difference between what the kernel holds and what is desired. former is asked for placements, so that
// endpoints stay in their slots; those of services that it does not know are taken from the kernel. The plan's mirror is a new
// one: former stays as it is.
func resync(o *Options, former *mirror, ks *kernelState, want desired, nodePorts []netip.Addr) *plan {
	p := newPlan(o, newMirror())
	p.node = want.node
	p.serveOn(nodePorts)
	for i := range ks.tables {
		if sk := ks.tables[i].skeleton; sk != nil {
			p.shape.merge(shapeOf(sk.Sets()))
			p.shape.loopback = p.shape.loopback || sk.HasChainNamed(chainLoopback)
		}
	}
	slots := ks.placements()
	byName := func(a, b *state.Service) int { return a.Name.Compare(b.Name) }
	for _, s := range slices.SortedFunc(slices.Values(want.services), byName) { // the same change makes the same batch
		next := applied{record: s}
		before, ok := former.services[s.Name]
		if !ok {
			before = fromKernel(s, slots)
		}
		next.places = placeService(before, s)
		p.services[s.Name] = next
		p.new.service(s, next.places)
		for _, k := range p.new.shared {
			if p.refs[k]++; p.refs[k] == 1 {
				p.new.own = append(p.new.own, k.element())
			}
		}
		p.compare(ks)
		p.new.reset()
	}
	for _, a := range nodePorts {
		p.new.own = append(p.new.own, newSharedKey(nodePortIPs, a).element())
	}
	p.compare(ks)
	p.spare(ks, want)
	for _, k := range slices.SortedFunc(maps.Keys(ks.elements), elementKey.compare) {
		p.del(element{k.family, k.set, k.key, ks.elements[k]})
	}
	for i := range ks.tables {
		p.resyncTable(&ks.tables[i])
	}
	return p
}

// compare plans the elements in p.new that the kernel lacks, and takes those that it has off ks.
func (p *plan) compare(ks *kernelState) {
	for i := range p.new.own {
		e := &p.new.own[i]
		k := e.id()
		data, ok := ks.elements[k]
		if ok {
			delete(ks.elements, k)
			if data == e.data {
				p.shape.needs(e.set)
				continue
			}
			p.del(element{k.family, k.set, k.key, data})
		}
		p.add(*e)
	}
}

// spare takes off ks what is spared.
func (p *plan) spare(ks *kernelState, want desired) {
	p.m.spared = want.spared
	if !want.spared.all && len(want.spared.services) == 0 {
		return
	}
	owned, theirs := map[elementKey]bool{}, map[elementKey]bool{}
	for _, s := range want.services {
		addFrontends(owned, s)
	}
	for _, s := range want.spared.services {
		addFrontends(theirs, s)
	}
	for k, data := range ks.elements {
		keep := want.spared.all
		if k.set.space != global {
			f := k.frontend()
			keep = !owned[f] && (keep || theirs[f])
		}
		if keep {
			p.keep(ks, element{k.family, k.set, k.key, data})
		}
	}
	slices.SortFunc(p.kept, func(a, b element) int { return a.id().compare(b.id()) }) // the same change makes the same batch
	// What the kept elements need of those that services have in common.
	used := map[sharedKey]bool{}
	for i := range p.kept {
		if e := &p.kept[i]; e.set.kind == slots {
			used[newSharedKey(hairpin, decodeEndpoint(e.family, e.data).Addr())] = true
		}
	}
	for _, s := range want.spared.services {
		for i := range s.Ports {
			for _, f := range s.Ports[i].Frontends {
				if f.Kind == state.ClusterIP {
					used[newSharedKey(clusterIPs, f.Addr)] = true
				} else if f.Kind != state.NodePort {
					used[newSharedKey(externalIPs, f.Addr)] = true
				}
			}
		}
	}
	for k := range used {
		e := k.element()
		data, left := ks.elements[e.id()]
		if left {
			e.data = data
			p.keep(ks, e)
		}
		if left || p.refs[k] > 0 {
			p.refs[k]++ // so that it stays when no other service needs it any longer
		}
	}
}

// keep takes an element off ks that stays.
func (p *plan) keep(ks *kernelState, e element) {
	p.kept = append(p.kept, e)
	p.shape.needs(e.set)
	delete(ks.elements, e.id())
}

// resyncTable plans the skeleton of one table. A table that something foreign lives in, or that is of another version, is
// replaced with everything in it: in one transaction, so that no packet misses it.
func (p *plan) resyncTable(t *tableState) {
	if t.skeleton == nil {
		p.skeleton(t.family, func(*nft.Set) bool { return false },
			func(*nft.Chain) (bool, bool) { return false, false })
		return
	}
	tb := table(t.family)
	sk := skeleton{p.o, t.family, &p.shape, p.node}
	var sets []nft.Set
	for _, id := range p.o.setIDs(t.family, &p.shape) {
		sets = append(sets, id.set(t.family))
	}
	chains := sk.chains()
	if t.skeleton.Fits(tb, sets, chains) {
		p.skeleton(t.family, func(s *nft.Set) bool { return t.skeleton.HasSet(tb, s) },
			func(c *nft.Chain) (bool, bool) { return t.skeleton.HasChain(tb, c) })
		p.forgetUnknown(t)
		return
	}
	p.replaceTable(t, sets, chains)
}

func (p *plan) replaceTable(t *tableState, sets []nft.Set, chains []nft.Chain) {
	// All that was found equal goes with the old table, and has to be written again.
	for _, s := range p.order {
		if s.family == t.family {
			s.del, s.add = nil, nil
		}
	}
	for _, name := range slices.SortedFunc(maps.Keys(p.services), state.ServiceName.Compare) {
		a := p.services[name]
		p.new.reset()
		p.new.service(a.record, a.places)
		for i := range p.new.own {
			if p.new.own[i].family == t.family {
				p.add(p.new.own[i])
			}
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(p.refs), sharedKey.compare) {
		if k.family == t.family {
			p.add(k.element())
		}
	}
	for _, a := range p.nodePorts {
		if state.FamilyOf(a) == t.family {
			p.add(newSharedKey(nodePortIPs, a).element())
		}
	}
	for _, e := range p.kept {
		name, again := e.set.name(), e.set.space == global && p.refs[sharedOf(&e)] > 0
		if e.family == t.family && !again && slices.ContainsFunc(sets, func(s nft.Set) bool { return s.Name == name }) {
			p.add(e)
		}
	}
	known, _ := p.splitAffinity(t)
	p.tables = append(p.tables, tablePlan{
		table: table(t.family), replace: true, sets: sets, chains: chains, remembered: known,
	})
}

// forgetUnknown plans that clients whose endpoint is no longer one of their frontend are forgotten.
func (p *plan) forgetUnknown(t *tableState) {
	_, unknown := p.splitAffinity(t)
	p.forgotten = append(p.forgotten, unknown...)
}

// splitAffinity tells remembered clients whose endpoint is alive from others.
func (p *plan) splitAffinity(t *tableState) (known, unknown []client) {
	if len(t.affinity) == 0 {
		return nil, nil
	}
	living := map[elementKey]bool{}
	for _, a := range p.services {
		p.new.reset()
		p.new.service(a.record, a.places)
		for i := range p.new.own {
			if e := &p.new.own[i]; e.set.kind == alive {
				living[e.id()] = true
			}
		}
	}
	for _, e := range p.kept {
		if e.set.kind == alive {
			living[e.id()] = true
		}
	}
	p.new.reset()
	for _, c := range t.affinity {
		byAddr, byPort := aliveKeys(c.family, c.view, c.elem)
		if living[byAddr] || living[byPort] {
			known = append(known, c)
		} else {
			unknown = append(unknown, c)
		}
	}
	return known, unknown
}

// fromKernel reads the placements of a record's routes off the kernel's slots: from those of the first frontend that has any.
func fromKernel(s *state.Service, slots map[elementKey][]state.Endpoint) applied {
	a := applied{record: s, places: make([]placement, len(s.Ports))}
	for i := range s.Ports {
		p := &s.Ports[i]
		for j := range p.Frontends {
			f := &p.Frontends[j]
			at := internalInside
			if f.Kind != state.ClusterIP {
				at = externalInside
			}
			key := frontendKey(p, f)
			for _, from := range []struct {
				route route
				view  view
			}{{at, inside}, {at, common}, {at + 1, outside}} {
				key.set.view = from.view
				if a.places[i][from.route] == nil {
					a.places[i][from.route] = localLike(slots[key], routes(p)[from.route])
				}
			}
		}
	}
	return a
}

// localLike fills in what the kernel does not know of endpoints, whether they are local, from a route's endpoints.
func localLike(placed []state.Endpoint, r *state.Route) []state.Endpoint {
	if r == nil {
		return nil
	}
	for i, e := range placed {
		if j, ok := slices.BinarySearchFunc(r.Endpoints, e, state.Endpoint.Compare); ok {
			placed[i] = r.Endpoints[j]
		}
	}
	return placed
}
