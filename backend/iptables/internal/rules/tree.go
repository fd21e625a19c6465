package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/tidwall/btree"

	"github.com/switchyard-net/switchyard/state"
)

// maxLeaf is how many rules a chain of a tree has at most: the 16 branches of an inner one, or the frontends of a leaf.
const maxLeaf = 16

// tree leads a packet to the rule of its frontend through chains of at most [maxLeaf] rules. A chain is about the frontends whose
// keys begin alike. It has their rules if they are few, else one branch for each value of the next nibble in which they
// differ. So the chains are a function of the frontends alone, whatever came before, and a frontend that comes or goes changes no
// chain but those on its way.
type tree struct {
	root string
	// nibbles is how many nibbles of an address keys begin with: 0 for node ports.
	nibbles int
	family  state.Family
	rules   btree.Map[string, string] // by key
	changed map[string]bool           // keys since the last update
	nodes   map[string]*node          // by what the keys of their frontends begin with
}

// node is a chain of a tree.
type node struct {
	parent   string
	branches []string
}

func newTree(root string, f state.Family, nibbles int) *tree {
	return &tree{root: root, family: f, nibbles: nibbles, changed: map[string]bool{}, nodes: map[string]*node{}}
}

// keyProtocols are the protocols in keys.
var keyProtocols = []state.Protocol{state.TCP, state.UDP, state.SCTP}

// key returns the key of a frontend: a byte for each nibble of the address, one for the protocol, and one for each nibble of the port.
func key(f *state.Frontend, p state.Protocol) string {
	var b []byte
	for _, v := range f.Addr.AsSlice() {
		b = append(b, v>>4, v&15)
	}
	b = append(b, byte(slices.Index(keyProtocols, p)))
	return string(append(b, byte(f.Port>>12), byte(f.Port>>8&15), byte(f.Port>>4&15), byte(f.Port&15)))
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
	if t.nodes[""] != nil && len(t.changed) == 0 {
		return
	}
	changed := make([]string, 0, len(t.changed))
	for k := range t.changed {
		changed = append(changed, k)
	}
	slices.Sort(changed)
	clear(t.changed)

	type dropped struct{ branch, parent string }
	var loose []dropped
	var visit func(begin, parent string)
	visit = func(begin, parent string) {
		content, branches := t.render(begin)
		write(t.chain(begin), content)
		n := t.nodes[begin]
		if n == nil {
			n = &node{}
			t.nodes[begin] = n
		}
		for _, b := range n.branches {
			if !slices.Contains(branches, b) {
				loose = append(loose, dropped{b, begin})
			}
		}
		n.parent, n.branches = parent, branches
		for _, b := range branches {
			if i, _ := slices.BinarySearch(changed, b); t.nodes[b] == nil || i < len(changed) && strings.HasPrefix(changed[i], b) {
				visit(b, begin)
			} else {
				t.nodes[b].parent = begin
			}
		}
	}
	visit("", "")
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

// render returns the rules of the chain about the keys that begin in a way, and its branches, if it has any.
func (t *tree) render(begin string) (content string, branches []string) {
	var keys, rules []string
	t.rules.Ascend(begin, func(k, rule string) bool {
		if !strings.HasPrefix(k, begin) || len(keys) > maxLeaf {
			return false
		}
		keys, rules = append(keys, k), append(rules, rule)
		return true
	})
	if len(keys) <= maxLeaf {
		return strings.Join(rules, "\n"), nil
	}
	first, last := keys[0], t.last(begin)
	common := len(begin)
	for first[common] == last[common] {
		common++
	}
	rules = rules[:0]
	for v := range byte(maxLeaf) {
		b := first[:common] + string([]byte{v})
		t.rules.Ascend(b, func(k, _ string) bool {
			if strings.HasPrefix(k, b) {
				branches, rules = append(branches, b), append(rules, t.match(b)+" -g "+t.chain(b))
			}
			return false
		})
	}
	return strings.Join(rules, "\n"), branches
}

// last returns the greatest key that begins in a way.
func (t *tree) last(begin string) string {
	var last string
	t.rules.Descend(begin+"\xff", func(k, _ string) bool {
		last = k
		return false
	})
	return last
}

// match returns what matches the packets to the frontends whose keys begin in a way.
func (t *tree) match(begin string) string {
	if len(begin) <= t.nibbles {
		return "-d " + t.prefix(begin).String()
	}
	proto := protocolName(keyProtocols[begin[t.nibbles]])
	if len(begin) == t.nibbles+1 {
		return "-p " + proto
	}
	low, high := 0, 0xffff
	for i, v := range []byte(begin[t.nibbles+1:]) {
		shift := 12 - 4*i
		low |= int(v) << shift
		high = low | (1<<shift - 1)
	}
	ports := fmt.Sprint(low)
	if high > low {
		ports = fmt.Sprintf("%d:%d", low, high)
	}
	return fmt.Sprintf("-p %s -m %s --dport %s", proto, proto, ports)
}

func (t *tree) prefix(begin string) netip.Prefix {
	b := make([]byte, t.nibbles/2)
	for i, v := range []byte(begin) {
		b[i/2] |= v << (4 - 4*(i%2))
	}
	addr, _ := netip.AddrFromSlice(b)
	return netip.PrefixFrom(addr, 4*len(begin))
}

// longestSuffix is what fits into the name of a chain, behind its root's.
const longestSuffix = 20

// chain returns the name of the chain about the keys that begin in a way.
func (t *tree) chain(begin string) string {
	if begin == "" {
		return t.root
	}
	if len(begin) > longestSuffix {
		return t.root + "-" + hash(begin)
	}
	var b strings.Builder
	for _, v := range []byte(begin) {
		fmt.Fprintf(&b, "%x", v)
	}
	return t.root + "-" + b.String()
}

func protocolName(p state.Protocol) string { return strings.ToLower(p.String()) }
