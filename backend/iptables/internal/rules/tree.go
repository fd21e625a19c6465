package rules

import (
	"bytes"
	"fmt"
	"math/bits"
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/tidwall/btree"

	"github.com/switchyard-net/switchyard/state"
)

const (
	// maxLeaf is how many rules a chain of a tree has at most: its branches, or the frontends of a leaf.
	maxLeaf = 16
	// maxDepth is how many chains of a tree a packet passes at most. The kernel follows 16 chains, and the remaining
	// chains are between the tree and an endpoint. Only hundreds of addresses that were chosen on purpose reach this
	// depth. Then a leaf has more rules.
	maxDepth = 8
)

// tree leads a packet to the rule of its frontend through chains of at most [maxLeaf] rules. A chain serves the frontends whose keys share
// a prefix. A chain with many frontends has branches, one for each value of the next nibble in which the keys differ. A chain with few
// branches absorbs the branches of the following nibbles, so that unusual addresses do not make the tree deep. The content of a chain
// depends on its frontends only, and not on previous changes. Adding or removing a frontend changes the chains on its way, and at most the
// chains next to it.
type tree struct {
	root   string
	family state.Family
	// address is how many bits of an address keys begin with: 0 for node ports.
	address int
	rules   btree.Map[string, string] // by key
	changed map[string]bool           // keys since the last update
	nodes   map[prefix]*node
}

// prefix is how keys begin: so many bits of a key, followed by zeros.
type prefix struct {
	key  string
	bits int
}

// node is a chain of a tree.
type node struct {
	parent   prefix
	branches []prefix
	// height is how many chains a packet passes from here on at most. deep is set if one of them would have branches at a lesser depth.
	height int
	deep   bool
}

func newTree(root string, f state.Family, address int) *tree {
	return &tree{root: root, family: f, address: address, changed: map[string]bool{}, nodes: map[prefix]*node{}}
}

// keyProtocols are the protocols in keys.
var keyProtocols = []state.Protocol{state.TCP, state.UDP, state.SCTP}

// key returns the key of a frontend: its address, if it has one, protocol and port.
func key(f *state.Frontend, p state.Protocol) string {
	b := append(f.Addr.AsSlice(), byte(slices.Index(keyProtocols, p)))
	return string(append(b, byte(f.Port>>8), byte(f.Port)))
}

func (t *tree) set(key, rule string) {
	t.rules.Set(key, rule)
	t.changed[key] = true
}

func (t *tree) delete(key string) {
	t.rules.Delete(key)
	t.changed[key] = true
}

// update calls write with each chain that may have changed, and remove with each that is gone.
func (t *tree) update(write func(chain, content string), remove func(chain string)) {
	root := prefix{string(make([]byte, t.address/8+3)), 0}
	if t.nodes[root] != nil && len(t.changed) == 0 {
		return
	}
	changed := make([]string, 0, len(t.changed))
	for k := range t.changed {
		changed = append(changed, k)
	}
	slices.Sort(changed)
	clear(t.changed)
	concerns := func(p prefix) bool {
		i, _ := slices.BinarySearch(changed, p.key)
		return i < len(changed) && commonBits(changed[i], p.key) >= p.bits
	}

	type dropped struct{ branch, parent prefix }
	var loose []dropped
	var visit func(p, parent prefix, depth int)
	visit = func(p, parent prefix, depth int) {
		content, branches := t.render(p, depth)
		write(t.chain(p), content)
		n := t.nodes[p]
		if n == nil {
			n = &node{}
			t.nodes[p] = n
		}
		for _, b := range n.branches {
			if !slices.Contains(branches, b) {
				loose = append(loose, dropped{b, p})
			}
		}
		n.parent, n.branches, n.height = parent, branches, 1
		n.deep = depth == maxDepth && strings.Count(content, "\n") >= maxLeaf
		for _, b := range branches {
			if child := t.nodes[b]; child == nil || child.deep || depth+child.height > maxDepth || concerns(b) {
				visit(b, p, depth+1)
			}
			child := t.nodes[b]
			child.parent = p
			n.height, n.deep = max(n.height, 1+child.height), n.deep || child.deep
		}
	}
	visit(root, prefix{}, 1)
	var drop func(dropped)
	drop = func(d dropped) {
		n := t.nodes[d.branch]
		if n == nil || n.parent != d.parent {
			return // it is the branch of another chain now
		}
		delete(t.nodes, d.branch)
		remove(t.chain(d.branch))
		for _, b := range n.branches {
			drop(dropped{b, d.branch})
		}
	}
	for _, d := range loose {
		drop(d)
	}
}

// span are keys that stand side by side: those with the indexes from low to below high.
type span struct{ low, high int }

// render returns the rules of the chain about the keys that begin in a way, and its branches, if it has any.
func (t *tree) render(p prefix, depth int) (content string, branches []prefix) {
	all := span{t.index(p.key), t.rules.Len()}
	if end, ok := p.end(); ok {
		all.high = t.index(end)
	}
	var rules []string
	if all.high-all.low <= maxLeaf || depth == maxDepth {
		t.rules.Ascend(p.key, func(_, rule string) bool {
			if len(rules) == all.high-all.low {
				return false
			}
			rules = append(rules, rule)
			return true
		})
		return strings.Join(rules, "\n"), nil
	}
	spans := t.split(all)
	for {
		next, least := -1, 0
		for i, s := range spans {
			if n := t.common(s); s.high-s.low > maxLeaf && (next < 0 || n < least) {
				next, least = i, n
			}
		}
		if next < 0 {
			break
		}
		parts := t.split(spans[next])
		if len(spans)+len(parts)-1 > maxLeaf {
			break
		}
		spans = slices.Replace(spans, next, next+1, parts...)
	}
	for _, s := range spans {
		if s.high-s.low == 1 {
			_, rule, _ := t.rules.GetAt(s.low)
			rules = append(rules, rule)
			continue
		}
		b := prefixOf(t.at(s.low), t.common(s))
		branches, rules = append(branches, b), append(rules, t.match(b)+" -g "+t.chain(b))
	}
	return strings.Join(rules, "\n"), branches
}

// common returns how many bits keys have in common, in whole nibbles.
func (t *tree) common(s span) int { return commonBits(t.at(s.low), t.at(s.high-1)) &^ 3 }

// split divides keys by the first nibble in which they differ.
func (t *tree) split(s span) (parts []span) {
	n := t.common(s)
	nibble := func(i int) byte { return t.at(i)[n/8] >> (4 - n%8) & 15 }
	for low := s.low; low < s.high; {
		value := nibble(low)
		high := low + sort.Search(s.high-low, func(i int) bool { return nibble(low+i) > value })
		parts = append(parts, span{low, high})
		low = high
	}
	return parts
}

func (t *tree) at(i int) string {
	k, _, _ := t.rules.GetAt(i)
	return k
}

// index returns the index of the first key that is not less.
func (t *tree) index(key string) int {
	return sort.Search(t.rules.Len(), func(i int) bool { return t.at(i) >= key })
}

// commonBits returns how many bits two keys have in common.
func commonBits(a, b string) int {
	for i := range len(a) {
		if x := a[i] ^ b[i]; x != 0 {
			return 8*i + bits.LeadingZeros8(x)
		}
	}
	return 8 * len(a)
}

// prefixOf returns the first bits of a key.
func prefixOf(key string, n int) prefix {
	b := bytes.Clone([]byte(key))
	for i := range b {
		switch {
		case 8*i >= n:
			b[i] = 0
		case 8*i+8 > n:
			b[i] &^= 0xff >> (n - 8*i)
		}
	}
	return prefix{string(b), n}
}

// end returns the first key behind those that begin so, if there can be any.
func (p prefix) end() (string, bool) {
	b := bytes.Clone([]byte(p.key))
	for n := p.bits - 1; n >= 0; n-- {
		bit := byte(0x80) >> (n % 8)
		if b[n/8] ^= bit; b[n/8]&bit != 0 {
			return string(b), true
		}
	}
	return "", false
}

// match returns what matches the packets to the frontends whose keys begin so.
func (t *tree) match(p prefix) string {
	n := t.address / 8
	var address string
	if n > 0 {
		addr, _ := netip.AddrFromSlice([]byte(p.key[:n]))
		address = "-d " + netip.PrefixFrom(addr, min(p.bits, t.address)).String()
	}
	protocol := protocolName(keyProtocols[p.key[n]])
	ports := p.bits - t.address - 8
	switch {
	case ports < 0:
		return address
	case ports == 0:
		return rule(address, "-p "+protocol)
	}
	low := int(p.key[n+1])<<8 | int(p.key[n+2])
	dport := fmt.Sprint(low)
	if ports < 16 {
		dport = fmt.Sprintf("%d:%d", low, low|0xffff>>ports)
	}
	return rule(address, fmt.Sprintf("-p %s -m %s --dport %s", protocol, protocol, dport))
}

// chain returns the name of the chain about the keys that begin so.
func (t *tree) chain(p prefix) string {
	if p.bits == 0 {
		return t.root
	}
	name := fmt.Sprintf("%s-%x-%d", t.root, p.key[:(p.bits+7)/8], p.bits)
	if len(name) > maxChainName {
		return t.root + "-" + hash(p.key, p.bits)
	}
	return name
}

// maxChainName is how long the name of a chain may be.
const maxChainName = 28

func protocolName(p state.Protocol) string { return strings.ToLower(p.String()) }
