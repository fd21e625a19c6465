package rules

import (
	"iter"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// ChainID is a chain of a table.
type ChainID struct {
	Table Table
	Name  string
}

// Tables are the chains and sets of one family.
type Tables struct {
	family   state.Family
	settings *Settings
	services map[state.ServiceName]*state.Service
	trees    [treeCount]*tree

	// chains are desired, each with its rules, one a line, as iptables-save shows them.
	chains map[ChainID]string
	sets   map[string]*set
	// rules counts those that are desired.
	rules map[Table]int
	// pings is how many Services have addresses that answer echo requests.
	pings int

	held heldTables
	// doubtful are the chains and sets whose desired and held contents may differ. If all is set, they all may differ.
	doubtful struct {
		all    bool
		chains map[ChainID]bool
		sets   map[string]map[ipset.Element]bool
	}
}

// set is a desired set. Of those that the kernel fills, elements do not count.
type set struct {
	ipset.Set
	users    int
	elements map[ipset.Element]int // how often each is needed
}

// isLearned reports whether a set is filled by rules.
func isLearned(s ipset.Set) bool { return s.Timeout > 0 }

// heldTables are what the kernel holds of ours.
type heldTables struct {
	chains map[ChainID]string
	// referenced are chains of ours to which other programs' rules lead, with how many: they cannot be deleted.
	referenced map[ChainID]int
	jumps      []Jump
	sets       map[string]*heldSet
	// uses are what ChainUses returns, nil if chains have changed since.
	uses map[ChainID]int
}

type heldSet struct {
	ipset.Set
	elements map[ipset.Element]bool
}

// New returns the tables of a family without Services. The contents of the kernel are unknown.
func New(f state.Family, s *Settings) *Tables {
	address := 32
	if f == state.IPv6 {
		address = 128
	}
	t := &Tables{
		family: f, settings: s, services: map[state.ServiceName]*state.Service{}, chains: map[ChainID]string{}, sets: map[string]*set{},
		rules: map[Table]int{},
		trees: [treeCount]*tree{
			treeAddresses: newTree(rootAddresses, f, address), treeNodePorts: newTree(rootNodePorts, f, 0),
			treeRejectAddresses: newTree(rootRejectAddresses, f, address), treeRejectNodePorts: newTree(rootRejectNodePorts, f, 0),
		},
	}
	t.held = NewHeld().tables
	t.doubtful.all = true
	t.forget()
	for _, s := range sharedSets(f) {
		t.sets[s.Name] = &set{Set: s, users: 1, elements: map[ipset.Element]int{}}
	}
	if s.Counters {
		t.countIn(true)
	}
	t.fixed(s, 1)
	t.grow()
	return t
}

// forget clears the doubtful chains and sets, but leaves doubtful.all.
func (t *Tables) forget() {
	t.doubtful.chains, t.doubtful.sets = map[ChainID]bool{}, map[string]map[ipset.Element]bool{}
}

// Configure changes the settings.
func (t *Tables) Configure(s *Settings) {
	if s.Equal(t.settings) {
		return
	}
	services := maps.Clone(t.services)
	same := *s
	same.ServiceCIDRs, same.NodePorts, same.DropInvalid = t.settings.ServiceCIDRs, t.settings.NodePorts, t.settings.DropInvalid
	same.Answerers = t.settings.Answerers
	rerender := !same.Equal(t.settings) // else no Service's rules depend on what differs
	if rerender {
		for _, svc := range services {
			t.remove(svc)
		}
	}
	t.fixed(t.settings, -1)
	if s.Counters != t.settings.Counters {
		t.countIn(s.Counters)
	}
	t.settings = s
	t.fixed(s, 1)
	if rerender {
		for _, svc := range services {
			t.add(svc)
		}
	}
	t.grow()
}

// fixed adds or removes the content that does not depend on Services.
func (t *Tables) fixed(s *Settings, n int) {
	for id, content := range s.fixedChains(t.family, t.pings > 0) {
		t.setChain(id, content, n > 0)
	}
	for _, half := range halves(t.family) {
		t.need(setName(t.family, setInvalid), ipset.Element{Prefix: half}, n)
	}
	addresses := setName(t.family, setNodeAddresses)
	for _, a := range s.NodePorts {
		if state.FamilyOf(a) == t.family {
			t.need(addresses, ipset.Addr(a), n)
		}
	}
}

// Change replaces the records of Services, all at once: a frontend may move from one to another. A nil record is one that is gone.
func (t *Tables) Change(services map[state.ServiceName]*state.Service) {
	for name := range services {
		if old := t.services[name]; old != nil {
			t.remove(old)
		}
	}
	for _, svc := range services {
		if svc != nil {
			t.add(svc)
		}
	}
	t.grow()
}

func (t *Tables) remove(svc *state.Service) {
	delete(t.services, svc.Name)
	p := t.settings.render(svc, t.family)
	for id := range p.chains {
		t.setChain(id, "", false)
	}
	for _, s := range p.sets {
		old := t.sets[s.Name]
		for _, e := range s.elements {
			t.need(s.Name, e, -1)
		}
		if old.users--; old.users == 0 {
			delete(t.sets, s.Name)
		}
		t.doubt(s.Name)
	}
	for _, e := range p.elements {
		t.need(e.set, e.Element, -1)
	}
	for _, l := range p.leaves {
		t.trees[l.tree].delete(l.key)
	}
	t.countPings(p, -1)
}

func (t *Tables) add(svc *state.Service) {
	t.services[svc.Name] = svc
	p := t.settings.render(svc, t.family)
	t.countPings(p, 1)
	for id, content := range p.chains {
		t.setChain(id, content, true)
	}
	for _, s := range p.sets {
		own := t.sets[s.Name]
		if own == nil {
			own = &set{Set: s.Set, elements: map[ipset.Element]int{}}
			t.sets[s.Name] = own
		}
		own.users++
		t.doubt(s.Name)
		for _, e := range s.elements {
			t.need(s.Name, e, 1)
		}
	}
	for _, e := range p.elements {
		t.need(e.set, e.Element, 1)
	}
	for _, l := range p.leaves {
		t.trees[l.tree].set(l.key, l.rule)
	}
}

// grow brings the chains of the trees up to date.
func (t *Tables) grow() {
	for i, tree := range t.trees {
		table := NAT
		if treeID(i) == treeRejectAddresses || treeID(i) == treeRejectNodePorts {
			table = Filter
		}
		tree.update(
			func(chain, content string) { t.setChain(ChainID{table, chain}, content, true) },
			func(chain string) { t.setChain(ChainID{table, chain}, "", false) })
	}
}

func (t *Tables) setChain(id ChainID, content string, exists bool) {
	t.rules[id.Table] -= count(t.chains[id])
	if exists {
		t.rules[id.Table] += count(content)
		t.chains[id] = content
	} else {
		delete(t.chains, id)
	}
	t.doubtful.chains[id] = true
}

// count returns how many rules a chain has.
func count(content string) int {
	if content == "" {
		return 0
	}
	return 1 + strings.Count(content, "\n")
}

// need changes how often an element is needed.
func (t *Tables) need(name string, e ipset.Element, n int) {
	s := t.sets[name]
	if s.elements[e] += n; s.elements[e] == 0 {
		delete(s.elements, e)
	}
	t.doubt(name)[e] = true
}

// doubt has a set compared, and returns which of its elements are.
func (t *Tables) doubt(name string) map[ipset.Element]bool {
	if t.doubtful.sets[name] == nil {
		t.doubtful.sets[name] = map[ipset.Element]bool{}
	}
	return t.doubtful.sets[name]
}

// Doubt has everything compared by the next plan, which must follow a [Tables.Read].
func (t *Tables) Doubt() { t.doubtful.all = true }

// Settings returns the settings.
func (t *Tables) Settings() *Settings { return t.settings }

// Service returns the record of a Service, nil if there is none.
func (t *Tables) Service(name state.ServiceName) *state.Service { return t.services[name] }

// Uses reports whether a Service has a set of its own, or shares one, of this name.
func (t *Tables) Uses(svc *state.Service, set string) bool {
	return slices.ContainsFunc(t.settings.render(svc, t.family).sets, func(s ownSet) bool { return s.Name == set })
}

// Services are all records.
func (t *Tables) Services() iter.Seq[*state.Service] { return maps.Values(t.services) }

// Names yields the names of all services.
func (t *Tables) Names() iter.Seq[state.ServiceName] { return maps.Keys(t.services) }

// Tables returns the tables that are to be read: Raw only if it is used.
func (t *Tables) Tables() []Table {
	if t.family == state.IPv4 && t.settings.ServesLoopback() {
		return []Table{NAT, Filter, Raw}
	}
	return []Table{NAT, Filter}
}

// HeldTables returns the tables in which the kernel holds chains of ours, or is to: Raw only if it does.
func (t *Tables) HeldTables() []Table {
	if _, guards := t.held.chains[ChainID{Raw, chainLoopback}]; guards {
		return []Table{NAT, Filter, Raw}
	}
	return []Table{NAT, Filter}
}

// ChainUses returns the use count of each held chain of ours. Each rule in the chain counts once, and so does each rule that leads to the
// chain. If the kernel has the same counts, no chain, rule or jump of ours is missing, and none was added.
func (t *Tables) ChainUses() map[ChainID]int {
	h := &t.held
	if h.uses != nil {
		return h.uses
	}
	h.uses = make(map[ChainID]int, len(h.chains))
	for id, content := range h.chains {
		h.uses[id] += count(content) + h.referenced[id]
		for line := range strings.Lines(content) {
			if to := target(line); to != "" {
				h.uses[ChainID{id.Table, to}]++
			}
		}
	}
	for _, j := range h.jumps {
		h.uses[ChainID{j.From.Table, target(j.Rule)}]++
	}
	return h.uses
}

// Plan lists changes in the order in which they are made.
type Plan struct {
	Create []ipset.Set
	// Empty are sets of clients whose endpoint had gone, and is back.
	Empty []string
	Add   []Elements
	// Prepare are inputs of iptables-restore, one after the other: chains that nothing leads to before Restore, if they are many. In one piece,
	// the time that iptables takes grows much faster than they do, and so does its memory.
	Prepare []string
	// Restore is the input of iptables-restore, empty if no chain changes.
	Restore string
	Delete  []Elements
	// Destroy are sets that nothing needs. The kernel refuses it as long as it has not let go of the rules.
	Destroy []string
	// Written counts the chains, sets, elements and jumps that change.
	Written int
	// Rules are those that are written, by table.
	Rules map[Table]int

	tables *Tables
	chains []ChainID
	jumps  bool
}

// Elements are some of a set.
type Elements struct {
	Set      ipset.Set
	Elements []ipset.Element
}

// Plan returns the changes from the held content to the desired content.
func (t *Tables) Plan() *Plan {
	p := &Plan{tables: t}
	t.planSets(p)
	t.planChains(p)
	for _, list := range [][]Elements{p.Add, p.Delete} {
		for _, e := range list {
			p.Written += len(e.Elements)
		}
	}
	p.Written += len(p.Create) + len(p.Empty) + len(p.Destroy) + len(p.chains)
	p.Rules = map[Table]int{}
	for _, id := range p.chains {
		p.Rules[id.Table] += count(t.chains[id])
	}
	return p
}

// Rules returns how many rules a table is to have.
func (t *Tables) Rules(table Table) int { return t.rules[table] }

func (t *Tables) planSets(p *Plan) {
	names := slices.Collect(maps.Keys(t.doubtful.sets))
	if t.doubtful.all {
		names = slices.AppendSeq(slices.Collect(maps.Keys(t.sets)), maps.Keys(t.held.sets))
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		want, have := t.sets[name], t.held.sets[name]
		switch {
		case want == nil && have == nil:
		case want == nil:
			p.Destroy = append(p.Destroy, name)
		case have == nil:
			create := want.Set
			create.Size = uint32(len(want.elements))
			p.Create = append(p.Create, create)
			if len(want.elements) > 0 {
				p.Add = append(p.Add, Elements{create, slices.Collect(maps.Keys(want.elements))})
			}
		case isLearned(want.Set):
			if t.lapsed(name) {
				p.Empty = append(p.Empty, name)
			}
		default:
			add, remove := Elements{Set: want.Set}, Elements{Set: want.Set}
			compare := func(e ipset.Element) {
				switch {
				case want.elements[e] > 0 && !have.elements[e]:
					add.Elements = append(add.Elements, e)
				case want.elements[e] == 0 && have.elements[e]:
					remove.Elements = append(remove.Elements, e)
				}
			}
			if t.doubtful.all {
				for e := range want.elements {
					compare(e)
				}
				for e := range have.elements {
					if want.elements[e] == 0 {
						compare(e)
					}
				}
			} else {
				for e := range t.doubtful.sets[name] {
					compare(e)
				}
			}
			if len(add.Elements) > 0 {
				p.Add = append(p.Add, add)
			}
			if len(remove.Elements) > 0 {
				p.Delete = append(p.Delete, remove)
			}
		}
	}
}

// lapsed reports whether a set is of an endpoint that had gone: there are rules, and none of them leads to it. A process that ended before it could
// destroy the set, or the kernel, which had not let go of it, has left it. Its clients may have another endpoint by now.
func (t *Tables) lapsed(set string) bool {
	_, has := t.held.chains[ChainID{NAT, chainServices}]
	_, leads := t.held.chains[ChainID{NAT, endpointPrefix + strings.TrimPrefix(set, setName(t.family, clientsPrefix))}]
	return has && !leads
}

func (t *Tables) planChains(p *Plan) {
	doubtful := maps.Keys(t.doubtful.chains)
	if t.doubtful.all {
		all := map[ChainID]bool{}
		for id := range t.chains {
			all[id] = true
		}
		for id := range t.held.chains {
			all[id] = true
		}
		doubtful = maps.Keys(all)
	}
	for id := range doubtful {
		want, wanted := t.chains[id]
		have, exists := t.held.chains[id]
		if wanted != exists || want != have {
			if !wanted && have == "" && t.held.referenced[id] > 0 {
				continue // another program's rule leads there, and it is empty already
			}
			p.chains = append(p.chains, id)
		}
	}
	slices.SortFunc(p.chains, func(a, b ChainID) int { return strings.Compare(a.Name, b.Name) })
	wantJumps := t.settings.jumps(t.family)
	inserts, deletes := jumpsToChange(wantJumps, t.held.jumps)
	p.jumps = len(inserts)+len(deletes) > 0
	p.Written += len(inserts) + len(deletes)
	rest := p.chains
	if fresh := t.fresh(p.chains); len(fresh) > 0 {
		p.Prepare = t.prepare(fresh)
		rest = slices.DeleteFunc(slices.Clone(p.chains), t.isFresh)
	}
	p.Restore = t.restore(changing, rest, inserts, deletes)
}

// maxPart is how many rules iptables-restore gets at once, as far as they can be written in parts: about half a second's work.
const maxPart = 10_000

// isFresh reports whether the kernel does not have a desired chain.
func (t *Tables) isFresh(id ChainID) bool {
	_, wanted := t.chains[id]
	_, exists := t.held.chains[id]
	return wanted && !exists
}

// fresh returns the chains that the kernel does not have, none if one part has room for all of them.
func (t *Tables) fresh(chains []ChainID) (fresh []ChainID) {
	rules := 0
	for _, id := range chains {
		if t.isFresh(id) {
			fresh = append(fresh, id)
			rules += 1 + count(t.chains[id])
		}
	}
	if rules <= maxPart {
		return nil
	}
	return fresh
}

// prepare writes the inputs of iptables-restore that make chains, in parts.
func (t *Tables) prepare(chains []ChainID) (parts []string) {
	for _, table := range changing {
		w := newChainWriter(t, chains, table)
		for !w.done() {
			var b strings.Builder
			b.WriteString("*" + string(table) + "\n")
			w.write(&b, maxPart)
			b.WriteString("COMMIT\n")
			parts = append(parts, b.String())
		}
	}
	return parts
}

// jumpsToChange returns the jumps that are missing, and those that are there twice or are none of those wanted.
func jumpsToChange(want, have []Jump) (inserts, deletes []Jump) {
	seen := map[Jump]bool{}
	for _, j := range have {
		if seen[j] || !slices.Contains(want, j) {
			deletes = append(deletes, j)
		}
		seen[j] = true
	}
	for _, j := range want {
		if !seen[j] {
			inserts = append(inserts, j)
		}
	}
	return inserts, deletes
}

// changing is the order in which tables change: translation first. The other tables ignore a translated packet. They drop a packet that is
// no longer translated until they have the reason. clearing reverses the order when everything is removed. A packet that is no longer
// translated may then belong to another dataplane, such as IPVS, and must not be dropped here.
var (
	changing = []Table{Raw, NAT, Filter}
	clearing = []Table{Filter, NAT, Raw}
)

// restore writes the input of iptables-restore. Each table changes in one transaction, in this order.
func (t *Tables) restore(order []Table, chains []ChainID, inserts, deletes []Jump) string {
	var b strings.Builder
	for _, table := range order {
		w := newChainWriter(t, chains, table)
		own := w.left
		ofTable := func(j Jump) bool { return j.From.Table == table }
		if len(own) == 0 && !slices.ContainsFunc(inserts, ofTable) && !slices.ContainsFunc(deletes, ofTable) {
			continue
		}
		b.Grow(t.restoredSize(own))
		b.WriteString("*" + string(table) + "\n")
		w.write(&b, math.MaxInt)
		for _, j := range deletes {
			if ofTable(j) {
				b.WriteString("-D " + j.From.Name + " " + j.Rule + "\n")
			}
		}
		for _, j := range inserts {
			if ofTable(j) {
				b.WriteString("-I " + j.From.Name + " 1 " + j.Rule + "\n")
			}
		}
		for _, id := range own {
			if _, wanted := t.chains[id]; !wanted && t.held.referenced[id] == 0 {
				b.WriteString("-X " + id.Name + "\n")
			}
		}
		b.WriteString("COMMIT\n")
	}
	return b.String()
}

// chainWriter writes chains of a table in reverse order of names, and declares each chain before a rule leads to it. For every line,
// iptables-nft-restore searches a sorted list of the chains so far, from the beginning. In reverse order, the search ends at the first
// name. Declaring 10,000 chains at the beginning takes twice the time.
type chainWriter struct {
	tables  *Tables
	left    []ChainID
	missing map[string]bool // those that are not declared yet
}

// newChainWriter returns a writer of the chains that are in a table.
func newChainWriter(t *Tables, chains []ChainID, table Table) *chainWriter {
	w := &chainWriter{tables: t, missing: map[string]bool{}}
	for _, id := range chains {
		if id.Table == table {
			w.left = append(w.left, id)
			w.missing[id.Name] = true
		}
	}
	return w
}

func (w *chainWriter) done() bool { return len(w.left) == 0 }

// write writes chains that are left, until they have so many rules.
func (w *chainWriter) write(b *strings.Builder, most int) {
	declare := func(name string) {
		if w.missing[name] {
			delete(w.missing, name)
			b.WriteString(":" + name + " - [0:0]\n") // makes it, or empties it
		}
	}
	for rules := 0; !w.done() && rules < most; rules++ {
		id := w.left[len(w.left)-1]
		w.left = w.left[:len(w.left)-1]
		declare(id.Name)
		for line := range strings.Lines(w.tables.chains[id]) {
			declare(target(line))
			b.WriteString("-A " + id.Name + " " + strings.TrimSuffix(line, "\n") + "\n")
			rules++
		}
	}
}

// restoredSize is about how long the input is that writes chains.
func (t *Tables) restoredSize(chains []ChainID) (size int) {
	for _, id := range chains {
		perLine := len("-A ") + len(id.Name) + 1
		size += 2*perLine + len(t.chains[id]) + count(t.chains[id])*perLine
	}
	return size
}

// Commit notes that the plan was carried out, but for the sets that could not be destroyed: the next plan has them again.
func (p *Plan) Commit(kept []string) {
	t := p.tables
	t.held.uses = nil
	for _, s := range p.Create {
		t.held.sets[s.Name] = &heldSet{Set: s, elements: map[ipset.Element]bool{}}
	}
	for _, add := range p.Add {
		for _, e := range add.Elements {
			t.held.sets[add.Set.Name].elements[e] = true
		}
	}
	for _, id := range p.chains {
		content, wanted := t.chains[id]
		if wanted || t.held.referenced[id] > 0 {
			t.held.chains[id] = content
		} else {
			delete(t.held.chains, id)
		}
	}
	if p.jumps {
		t.held.jumps = t.settings.jumps(t.family)
	}
	for _, remove := range p.Delete {
		for _, e := range remove.Elements {
			delete(t.held.sets[remove.Set.Name].elements, e)
		}
	}
	t.doubtful.all = false
	t.forget()
	for _, name := range p.Destroy {
		if slices.Contains(kept, name) {
			t.doubt(name)
		} else {
			delete(t.held.sets, name)
		}
	}
}
