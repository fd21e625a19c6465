package nftables

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/nft"
	"github.com/switchyard-net/switchyard/state"
)

// plan is a set of changes to the tables, worked out before the kernel is touched: it is committed in one transaction, and
// only then becomes part of the mirror.
type plan struct {
	o *Options
	m *mirror

	services  map[state.ServiceName]applied // new values; a nil record is a removal
	refs      map[sharedKey]int32           // changes of the counts
	nodePorts []netip.Addr
	node      *state.Node
	shape     shape

	tables []tablePlan
	sets   map[tableSet]*setPlan
	order  []*setPlan // the values of sets, in the order in which they were needed
	// dead are alive elements that go: clients must forget these endpoints.
	dead map[elementKey]bool
	// forgotten are remembered clients whose endpoint goes.
	forgotten []client
	// kept are elements that are spared.
	kept []element

	old, new renderer
	index    map[elementKey]int
}

// tablePlan is what changes in a table beside elements.
type tablePlan struct {
	table nft.Table
	// replace deletes the table first, and with it all that it holds.
	replace bool
	sets    []nft.Set
	chains  []nft.Chain // new, or to be filled anew
	// flush are those of the chains that have rules to be deleted.
	flush []string
	// remembered are clients to be carried over into the new table.
	remembered []client
}

// client is an element of an affinity set.
type client struct {
	family state.Family
	view   view
	elem   nft.Elem
}

type tableSet struct {
	family state.Family
	set    setID
}

type setPlan struct {
	tableSet
	del, add []element
}

func newPlan(o *Options, m *mirror) *plan {
	return &plan{
		o: o, m: m, services: map[state.ServiceName]applied{}, refs: map[sharedKey]int32{}, nodePorts: m.nodePorts,
		node: m.node, shape: m.shape.clone(), sets: map[tableSet]*setPlan{}, dead: map[elementKey]bool{},
		old: renderer{o: o}, new: renderer{o: o}, index: map[elementKey]int{},
	}
}

func (p *plan) set(f state.Family, id setID) *setPlan {
	ts := tableSet{f, id}
	s := p.sets[ts]
	if s == nil {
		s = &setPlan{tableSet: ts}
		p.sets[ts] = s
		p.order = append(p.order, s)
		p.shape.needs(id)
	}
	return s
}

func (p *plan) add(e element) {
	s := p.set(e.family, e.set)
	s.add = append(s.add, e)
	if e.set.kind == alive {
		delete(p.dead, e.id())
	}
}

func (p *plan) del(e element) {
	s := p.set(e.family, e.set)
	s.del = append(s.del, e)
	if e.set.kind == alive {
		p.dead[e.id()] = true
	}
}

// update plans the way from the mirror to the state after u.
func (p *plan) update(u *state.Update) {
	for _, name := range u.Removed {
		p.replace(name, nil)
	}
	for _, s := range u.Changed {
		p.replace(s.Name, s)
	}
	p.node = u.Node
}

// replace plans that a service is programmed as in s, or not at all if s is nil.
func (p *plan) replace(name state.ServiceName, s *state.Service) {
	former := p.m.services[name]
	next := applied{record: s}
	p.old.reset()
	p.new.reset()
	if former.record != nil {
		p.old.service(former.record, former.places)
	}
	if s != nil {
		next.places = placeService(former, s)
		p.new.service(s, next.places)
	}
	p.services[name] = next
	p.diff()
	for _, k := range p.old.shared {
		p.refs[k]--
	}
	for _, k := range p.new.shared {
		p.refs[k]++
	}
}

// diff plans the way from the elements in p.old to those in p.new.
func (p *plan) diff() {
	clear(p.index)
	for i := range p.old.own {
		p.index[p.old.own[i].id()] = i
	}
	for i := range p.new.own {
		e := &p.new.own[i]
		if j, ok := p.index[e.id()]; ok {
			delete(p.index, e.id())
			if p.old.own[j].data == e.data {
				continue
			}
			p.del(p.old.own[j])
		}
		p.add(*e)
	}
	for i := range p.old.own { // in order, so that the same change makes the same batch
		if j, ok := p.index[p.old.own[i].id()]; ok && i == j {
			p.del(p.old.own[i])
		}
	}
}

// settle plans the elements that depend on the whole of the update.
func (p *plan) settle(nodePorts []netip.Addr) {
	for _, k := range slices.SortedFunc(maps.Keys(p.refs), sharedKey.compare) { // the same change makes the same batch
		before := p.m.refs[k]
		switch after := before + p.refs[k]; {
		case before == 0 && after > 0:
			p.add(k.element())
		case before > 0 && after == 0:
			p.del(k.element())
		}
	}
	p.serveOn(nodePorts)
	for _, a := range p.m.nodePorts {
		if !slices.Contains(nodePorts, a) {
			p.del(newSharedKey(nodePortIPs, a).element())
		}
	}
	for _, a := range nodePorts {
		if !slices.Contains(p.m.nodePorts, a) {
			p.add(newSharedKey(nodePortIPs, a).element())
		}
	}
}

// serveOn takes down the addresses that serve NodePorts.
func (p *plan) serveOn(nodePorts []netip.Addr) {
	p.nodePorts = nodePorts
	p.shape.loopback = p.shape.loopback || slices.ContainsFunc(nodePorts, loopbackRange.Contains)
}

// grow plans the changes of the skeleton from the mirror's shape and node to the plan's.
func (p *plan) grow() {
	if p.shape.equal(&p.m.shape) && p.node.Equal(p.m.node) {
		return
	}
	for _, f := range families {
		was := skeleton{p.o, f, &p.m.shape, p.m.node}
		sets := map[string]bool{}
		for _, id := range p.o.setIDs(f, &p.m.shape) {
			sets[id.name()] = true
		}
		chains := map[string]nft.Chain{}
		for _, c := range was.chains() {
			chains[c.Name] = c
		}
		p.skeleton(f, func(s *nft.Set) bool { return sets[s.Name] }, func(c *nft.Chain) (exists, same bool) {
			old, ok := chains[c.Name]
			return ok, ok && old.Equal(c)
		})
	}
}

// skeleton plans the sets and chains of a table, as far as they do not exist as they should.
func (p *plan) skeleton(f state.Family, hasSet func(*nft.Set) bool, hasChain func(*nft.Chain) (exists, same bool)) {
	t := tablePlan{table: table(f)}
	for _, id := range p.o.setIDs(f, &p.shape) {
		if s := id.set(f); !hasSet(&s) {
			t.sets = append(t.sets, s)
		}
	}
	sk := skeleton{p.o, f, &p.shape, p.node}
	for _, c := range sk.chains() {
		exists, same := hasChain(&c)
		if same {
			continue
		}
		t.chains = append(t.chains, c)
		if exists {
			t.flush = append(t.flush, c.Name)
		}
	}
	if len(t.sets)+len(t.chains) > 0 {
		p.tables = append(p.tables, t)
	}
}

// write puts the plan into a batch. Sets and chains come before what refers to them, deletions before additions, because an
// element may replace another with the same key.
func (p *plan) write(b *nft.Batch) {
	for i := range p.tables {
		t := &p.tables[i]
		b.AddTable(t.table)
		if t.replace {
			b.DeleteTable(t.table)
			b.AddTable(t.table)
		}
		for j := range t.sets {
			b.AddSet(t.table, &t.sets[j])
		}
		for j := range t.chains {
			b.AddChain(t.table, &t.chains[j])
		}
		for _, name := range t.flush {
			b.FlushChain(t.table, name)
		}
		for j := range t.chains {
			for _, r := range t.chains[j].Rules {
				b.AddRule(t.table, t.chains[j].Name, r)
			}
		}
		for _, c := range t.remembered {
			b.AddElem(t.table, affinitySet(c.view), c.elem)
		}
	}
	for _, s := range p.order {
		s.write(b, s.del, b.DeleteElem)
	}
	for _, s := range p.order {
		s.write(b, s.add, b.AddElem)
	}
}

// forget puts the clients to be forgotten into a batch. Any of them may be gone already, for its time-out.
func (p *plan) forget(b *nft.Batch) {
	for _, c := range p.forgotten {
		b.DestroyElem(table(c.family), affinitySet(c.view), c.elem)
	}
}

// forgets says whether the endpoint of a remembered client goes.
func (p *plan) forgets(c client) bool {
	byAddr, byPort := aliveKeys(c.family, c.view, c.elem)
	return p.dead[byAddr] || p.dead[byPort]
}

func (s *setPlan) write(b *nft.Batch, elements []element, put func(nft.Table, string, nft.Elem)) {
	if len(elements) == 0 {
		return
	}
	t, name, l := table(s.family), s.set.name(), s.set.layout(s.family)
	for i := range elements {
		put(t, name, elements[i].encode(l))
	}
}

// commit makes the plan part of the mirror.
func (p *plan) commit() {
	for name, a := range p.services {
		if a.record == nil {
			delete(p.m.services, name)
		} else {
			p.m.services[name] = a
		}
	}
	for k, d := range p.refs {
		if n := p.m.refs[k] + d; n == 0 {
			delete(p.m.refs, k)
		} else {
			p.m.refs[k] = n
		}
	}
	p.m.nodePorts, p.m.node, p.m.shape = p.nodePorts, p.node, p.shape
}
