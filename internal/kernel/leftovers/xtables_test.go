//go:build linux

package leftovers

import (
	"bytes"
	"errors"
	"testing"
)

// xtBuilder makes tables as iptables-legacy does. Jumps lead to the names that start records.
type xtBuilder struct {
	t     *xtTable
	start map[string]int
	fixes map[int]string // position of a verdict -> chain
}

func newXT(f xtFormat) *xtBuilder {
	return &xtBuilder{&xtTable{xtFormat: f, name: "nat"}, map[string]int{}, map[int]string{}}
}

// entry appends an entry with some bytes of a match, which make its size odd to guess, and returns its target's position.
func (b *xtBuilder) entry(target string, data int) int {
	const match = 24
	at := len(b.t.block)
	e := make([]byte, b.t.entrySize+match+xtTargetSize+data)
	copy(e[b.t.entrySize:], bytes.Repeat([]byte{0xee}, match))
	native.PutUint16(e[b.t.targetAt:], uint16(b.t.entrySize+match))
	native.PutUint16(e[b.t.targetAt+2:], uint16(len(e)))
	target0 := e[b.t.entrySize+match:]
	native.PutUint16(target0, uint16(xtTargetSize+data))
	copy(target0[2:], target)
	b.t.block = append(b.t.block, e...)
	return at + b.t.entrySize + match
}

func (b *xtBuilder) verdict(v int32) {
	at := b.entry("", 8)
	native.PutUint32(b.t.block[at+xtTargetSize:], uint32(v))
}

func (b *xtBuilder) jump(chain string) {
	b.fixes[b.entry("", 8)+xtTargetSize] = chain
}

// through is a rule without a target.
func (b *xtBuilder) through() {
	at := b.entry("", 8)
	native.PutUint32(b.t.block[at+xtTargetSize:], uint32(len(b.t.block)))
}

func (b *xtBuilder) other() { b.entry("DNAT", 16) }

func (b *xtBuilder) builtin(hook int, rules func()) {
	b.t.hooks |= 1 << hook
	b.t.hookEntry[hook] = uint32(len(b.t.block))
	rules()
	b.t.underflow[hook] = uint32(len(b.t.block))
	b.verdict(-2) // ACCEPT
}

func (b *xtBuilder) chain(name string, rules func()) {
	b.head(name)
	b.start[name] = len(b.t.block)
	rules()
	b.verdict(-5) // RETURN
}

func (b *xtBuilder) head(name string) {
	at := b.entry("ERROR", 32)
	copy(b.t.block[at+xtTargetSize:], name)
}

func (b *xtBuilder) table() *xtTable {
	b.head("ERROR")
	for at, chain := range b.fixes {
		native.PutUint32(b.t.block[at:], uint32(b.start[chain]))
	}
	return b.t
}

// sample is a table with all kinds of entries; with our rules, or as it should be without them.
func sample(f xtFormat, ours bool) *xtTable {
	b := newXT(f)
	b.builtin(0, func() {
		if ours {
			b.jump("KUBE-SERVICES") // first: the hook has to move
		}
		b.jump("mine")
		b.through()
		if ours {
			b.jump("KUBE-SERVICES") // behind a rule that falls through
		}
	})
	b.builtin(3, func() {
		if ours {
			b.jump("KUBE-SERVICES") // alone: hook and policy become one
		}
	})
	if ours {
		b.chain("KUBE-SEP-AAAAAAAAAAAAAAAA", func() { b.other() })
		b.chain("KUBE-SERVICES", func() { b.jump("KUBE-SEP-AAAAAAAAAAAAAAAA"); b.jump("mine"); b.through() })
	}
	b.chain("empty", func() {})
	b.chain("mine", func() { b.jump("KUBE-NODEPORTS"); b.jump("empty"); b.other(); b.through() })
	b.chain("KUBE-NODEPORTS", func() {
		if ours {
			b.through()
			b.jump("KUBE-SEP-AAAAAAAAAAAAAAAA")
		}
	})
	return b.table()
}

func TestWithout(t *testing.T) {
	for _, f := range []xtFormat{xtIPv4, xtIPv6} {
		t.Run(f.ip, func(t *testing.T) {
			full, want := sample(f, true), sample(f, false)
			p, err := full.parse()
			if err != nil {
				t.Fatal(err)
			}
			e := plan(p.chains)
			if len(e.jumps) != 3 || len(e.remove) != 2 || len(e.empty) != 1 {
				t.Fatalf("plan: %+v, want 3 jumps, 2 chains to remove and 1 to empty", e)
			}
			got, kept, err := full.without(p, &e)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(got.block, want.block) || got.hookEntry != want.hookEntry || got.underflow != want.underflow || got.hooks != want.hooks {
				t.Errorf("the table differs from one made without our rules: hooks %v %v, want %v %v, %d bytes, want %d", got.hookEntry,
					got.underflow, want.hookEntry, want.underflow, len(got.block), len(want.block))
			}
			after, err := got.parse()
			if err != nil {
				t.Fatal(err)
			}
			if len(after.entries) != len(kept) {
				t.Errorf("%d entries, %d kept", len(after.entries), len(kept))
			}
			if again := plan(after.chains); !again.isEmpty() {
				t.Errorf("plan for what is left: %+v", again)
			}
		})
	}
}

func TestWithoutNothing(t *testing.T) {
	full := sample(xtIPv4, true)
	p, err := full.parse()
	if err != nil {
		t.Fatal(err)
	}
	got, kept, err := full.without(p, &edit{})
	if err != nil || !bytes.Equal(got.block, full.block) || len(kept) != len(p.entries) {
		t.Errorf("an empty edit changes the table (%v)", err)
	}
}

// TestUnknownFormat breaks a table in many ways. None is taken for a table, which would then be written.
func TestUnknownFormat(t *testing.T) {
	whole := sample(xtIPv4, true)
	heads := 0
	for cut := range len(whole.block) {
		broken := *whole
		broken.block = whole.block[:cut]
		if _, err := broken.parse(); err == nil {
			heads++ // a head at the end looks like the terminator
		} else if !errors.Is(err, errXT) {
			t.Fatalf("cut after %d bytes: %v, want %v", cut, err, errXT)
		}
	}
	if heads != 0 {
		t.Errorf("%d shortened tables are taken for tables", heads)
	}
	first := int(whole.hookEntry[0])
	for name, breakIt := range map[string]func(*xtTable){
		"a jump to where no chain begins": func(x *xtTable) { native.PutUint32(x.block[x.entrySize+24+xtTargetSize:], 8) },
		"an entry of no size":             func(x *xtTable) { native.PutUint16(x.block[first+x.targetAt+2:], 0) },
		"a target outside its entry":      func(x *xtTable) { native.PutUint16(x.block[first+x.targetAt:], 60000) },
		"a hook between entries":          func(x *xtTable) { x.hookEntry[3] += 8 },
		"a policy between entries":        func(x *xtTable) { x.underflow[3] += 8 },
		"a hook too many":                 func(x *xtTable) { x.hooks |= 1 << 4; x.hookEntry[4] = 4 },
		"no hooks":                        func(x *xtTable) { x.hooks = 0 },
	} {
		broken := *whole
		broken.block = bytes.Clone(whole.block)
		breakIt(&broken)
		if _, err := broken.parse(); !errors.Is(err, errXT) {
			t.Errorf("%s: %v, want %v", name, err, errXT)
		}
	}
}

func FuzzParse(f *testing.F) {
	s := sample(xtIPv4, true)
	f.Add(s.block, s.hooks, s.hookEntry[0], s.hookEntry[3], s.underflow[0], s.underflow[3])
	f.Fuzz(func(t *testing.T, block []byte, hooks, e0, e3, u0, u3 uint32) {
		x := &xtTable{xtFormat: xtIPv4, hooks: hooks, hookEntry: [xtHooks]uint32{0: e0, 3: e3}, underflow: [xtHooks]uint32{0: u0, 3: u3},
			block: block}
		p, err := x.parse()
		if err != nil {
			return
		}
		same, _, err := x.without(p, &edit{})
		if err != nil || !bytes.Equal(same.block, block) {
			t.Errorf("an empty edit changes the table (%v)", err)
		}
		e := plan(p.chains)
		if _, _, err := x.without(p, &e); err != nil {
			t.Error(err)
		}
	})
}
