package ruleset

import (
	"iter"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// Plan is a set of changes to the tables, worked out before the kernel is touched. It is written into one batch, or divided if the kernel
// has no room for the batch. Once carried out, it becomes part of the mirror. The plans of a mirror are carried out one by one, and each
// commit invalidates the plans that were made before it.
type Plan struct {
	settings *Settings
	// previous is the mirror that the plan begins with, and m the one that it becomes part of: another one if all is compared.
	previous, m *Mirror

	services  map[state.ServiceName]applied // new values; a nil record is a removal
	refs      map[sharedKey]int32           // changes of the counts
	pings     map[elementKey]int32          // likewise, nil if there are none
	numbers   map[uint32]bool               // true if taken now, false if free again
	slots     apportion.Room                // changes of the counts
	nodePorts []netip.Addr
	node      *state.Node
	shape     shape

	tables []tablePlan
	// lengthens is set if ranges of addresses, or blocks of ports, have lengths that the rules of a table do not ask for yet.
	lengthens bool
	sets      map[tableSet]*setPlan
	order     []*setPlan // the values of sets, in the order in which they were needed
	// kept are elements that are preserved.
	kept []element

	old, new renderer
	index    map[elementKey]int
}

type tableSet struct {
	family state.Family
	set    setID
}

type setPlan struct {
	tableSet
	flush    bool // deletes all that the set holds
	del, add elements
}

// elements are the elements of one set, in order. A first plan has a hundred thousand, so the list grows without being copied. It has
// of each element only its key and data, in the lengths of the set.
type elements struct {
	layout layout
	parts  [][]byte
	n      int
}

// The first part of a list is short, because most changes are; each later one has room for twice as many, up to a bound.
const shortestPart, longestPart = 4, 1024

func (l *elements) append(e *element) {
	last := len(l.parts) - 1
	if last < 0 || len(l.parts[last]) == cap(l.parts[last]) {
		room := shortestPart
		if last >= 0 {
			room = min(2*cap(l.parts[last])/l.layout.size(), longestPart)
		}
		l.parts = append(l.parts, make([]byte, 0, room*l.layout.size()))
		last++
	}
	l.parts[last] = append(append(l.parts[last], e.key[:l.layout.key]...), e.data[:l.layout.data]...)
	l.n++
}

// clear empties the list.
func (l *elements) clear() { *l = elements{layout: l.layout} }

// encoded yields the elements as they go to the kernel. They refer to the list.
func (l *elements) encoded() iter.Seq[nft.Elem] {
	return func(yield func(nft.Elem) bool) {
		for _, part := range l.parts {
			for ; len(part) > 0; part = part[l.layout.size():] {
				e := nft.Elem{Key: part[:l.layout.key]}
				if l.layout.data > 0 {
					e.Data = part[l.layout.key:l.layout.size()]
				}
				if !yield(e) {
					return
				}
			}
		}
	}
}

// all yields the elements.
func (s *setPlan) all(l *elements) iter.Seq[element] {
	return func(yield func(element) bool) {
		for e := range l.encoded() {
			if !yield(decode(s.family, s.set, e)) {
				return
			}
		}
	}
}

func newPlan(s *Settings, previous, m *Mirror) *Plan {
	p := &Plan{
		settings: s, previous: previous, m: m, services: map[state.ServiceName]applied{}, refs: map[sharedKey]int32{}, numbers: map[uint32]bool{},
		slots: apportion.Room{}, nodePorts: m.nodePorts, node: m.node, shape: m.shape.clone(), sets: map[tableSet]*setPlan{}, index: map[elementKey]int{},
	}
	p.shape.counted, p.shape.edge = s.Counters, s.Edge != 0
	p.old = renderer{settings: s, shape: &m.shape}
	p.new = renderer{settings: s, shape: &p.shape}
	return p
}

func (p *Plan) set(f state.Family, id setID) *setPlan {
	ts := tableSet{f, id}
	s := p.sets[ts]
	if s == nil {
		l := id.layout(f)
		s = &setPlan{tableSet: ts, del: elements{layout: l}, add: elements{layout: l}}
		p.sets[ts] = s
		p.order = append(p.order, s)
		isNew := p.shape.needs(f, id)
		p.lengthens = p.lengthens || isNew && id.kind.isByLength()
	}
	return s
}

func (p *Plan) add(e element) {
	s := p.set(e.family, e.set)
	s.add.append(&e)
}

func (p *Plan) del(e element) {
	s := p.set(e.family, e.set)
	s.del.append(&e)
}

// Change plans the way from the mirror to the state after u, which is not full and concerns nothing that is preserved. NodePorts are
// served on nodePorts, which are sorted.
func (m *Mirror) Change(s *Settings, u *state.Update, nodePorts []netip.Addr) *Plan {
	p := newPlan(s, m, m)
	p.update(u)
	p.eject()
	p.retry()
	p.finalize(nodePorts)
	p.grow()
	return p
}

// update plans the elements of the services that have changed.
func (p *Plan) update(u *state.Update) {
	for _, name := range u.Removed {
		p.replace(name, nil)
	}
	for _, s := range u.Changed {
		p.replace(s.Name, s)
	}
	p.node = u.Node
}

// replace plans that a service is programmed as in s, or not at all if s is nil.
func (p *Plan) replace(name state.ServiceName, s *state.Service) {
	previous := p.m.services[name]
	var next applied
	if s != nil {
		next = p.lay(s, &previous, previous.numbers, previous.follow)
	} else {
		p.number(name, previous.numbers, nil)
		p.slots.Add(name.Namespace, -previous.slots)
	}
	p.renderChange(&previous, &next)
	p.services[name] = next
	p.diff()
	p.diffLists()
	p.diffTables()
	for _, k := range p.old.shared {
		p.refs[k]--
	}
	for _, k := range p.new.shared {
		p.refs[k]++
	}
	p.countPings(p.old.pings, -1)
	p.countPings(p.new.pings, 1)
}

// diff plans the way from the elements in p.old to those in p.new.
func (p *Plan) diff() {
	was, now := trimSame(p.old.own, p.new.own)
	clear(p.index)
	for i := range was {
		p.index[was[i].id()] = i
	}
	for i := range now {
		e := &now[i]
		if j, ok := p.index[e.id()]; ok {
			delete(p.index, e.id())
			if was[j].data == e.data {
				continue
			}
			p.del(was[j])
		}
		p.add(*e)
	}
	for i := range was { // in order, so that the same change makes the same batch
		if j, ok := p.index[was[i].id()]; ok && i == j {
			p.del(was[i])
		}
	}
}

// trimSame takes off what both lists begin and end with. In a large service, a change is about a small part.
func trimSame(a, b []element) (restA, restB []element) {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	a, b = a[n:], b[n:]
	n = 0
	for n < len(a) && n < len(b) && a[len(a)-1-n] == b[len(b)-1-n] {
		n++
	}
	return a[:len(a)-n], b[:len(b)-n]
}

// diffLists plans the way from the lists in p.old to those in p.new.
func (p *Plan) diffLists() {
	if len(p.old.lists)+len(p.new.lists) == 0 {
		return
	}
	previous := map[uint32]*allowedList{}
	for i := range p.old.lists {
		previous[p.old.lists[i].number] = &p.old.lists[i]
	}
	for i := range p.new.lists {
		l := &p.new.lists[i]
		if was := previous[l.number]; was != nil {
			delete(previous, l.number)
			p.diffList(l, was.sources, l.sources)
			continue
		}
		p.diffList(l, nil, l.sources)
	}
	for i := range p.old.lists { // in order, so that the same change makes the same batch
		if l := &p.old.lists[i]; previous[l.number] == l {
			p.diffList(l, l.sources, nil)
		}
	}
}

// diffList plans the way from one sorted list of ranges to another. A change of a long list takes little more than going along it, once.
func (p *Plan) diffList(l *allowedList, from, to []netip.Prefix) {
	if SameMemory(from, to) {
		return
	}
	for {
		same := 0
		for same < len(from) && same < len(to) && from[same] == to[same] {
			same++
		}
		from, to = from[same:], to[same:]
		switch {
		case len(from) == 0 && len(to) == 0:
			return
		case len(to) == 0 || len(from) > 0 && from[0].Compare(to[0]) < 0:
			p.del(l.element(from[0]))
			from = from[1:]
		default:
			p.add(l.element(to[0]))
			to = to[1:]
		}
	}
}

// finalize plans the elements that depend on the whole of the update.
func (p *Plan) finalize(nodePorts []netip.Addr) {
	changeUsers(p, p.m.refs, p.refs, sharedKey.compare)
	changeUsers(p, p.m.pings, p.pings, elementKey.compare)
	if SameMemory(nodePorts, p.m.nodePorts) {
		return // as nearly always; a node may have many addresses
	}
	p.serveOn(nodePorts)
	was, is := nodePortElements(p.m.nodePorts), nodePortElements(nodePorts)
	had, has := elementSet(was), elementSet(is)
	for _, e := range was {
		if !has[e] {
			p.del(e)
		}
	}
	for _, e := range is {
		if !had[e] {
			p.add(e)
		}
	}
}

func elementSet(elements []element) map[element]bool {
	set := make(map[element]bool, len(elements))
	for _, e := range elements {
		set[e] = true
	}
	return set
}

// nodePortElements returns the elements that there are because NodePorts are served on some addresses. Among them ::1 is one where nothing is translated.
func nodePortElements(addrs []netip.Addr) (elements []element) {
	var loopback [2]bool
	for _, a := range addrs {
		f := state.FamilyOf(a)
		loopback[index(f)] = loopback[index(f)] || a.IsLoopback()
		if a != netip.IPv6Loopback() {
			elements = append(elements, newSharedKey(nodePortIPs, a).element())
		}
	}
	for _, f := range families {
		if loopback[index(f)] {
			for _, p := range protocols {
				elements = append(elements, localReject(f, p))
			}
		}
	}
	return elements
}

// localReject is the element that counts connections refused on loopback addresses.
func localReject(f state.Family, p state.Protocol) element {
	e := element{family: f, set: setID{kind: localRejects}}
	w := writer{buf: e.key[:]}
	w.proto(p)
	return e
}

// serveOn takes down the addresses that serve NodePorts.
func (p *Plan) serveOn(nodePorts []netip.Addr) {
	p.nodePorts = nodePorts
	p.shape.loopback = p.shape.loopback || slices.ContainsFunc(nodePorts, loopbackRange.Contains)
}

// grow plans the changes of the skeleton from the mirror's shape and node to the plan's.
func (p *Plan) grow() {
	if p.shape.equal(&p.m.shape) && p.node.Equal(p.m.node) {
		return
	}
	for _, f := range families {
		was := skeleton{p.settings, f, &p.m.shape, p.m.node}
		sets := map[string]bool{}
		for _, id := range setIDs(f, &p.m.shape) {
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
func (p *Plan) skeleton(f state.Family, hasSet func(*nft.Set) bool, hasChain func(*nft.Chain) (exists, same bool)) {
	t := tablePlan{table: table(f)}
	for _, s := range p.settings.sets(f, &p.shape) {
		if !hasSet(&s) {
			t.sets = append(t.sets, s)
		}
	}
	sk := skeleton{p.settings, f, &p.shape, p.node}
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

// WriteAhead puts into a batch what has to be committed before the rest: the rules for new prefix lengths of the firewall, and of ranges. Write leaves
// these rules out afterwards. A packet stays with the rules that it has met first, but sees elements at once. Without the rule, it
// would miss a range that allows it.
func (p *Plan) WriteAhead(b *nft.Batch) {
	if !p.lengthens {
		return
	}
	p.tables = slices.DeleteFunc(p.tables, func(t tablePlan) bool {
		changes := len(t.flush) > 0 // else there was no such table
		if changes {
			t.write(b, p.settings.TableFlags)
		}
		return changes
	})
}

// FillNew carries out the part of the plan that no packet meets: new tables without the chains that hooks call. When the batch reaches so
// many bytes, FillNew calls commit, which commits and empties the batch. Afterwards Write has the rest, including those chains. After an
// error the plan is as before, and DropNew must drop the committed part.
//
// The kernel grows the hash table of a set in the background. One transaction adds elements faster than the table grows, and looks for each
// element in all tables that the set will move to. Rules come before elements. For each chain with a rule that looks up in a map, the
// kernel walks the whole map.
func (p *Plan) FillNew(b *nft.Batch, bytes int, commit func() error) error {
	fills := func(s *setPlan) bool {
		return slices.ContainsFunc(p.tables, func(t tablePlan) bool { return t.isNew && t.table == table(s.family) })
	}
	for i := range p.tables {
		if t := &p.tables[i]; t.isNew {
			t.writeSets(b, p.settings.TableFlags)
			t.writeChains(b, isCalled)
		}
	}
	for _, s := range p.order {
		if !fills(s) {
			continue
		}
		t, name := table(s.family), s.set.name()
		for e := range s.add.encoded() {
			b.AddElem(t, name, e)
			if b.Size() < bytes {
				continue
			}
			if err := commit(); err != nil {
				return err
			}
		}
	}
	if b.Len() > 0 {
		if err := commit(); err != nil {
			return err
		}
	}
	for _, s := range p.order {
		if fills(s) {
			s.add.clear()
		}
	}
	for i := range p.tables {
		if t := &p.tables[i]; t.isNew {
			t.replace, t.sets, t.chains = nil, nil, slices.DeleteFunc(t.chains, isCalled)
		}
	}
	return nil
}

// NewSize returns about how many bytes a batch with all that is new to the kernel's tables has that FillNew fills.
func (p *Plan) NewSize() (bytes int) {
	for _, s := range p.order {
		if slices.ContainsFunc(p.tables, func(t tablePlan) bool { return t.isNew && t.table == table(s.family) }) {
			bytes += s.size()
		}
	}
	return bytes
}

// DropNew puts into a batch that the tables of FillNew are deleted, whether they are there or not. The plan begins without them then.
func (p *Plan) DropNew(b *nft.Batch) {
	for i := range p.tables {
		if t := &p.tables[i]; t.isNew {
			b.AddTableAs(t.table, p.settings.TableFlags)
			b.DeleteTable(t.table)
			t.replace = nil
		}
	}
}

// Write puts the plan into a batch. Sets and chains come before what refers to them, deletions before additions, because an
// element may replace another with the same key.
func (p *Plan) Write(b *nft.Batch) {
	for i := range p.tables {
		p.tables[i].write(b, p.settings.TableFlags)
	}
	size := 0
	for _, s := range p.order {
		size += s.size()
	}
	b.Grow(size)
	for _, s := range p.order {
		if s.flush {
			b.FlushSet(table(s.family), s.set.name())
		}
		s.write(b, &s.del, b.DeleteElem)
	}
	for _, s := range p.order {
		s.write(b, &s.add, b.AddElem)
	}
}

// size returns about how many bytes of a batch the elements take.
func (s *setPlan) size() int {
	return (s.del.n + s.add.n) * (s.add.layout.size() + nft.ElemOverhead)
}

func (s *setPlan) write(b *nft.Batch, elements *elements, put func(nft.Table, string, nft.Elem)) {
	t, name := table(s.family), s.set.name()
	for e := range elements.encoded() {
		put(t, name, e)
	}
}

// Changed yields what services were and are to be, nil if they were not there or are to go, in any order. It leaves out those whose record stays. After [Mirror.Compare], services
// that the mirror did not know are left out.
func (p *Plan) Changed() iter.Seq2[*state.Service, *state.Service] {
	return func(yield func(was, is *state.Service) bool) {
		if p.previous == p.m {
			for name, a := range p.services {
				before := p.m.services[name]
				// Shares that move concern no flow.
				if was, is := before.desired(), a.desired(); was != is && !yield(was, is) {
					return
				}
			}
			return
		}
		for name, a := range p.previous.services {
			next := p.services[name]
			was, is := a.desired(), next.desired()
			if p.m.Preserved.Lost[name] != nil {
				is = p.m.Preserved.Services[name]
			}
			if is != was && !yield(was, is) {
				return
			}
		}
	}
}

// Node returns the node of the state.
func (p *Plan) Node() *state.Node { return p.node }

// ForgetsClients reports whether a table is replaced with all that it remembers of clients with affinity.
func (p *Plan) ForgetsClients() bool {
	return len(p.shape.timeouts) > 0 && slices.ContainsFunc(p.tables, func(t tablePlan) bool { return t.replace != nil && !slices.Contains(t.keeps, AffinitySet()) })
}

// Commit notes that the plan was carried out, and returns the mirror that shows it: after [Mirror.Change] the same one.
func (p *Plan) Commit() *Mirror {
	p.commitSlots()
	if len(p.m.services)+len(p.m.refs) == 0 { // as when all was compared
		p.m.services, p.services = p.services, p.m.services
		p.m.refs, p.refs = p.refs, p.m.refs
		maps.DeleteFunc(p.m.services, func(_ state.ServiceName, a applied) bool { return a.record == nil })
		maps.DeleteFunc(p.m.refs, func(_ sharedKey, n int32) bool { return n == 0 })
	}
	for name, a := range p.services {
		if a.record == nil {
			delete(p.m.services, name)
		} else {
			p.m.services[name] = a
		}
	}
	commitUsers(&p.m.refs, p.refs)
	commitUsers(&p.m.pings, p.pings)
	for n, taken := range p.numbers {
		if taken {
			p.m.numbers[n] = struct{}{}
		} else {
			delete(p.m.numbers, n)
		}
	}
	p.m.nodePorts, p.m.node, p.m.shape, p.m.ejected = p.nodePorts, p.node, p.shape, p.settings.Ejected
	return p.m
}
