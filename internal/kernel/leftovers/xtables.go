package leftovers

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// A table of iptables-legacy is one block of entries, one behind the other. The block of a table with one chain of its own:
//
//	rules of PREROUTING, its policy; ...; rules of POSTROUTING, its policy
//	head with the chain's name, its rules, foot (a RETURN)
//	terminator
//
// Jumps are offsets into the block, and a rule without a target "jumps" to the next entry. So after entries are
// removed, all offsets must be computed again. The formats are in include/uapi/linux/netfilter/x_tables.h,
// ip_tables.h and ip6_tables.h.
var native = binary.NativeEndian

// xtFormat is what differs between the two families.
type xtFormat struct {
	ip         string // as in the name of nf_tables' family
	entrySize  int    // struct ipt_entry, ip6t_entry
	targetAt   int    // its fields target_offset and, 2 further, next_offset
	countersAt int
}

var (
	xtIPv4 = xtFormat{ip: "ip", entrySize: 112, targetAt: 88, countersAt: 96}
	xtIPv6 = xtFormat{ip: "ip6", entrySize: 168, targetAt: 140, countersAt: 152}
)

const (
	xtHooks        = 5  // NF_INET_NUMHOOKS
	xtTableName    = 32 // XT_TABLE_MAXNAMELEN
	xtTargetSize   = 32 // struct xt_entry_target: size, name, revision
	xtTargetName   = 29 // XT_EXTENSION_MAXNAMELEN
	xtChainName    = 30 // XT_FUNCTION_MAXNAMELEN
	xtCountersSize = 16 // struct xt_counters
)

// hookChains are the names of built-in chains, by the number of their hook.
var hookChains = [xtHooks]string{"PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"}

// xtTable is a table as the kernel gives it.
type xtTable struct {
	xtFormat
	name string
	// hooks has a bit for each built-in chain. hookEntry and underflow are where it begins and where its policy is.
	hooks                uint32
	hookEntry, underflow [xtHooks]uint32
	block                []byte
}

// The kinds of entries.
const (
	xtRule   = iota
	xtHead   // of a chain that is not built in
	xtFoot   // its end, or the policy of a built-in chain
	xtEnding // the terminator of the table
)

type xtEntry struct {
	off, size int
	role      int
	chain     int // index of its chain
	jump      int // offset that it jumps to, or -1
	skips     bool
}

// xtParsed is a table taken to pieces. A rule's id in chains is its index in entries.
type xtParsed struct {
	entries []xtEntry
	chains  []chain
}

var errXT = errors.New("table of iptables-legacy in an unknown format")

// parse splits the block into entries. Anything that it does not understand is an error, so that no half-understood
// table is written.
func (t *xtTable) parse() (*xtParsed, error) {
	p := &xtParsed{}
	starts := map[int]string{} // where chains' rules begin
	hooks := map[int]int{}
	for h := range xtHooks {
		if t.hooks&(1<<h) != 0 {
			hooks[int(t.hookEntry[h])] = h
		}
	}
	policy := -1 // offset of the policy of the built-in chain that is open
	open := false
	for off := 0; off < len(t.block); {
		e, target, err := t.entry(off)
		if err != nil {
			return nil, err
		}
		if h, ok := hooks[off]; ok && policy < 0 {
			starts[off] = hookChains[h]
			p.chains = append(p.chains, chain{name: hookChains[h], base: true})
			policy, open = int(t.underflow[h]), true
			delete(hooks, off)
		}
		name, isError := errorName(target)
		last := off+e.size == len(t.block)
		switch {
		case isError && last && policy < 0:
			e.role = xtEnding
		case isError && policy < 0:
			starts[off+e.size] = name
			p.chains = append(p.chains, chain{name: name})
			e.role, open = xtHead, true
		case isError || last || !open:
			return nil, fmt.Errorf("%w: entry at %d is in no chain", errXT, off)
		case off == policy:
			e.role, policy, open = xtFoot, -1, false
		case policy < 0 && t.endsChain(off+e.size):
			e.role, open = xtFoot, false
		}
		e.chain = len(p.chains) - 1
		p.entries = append(p.entries, e)
		off += e.size
	}
	if len(hooks) > 0 || len(t.block) == 0 {
		return nil, fmt.Errorf("%w: built-in chains are missing", errXT)
	}
	return p, p.link(starts)
}

// entry reads the entry at an offset, and its target from the target's header on.
func (t *xtTable) entry(off int) (xtEntry, []byte, error) {
	bad := fmt.Errorf("%w: bad entry at %d", errXT, off)
	b := t.block[off:]
	if len(b) < t.entrySize {
		return xtEntry{}, nil, bad
	}
	targetAt, size := int(native.Uint16(b[t.targetAt:])), int(native.Uint16(b[t.targetAt+2:]))
	if targetAt < t.entrySize || targetAt+xtTargetSize > size || size > len(b) {
		return xtEntry{}, nil, bad
	}
	e := xtEntry{off: off, size: size, jump: -1}
	target := b[targetAt:size]
	if cString(target[2:2+xtTargetName]) == "" { // the standard target: a verdict, or an offset to jump to
		if len(target) < xtTargetSize+4 {
			return xtEntry{}, nil, bad
		}
		if v := int32(native.Uint32(target[xtTargetSize:])); v >= 0 {
			e.jump = int(v)
			e.skips = e.jump != off+size
		}
	}
	return e, target, nil
}

// endsChain reports whether a chain that is not built in ends before an offset: another one's head is there, or the terminator.
func (t *xtTable) endsChain(off int) bool {
	if off >= len(t.block) {
		return false
	}
	_, target, err := t.entry(off)
	if err != nil {
		return false // reported when it is its turn
	}
	_, isError := errorName(target)
	return isError
}

// errorName returns the name in a target ERROR, which heads and the terminator have.
func errorName(target []byte) (string, bool) {
	if cString(target[2:2+xtTargetName]) != "ERROR" || len(target) < xtTargetSize+xtChainName {
		return "", false
	}
	return cString(target[xtTargetSize : xtTargetSize+xtChainName]), true
}

func cString(b []byte) string {
	s, _, _ := bytes.Cut(b, []byte{0})
	return string(s)
}

// link gives the chains their rules, with the chains that these jump to.
func (p *xtParsed) link(starts map[int]string) error {
	for i, e := range p.entries {
		if e.role != xtRule && !e.skips {
			continue
		}
		r := rule{id: uint64(i)}
		if e.skips {
			to, ok := starts[e.jump]
			if !ok || e.role != xtRule {
				return fmt.Errorf("%w: entry at %d jumps to %d, where no chain begins", errXT, e.off, e.jump)
			}
			r.targets = []string{to}
		}
		c := &p.chains[e.chain]
		c.rules = append(c.rules, r)
	}
	return nil
}

// without returns the table without what an edit takes out of it, and the indices of the entries that are left.
func (t *xtTable) without(p *xtParsed, ed *edit) (*xtTable, []int, error) {
	removed, emptied, jumps := map[string]bool{}, map[string]bool{}, map[int]bool{}
	for _, name := range ed.remove {
		removed[name] = true
	}
	for _, name := range ed.empty {
		emptied[name] = true
	}
	for _, j := range ed.jumps {
		jumps[int(j.id)] = true
	}
	// moved is the new offset of each entry. A removed entry "moves" to the position of the next entry, as do hooks
	// and chains that began with it.
	moved := make(map[int]int, len(p.entries))
	var kept []int
	size := 0
	for i, e := range p.entries {
		moved[e.off] = size
		gone := jumps[i]
		if e.role != xtEnding {
			name := p.chains[e.chain].name
			gone = gone || removed[name] || emptied[name] && e.role == xtRule
		}
		if !gone {
			kept = append(kept, i)
			size += e.size
		}
	}
	out := &xtTable{xtFormat: t.xtFormat, name: t.name, hooks: t.hooks, block: make([]byte, 0, size)}
	for _, i := range kept {
		e := p.entries[i]
		at := len(out.block)
		out.block = append(out.block, t.block[e.off:e.off+e.size]...)
		to := at + e.size
		if e.jump < 0 {
			continue
		}
		if e.skips {
			to = moved[e.jump]
		}
		if to > math.MaxInt32 {
			return nil, nil, errXT
		}
		verdictAt := at + int(native.Uint16(out.block[at+t.targetAt:])) + xtTargetSize
		native.PutUint32(out.block[verdictAt:], uint32(to))
	}
	for h := range xtHooks {
		if t.hooks&(1<<h) != 0 {
			out.hookEntry[h] = uint32(moved[int(t.hookEntry[h])])
			out.underflow[h] = uint32(moved[int(t.underflow[h])])
		}
	}
	return out, kept, nil
}
