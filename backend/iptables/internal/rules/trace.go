package rules

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// Packet is the first one of a connection.
type Packet struct {
	Protocol state.Protocol
	Dst      netip.AddrPort
	// Src is not valid if it is not known.
	Src netip.Addr
	// FromPod and FromNode report whether the client is a pod or the node. At most one of them is set.
	FromPod, FromNode bool
	// ToNode reports whether Dst is an address of this node.
	ToNode bool
}

// Traced is what the tables do with a packet.
type Traced struct {
	// Verdict is Unused if they leave it alone.
	Verdict state.Verdict
	// Endpoints are those to which it may be translated, in order.
	Endpoints []netip.AddrPort
	// Objects are the chains that it may pass, and the sets in which it is found.
	Objects []string
}

// Trace follows a packet through the held chains of one family. A random choice or a remembered client may lead either way, so Trace
// follows both ways.
func (h *Held) Trace(f state.Family, p *Packet) Traced {
	t := tracer{held: &h.tables, family: f, packet: p}
	if t.leadsTo(NAT) {
		t.chain(NAT, chainServices)
	}
	if len(t.out.Endpoints) == 0 && t.leadsTo(Filter) {
		t.chain(Filter, chainFilter)
	}
	if len(t.out.Endpoints) > 0 {
		t.out.Verdict = state.Forward
	}
	slices.SortFunc(t.out.Endpoints, netip.AddrPort.Compare)
	t.out.Endpoints = slices.Compact(t.out.Endpoints)
	return t.out
}

type tracer struct {
	held   *heldTables
	family state.Family
	packet *Packet
	seen   map[string]bool // of out.Objects
	out    Traced
}

// leadsTo reports whether all jumps are there that lead from the built-in chains of a table to ours.
func (t *tracer) leadsTo(table Table) bool {
	return !slices.ContainsFunc((&Settings{}).jumps(t.family), func(j Jump) bool {
		return j.From.Table == table && !slices.Contains(t.held.jumps, j)
	})
}

// found notes an object.
func (t *tracer) found(object string) {
	if t.seen == nil {
		t.seen = map[string]bool{}
	}
	if !t.seen[object] {
		t.seen[object] = true
		t.out.Objects = append(t.out.Objects, object)
	}
}

// chain follows a packet through a chain and reports whether it ends in it.
func (t *tracer) chain(table Table, name string) (ends bool) {
	content, ok := t.held.chains[ChainID{table, name}]
	if !ok {
		return false
	}
	t.found("chain " + name + " of table " + string(table))
	for line := range strings.Lines(content) {
		r := parseRule(strings.TrimSuffix(line, "\n"))
		m := t.matches(&r)
		if m == no {
			continue
		}
		if ends := t.follow(table, &r); m == yes && (ends || r.isGoto || r.target == "RETURN") {
			return ends
		}
	}
	return false
}

// follow does what a rule says, and reports whether the packet ends there.
func (t *tracer) follow(table Table, r *rulespec) (ends bool) {
	switch r.target {
	case "DNAT":
		if to, err := netip.ParseAddrPort(r.to); err == nil {
			t.out.Endpoints = append(t.out.Endpoints, to)
		}
	case "DROP":
		t.out.Verdict = state.Drop
	case "REJECT":
		t.out.Verdict = state.Reject
	case "ACCEPT":
	default:
		return t.chain(table, r.target) // targets of the kernel, and of other programs, change nothing here
	}
	return true
}

// match is whether a rule matches.
type match int

const (
	no match = iota
	maybe
	yes
)

// matches reports whether a rule matches the packet. A foreign option that we do not know may match.
func (t *tracer) matches(r *rulespec) match {
	all := yes
	for _, o := range r.options {
		m := t.option(&o)
		if o.not {
			m = yes - m
		}
		all = min(all, m)
	}
	return all
}

func (t *tracer) option(o *option) match {
	p := t.packet
	switch o.name {
	case "-m": // the options that follow count
		return yes
	case "-d":
		return t.within(o.value(0), p.Dst.Addr())
	case "-s":
		if !p.Src.IsValid() {
			return is(p.FromPod)
		}
		return t.within(o.value(0), p.Src)
	case "-i":
		return is(p.FromPod) // no rule of ours names another interface
	case "-p":
		return is(o.value(0) == protocolName(p.Protocol))
	case "--dport":
		low, high, isRange := strings.Cut(o.value(0), ":")
		if !isRange {
			high = low
		}
		first, _ := strconv.Atoi(low)
		last, _ := strconv.Atoi(high)
		return is(first <= int(p.Dst.Port()) && int(p.Dst.Port()) <= last)
	case "--src-type":
		return is(p.FromNode)
	case "--dst-type":
		return is(p.ToNode)
	case "--ctstate":
		return is(o.value(0) == "NEW") // else it is for packets that are translated
	case "--match-set":
		return t.inSet(o.value(0), o.value(1))
	}
	return maybe
}

func is(b bool) match {
	if b {
		return yes
	}
	return no
}

func (t *tracer) within(prefix string, a netip.Addr) match {
	if addr, err := netip.ParseAddr(prefix); err == nil {
		return is(addr == a)
	}
	p, err := netip.ParsePrefix(prefix)
	if err != nil {
		return maybe
	}
	return is(p.Contains(a))
}

// inSet reports whether a set has the packet, by its source or its destination.
func (t *tracer) inSet(name, dimensions string) match {
	set := t.held.sets[name]
	if set == nil {
		return no
	}
	if isLearned(set.Set) {
		t.found("set " + name)
		return maybe
	}
	addr := t.packet.Dst.Addr()
	if dimension, _, _ := strings.Cut(dimensions, ","); dimension == "src" {
		addr = t.packet.Src
	}
	hasPort := set.Type == ipset.IPPort || set.Type == ipset.NetPort
	for e := range set.elements {
		if e.Prefix.Contains(addr) && (!hasPort || e.Protocol == t.packet.Protocol && e.Port == t.packet.Dst.Port()) {
			t.found("set " + name)
			return yes
		}
	}
	return no
}

// rulespec is a rule as iptables-save shows it.
type rulespec struct {
	options []option // the matches
	target  string
	isGoto  bool
	to      string // where DNAT leads
}

type option struct {
	not    bool
	name   string
	values []string
}

func (o *option) value(i int) string {
	if i < len(o.values) {
		return o.values[i]
	}
	return ""
}

// parseRule takes a rule apart. Behind the target are the options of the target.
func parseRule(text string) (r rulespec) {
	not := false
	for word := range strings.FieldsSeq(text) {
		switch {
		case word == "!":
			not = true
		case strings.HasPrefix(word, "-"):
			r.options = append(r.options, option{not: not, name: word})
			not = false
		case len(r.options) > 0:
			last := &r.options[len(r.options)-1]
			last.values = append(last.values, word)
		}
	}
	for i, o := range r.options {
		if o.name != "-j" && o.name != "-g" {
			continue
		}
		r.target, r.isGoto = o.value(0), o.name == "-g"
		for _, o := range r.options[i+1:] {
			if o.name == "--to-destination" {
				r.to = o.value(0)
			}
		}
		r.options = r.options[:i]
		break
	}
	return r
}
