package rules

import (
	"fmt"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
)

// Held is what the kernel holds of one family, as far as it is ours.
type Held struct{ tables heldTables }

// NewHeld returns a Held of nothing.
func NewHeld() *Held {
	return &Held{heldTables{chains: map[ChainID]string{}, referenced: map[ChainID]int{}, sets: map[string]*heldSet{}}}
}

// AddTable adds what iptables-save says of a table.
func (h *Held) AddTable(t Table, save string) error {
	rules := map[string]*strings.Builder{}
	for line := range strings.Lines(save) {
		line = strings.TrimSuffix(line, "\n")
		if name, ok := strings.CutPrefix(line, ":"); ok {
			if name, _, _ = strings.Cut(name, " "); IsOurs(name) {
				rules[name] = &strings.Builder{}
			}
			continue
		}
		line, ok := strings.CutPrefix(line, "-A ")
		if !ok {
			continue // a comment, or the beginning or end of the table
		}
		name, rule, _ := strings.Cut(line, " ")
		if !IsOurs(name) {
			h.addForeign(ChainID{t, name}, rule)
			continue
		}
		b := rules[name]
		if b == nil {
			return fmt.Errorf("table %s has a rule in chain %s, which it does not list", t, name)
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(rule)
	}
	for name, b := range rules {
		h.tables.chains[ChainID{t, name}] = b.String()
	}
	return nil
}

// addForeign takes a rule of a chain that is not ours. It is ours, if it leads from a built-in chain to one of those where ours begin.
// Of any other rule, only its references to our chains count.
func (h *Held) addForeign(from ChainID, rule string) {
	switch target := target(rule); target {
	case "":
	case chainServices, chainPostrouting, chainFilter, chainInvalid, chainLoopback:
		if isBuiltIn(from.Name) {
			h.tables.jumps = append(h.tables.jumps, Jump{from, rule})
			return
		}
		fallthrough
	default:
		h.tables.referenced[ChainID{from.Table, target}]++
	}
}

// target returns which of our chains a rule leads to, "" if it is none.
func target(rule string) (chain string) {
	for _, option := range []string{"-j " + Prefix, "-g " + Prefix} {
		if i := strings.LastIndex(rule, option); i >= 0 {
			chain, _, _ = strings.Cut(strings.TrimSuffix(rule[i+len("-j "):], "\n"), " ")
		}
	}
	return chain
}

func isBuiltIn(chain string) bool {
	switch chain {
	case "PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING":
		return true
	}
	return false
}

// AddSet adds a set with its elements. The elements of sets that are filled by rules need not be read.
func (h *Held) AddSet(s ipset.Set, elements []ipset.Element) {
	held := &heldSet{Set: s, elements: map[ipset.Element]bool{}}
	for _, e := range elements {
		held.elements[e] = true
	}
	h.tables.sets[s.Name] = held
}

// Misfit returns a set that has the name of one of ours and is another one.
func (t *Tables) Misfit() (have, want ipset.Set, ok bool) {
	for name, want := range t.sets {
		if have := t.held.sets[name]; have != nil && !have.Fits(want.Set) {
			return have.Set, want.Set, true
		}
	}
	return ipset.Set{}, ipset.Set{}, false
}

// Read takes what the kernel holds, so that the next plan compares everything with it.
func (t *Tables) Read(h *Held) {
	t.held = h.tables
	t.Doubt()
}

// IsEmpty reports whether the kernel holds nothing of ours.
func (h *Held) IsEmpty() bool {
	return len(h.tables.chains)+len(h.tables.jumps)+len(h.tables.sets) == 0
}

// Clear returns the plan after which the kernel holds nothing of ours, except empty chains to which other programs' rules lead.
func (h *Held) Clear() *Plan {
	t := &Tables{settings: &Settings{}, chains: map[ChainID]string{}, sets: map[string]*set{}, held: h.tables}
	p := &Plan{tables: t}
	for id := range h.tables.chains {
		p.chains = append(p.chains, id)
	}
	for name := range h.tables.sets {
		p.Destroy = append(p.Destroy, name)
	}
	p.Restore = t.restore(clearing, p.chains, nil, h.tables.jumps)
	p.Written = len(p.chains) + len(p.Destroy) + len(h.tables.jumps)
	return p
}

// ListsTable reports whether the output of iptables-save for all tables has one of them.
func ListsTable(save string, t Table) bool {
	return strings.HasPrefix(save, "*"+string(t)+"\n") || strings.Contains(save, "\n*"+string(t)+"\n")
}

// GuardsLoopback reports whether NodePorts are served on loopback addresses.
func (h *Held) GuardsLoopback() bool {
	_, ok := h.tables.chains[ChainID{Raw, chainLoopback}]
	return ok
}
