package rules

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// forest is what a tree has written.
type forest map[string]string

func (f forest) update(t *tree) (written int) {
	t.update(
		func(chain, content string) {
			if old, ok := f[chain]; !ok || old != content {
				written++
			}
			f[chain] = content
		},
		func(chain string) {
			written++
			delete(f, chain)
		})
	return written
}

// frontendsOf makes frontends of a family at random: close together, far apart, and many ports of one address.
func randomFrontend(rng *rand.Rand, f state.Family, nodePort bool) (state.Frontend, state.Protocol) {
	front := state.Frontend{Port: uint16(rng.IntN(65535) + 1)}
	p := keyProtocols[rng.IntN(3)]
	if nodePort {
		front.Port = uint16(30000 + rng.IntN(2768))
		return front, p
	}
	bytes := 4
	if f == state.IPv6 {
		bytes = 16
	}
	b := make([]byte, bytes)
	switch rng.IntN(4) {
	case 0: // a service CIDR
		b[0], b[bytes-2], b[bytes-1] = 10, byte(rng.IntN(4)), byte(rng.IntN(256))
		front.Port = 80
	case 1: // one address
		b[0], b[bytes-1] = 10, 77
	case 2: // far from the others by one bit
		b[0] = 10
		b[rng.IntN(4)] ^= 1 << rng.IntN(8)
		front.Port = 80
	default:
		for i := range b {
			b[i] = byte(rng.IntN(256))
		}
	}
	front.Addr, _ = netip.AddrFromSlice(b)
	return front, p
}

// walk follows a packet through the chains, and returns the rules that match it, and how many chains and rules it passed.
func (f forest) walk(root string, front *state.Frontend, p state.Protocol) (found []string, chains, rules int) {
	for chain := root; chain != ""; {
		chains++
		next := ""
		content, ok := f[chain]
		if !ok {
			return append(found, "no chain "+chain), chains, rules
		}
		for rule := range strings.SplitSeq(content, "\n") {
			if rule == "" {
				continue
			}
			rules++
			if !matches(rule, front, p) {
				continue
			}
			target := rule[strings.LastIndex(rule, " ")+1:]
			if strings.HasPrefix(target, root) {
				next = target
				break
			}
			found = append(found, target)
		}
		chain = next
	}
	return found, chains, rules
}

var (
	matchAddr  = regexp.MustCompile(`-d (\S+)`)
	matchProto = regexp.MustCompile(`(! )?-p (\S+)`)
	matchPort  = regexp.MustCompile(`--dport (\d+)(?::(\d+))?`)
)

// matches reports whether a rule matches the packet.
func matches(rule string, front *state.Frontend, p state.Protocol) bool {
	if m := matchAddr.FindStringSubmatch(rule); m != nil && !netip.MustParsePrefix(m[1]).Contains(front.Addr) {
		return false
	}
	if m := matchProto.FindStringSubmatch(rule); m != nil && (m[2] == protocolName(p)) == (m[1] != "") {
		return false
	}
	if m := matchPort.FindStringSubmatch(rule); m != nil {
		low, _ := strconv.Atoi(m[1])
		high := low
		if m[2] != "" {
			high, _ = strconv.Atoi(m[2])
		}
		return int(front.Port) >= low && int(front.Port) <= high
	}
	return true
}

// TestTree lets frontends come and go at random. Each is found, by few rules, and the chains equal the chains of a tree that was made
// of the same frontends at once.
func TestTree(t *testing.T) {
	for _, c := range []struct {
		family  state.Family
		address int
	}{{state.IPv4, 32}, {state.IPv6, 128}, {state.IPv4, 0}} {
		rng := rand.New(rand.NewPCG(1, uint64(c.address)))
		tr, f := newTree("T", c.family, c.address), forest{}
		f.update(tr)
		present := map[string]struct {
			state.Frontend
			state.Protocol
		}{}
		for step := range 200 {
			for range 1 + rng.IntN(1+step/4) {
				front, p := randomFrontend(rng, c.family, c.address == 0)
				k := key(&front, p)
				if _, ok := present[k]; ok || rng.IntN(3) == 0 && len(present) > 0 {
					if !ok {
						keys := slices.Sorted(maps.Keys(present))
						k = keys[rng.IntN(len(keys))]
					}
					delete(present, k)
					tr.delete(k)
					continue
				}
				present[k] = struct {
					state.Frontend
					state.Protocol
				}{front, p}
				addr := ""
				if front.Addr.IsValid() {
					addr = fmt.Sprintf("-d %v/%d ", front.Addr, front.Addr.BitLen())
				}
				tr.set(k, fmt.Sprintf("%s-p %s -m %s --dport %d -g %x", addr, protocolName(p), protocolName(p), front.Port, k))
			}
			f.update(tr)
			if step%20 != 19 {
				continue
			}
			fresh, want := newTree("T", c.family, c.address), forest{}
			for k, v := range tr.rules.Scan {
				fresh.set(k, v)
			}
			want.update(fresh)
			if !maps.Equal(f, want) {
				t.Fatalf("%v, step %d: %d chains, want %d as of a new tree", c.family, step, len(f), len(want))
			}
			deepest, most := 0, 0
			for k, front := range present {
				found, chains, rules := f.walk("T", &front.Frontend, front.Protocol)
				if len(found) != 1 || found[0] != fmt.Sprintf("%x", k) {
					t.Fatalf("%v, step %d: a packet to %v %v finds %v", c.family, step, front.Frontend, front.Protocol, found)
				}
				deepest, most = max(deepest, chains), max(most, rules)
			}
			if most > maxLeaf*(deepest+2) || deepest > maxDepth {
				t.Errorf("%v, step %d: %d frontends take up to %d chains and %d rules", c.family, step, len(present), deepest, most)
			}
			for chain, content := range f {
				if n := strings.Count(content, "\n") + 1; n > maxLeaf && deepest < maxDepth || n > 4*maxLeaf || len(chain) > maxChainName {
					t.Errorf("%v, step %d: chain %s has %d rules", c.family, step, chain, n)
				}
			}
		}
	}
}

// TestTreeStaysShallow has addresses that differ in one bit each from the addresses of a service CIDR, so that every bit parts one of
// them from the rest. No other frontend pays much for it, nor does a change.
func TestTreeStaysShallow(t *testing.T) {
	tr, f := newTree("T", state.IPv6, 128), forest{}
	add := func(addr netip.Addr) state.Frontend {
		front := state.Frontend{Addr: addr, Port: 80}
		tr.set(key(&front, state.TCP), fmt.Sprintf("-d %v/128 -p tcp -m tcp --dport 80 -g found", addr))
		return front
	}
	var fronts []state.Frontend
	addr := netip.MustParseAddr("fd00:10:96::")
	for range 10_000 {
		addr = addr.Next()
		fronts = append(fronts, add(addr))
	}
	f.update(tr)
	front := state.Frontend{Addr: netip.MustParseAddr("fd00:10:96::ffff"), Port: 80}
	tr.set(key(&front, state.TCP), "new")
	if n := f.update(tr); n > maxLeaf {
		t.Errorf("one frontend more writes %d chains of %d", n, len(f))
	}
	tr.delete(key(&front, state.TCP))
	if n := f.update(tr); n > maxLeaf {
		t.Errorf("one frontend less writes %d chains of %d", n, len(f))
	}
	for i, want := range []int{4, 8} {
		deepest := 0
		for i, front := range fronts {
			if i%50 != 0 && i < 10_000 {
				continue
			}
			found, chains, _ := f.walk("T", &front, state.TCP)
			if len(found) != 1 {
				t.Fatalf("%v is found %d times", front.Addr, len(found))
			}
			deepest = max(deepest, chains)
		}
		if deepest > want {
			t.Errorf("%d frontends take %d chains, want %d at most", len(fronts), deepest, want)
		}
		if i > 0 {
			break
		}
		for bit := range 112 {
			b := netip.MustParseAddr("fd00:10:96::1").As16()
			b[bit/8] ^= 0x80 >> (bit % 8)
			fronts = append(fronts, add(netip.AddrFrom16(b)))
		}
		f.update(tr)
	}
}
