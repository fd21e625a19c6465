//go:build linux

package nft

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"

	gnft "github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/switchyard-net/switchyard/test/netns"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestMain(m *testing.M) { os.Exit(netnstest.Main(m)) }

func newNS(t testing.TB) *netns.NS {
	t.Helper()
	ns := netnstest.New(t)
	return ns
}

func dial(t testing.TB, ns *netns.NS) *Conn {
	t.Helper()
	var c *Conn
	if err := ns.Do(func() (err error) { c, err = Dial(); return err }); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func commit(t testing.TB, c *Conn, fill func(*Batch)) {
	t.Helper()
	var b Batch
	fill(&b)
	if err := c.Commit(&b); err != nil {
		t.Fatal(err)
	}
}

var (
	testTable = Table{IPv4, "test"}
	testMap   = Set{Name: "m", Key: []Type{TypeIPv4, TypePort}, Data: []Type{TypeIPv4, TypePort}}
)

// entry is an element of testMap.
func entry(key, data uint32) Elem {
	e := Elem{Key: make([]byte, 8), Data: make([]byte, 8)}
	native.PutUint32(e.Key, key)
	native.PutUint32(e.Data, data)
	return e
}

func compareElems(a, b Elem) int { return bytes.Compare(a.Key, b.Key) }

func sortedElems(t testing.TB, c *Conn, set string) []Elem {
	t.Helper()
	elems, err := c.Elems(testTable, set)
	if err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(elems, compareElems)
	return elems
}

func sameElem(a, b Elem) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd) && bytes.Equal(a.Data, b.Data) && a.Timeout == b.Timeout
}

// TestRoundTrip writes every kind of object and reads it back, also with an independent decoder.
func TestRoundTrip(t *testing.T) {
	for _, f := range []Family{IPv4, IPv6} {
		ns := newNS(t)
		c := dial(t, ns)
		tb := Table{f, "test"}
		addr, dst := TypeIPv4, Payload(Reg0, NetworkHeader, 16, 4)
		if f == IPv6 {
			addr, dst = TypeIPv6, Payload(Reg0, NetworkHeader, 24, 16)
		}
		sets := []Set{
			{Name: "plain", Key: []Type{addr}},
			{Name: "map", Key: []Type{addr, TypeProto, TypePort, TypeMark}, Data: []Type{addr, TypePort}},
			{Name: "ranges", Key: []Type{TypePort, addr}, Interval: true},
			{Name: "learned", Key: []Type{addr, TypePort}, Data: []Type{addr, TypePort}, Dynamic: true, MaxSize: 99},
		}
		chains := []Chain{
			{Name: "sub", Rules: [][]Expr{{dst, InSet(Reg0, "plain"), Drop()}, {Return()}}},
			{Name: "base", Hook: &Hook{Type: "nat", Number: Prerouting, Priority: -100}, Rules: [][]Expr{{Jump("sub")}}},
		}
		elems := map[string][]Elem{}
		for i, s := range sets {
			for n := range 1000 + i {
				e := Elem{Key: make([]byte, Width(s.Key))}
				native.PutUint32(e.Key[len(e.Key)-4:], uint32(n*4))
				if s.Interval {
					e.KeyEnd = bytes.Clone(e.Key)
					native.PutUint32(e.KeyEnd[len(e.Key)-4:], uint32(n*4))
				}
				if len(s.Data) > 0 {
					e.Data = bytes.Repeat([]byte{byte(n)}, Width(s.Data))
				}
				if s.Dynamic {
					e.Timeout, e.Expires = 60_000, 50_000
					if n >= 99 {
						break
					}
				}
				elems[s.Name] = append(elems[s.Name], e)
			}
		}
		commit(t, c, func(b *Batch) {
			b.AddTable(tb)
			for i := range sets {
				b.AddSet(tb, &sets[i])
			}
			for i := range chains {
				b.AddChain(tb, &chains[i])
			}
			for i := range chains {
				for _, r := range chains[i].Rules {
					b.AddRule(tb, chains[i].Name, r)
				}
			}
			for name, list := range elems {
				for _, e := range list {
					b.AddElem(tb, name, e)
				}
			}
		})

		s, err := c.ReadSkeleton(tb)
		if err != nil {
			t.Fatal(err)
		}
		if !s.Fits(tb, 0, sets, chains) || len(s.Sets()) != len(sets) {
			t.Errorf("the table does not fit what it was made of; sets %v", s.Sets())
		}
		for i := range chains {
			if exists, same := s.HasChain(tb, &chains[i]); !exists || !same {
				t.Errorf("chain %s: exists %v, same %v", chains[i].Name, exists, same)
			}
		}
		checkUnlike(t, s, tb, sets, chains)
		for name, want := range elems {
			got, err := c.Elems(tb, name)
			if err != nil {
				t.Fatal(err)
			}
			for i := range got {
				if got[i].Timeout != 0 && (got[i].Expires == 0 || got[i].Expires > 50_000) {
					t.Errorf("%s: element expires in %d ms", name, got[i].Expires)
				}
			}
			slices.SortFunc(got, compareElems)
			slices.SortFunc(want, compareElems)
			if !slices.EqualFunc(got, want, sameElem) {
				t.Errorf("%s: read %d elements, not the %d that were written", name, len(got), len(want))
			}
			if !slices.Contains([]string{"ranges", "learned"}, name) {
				compareWithGoogle(t, ns, tb, name, got)
			}
		}
	}
}

// checkUnlike checks that small differences are seen.
func checkUnlike(t *testing.T, s *Skeleton, tb Table, sets []Set, chains []Chain) {
	t.Helper()
	for name, other := range map[string]Set{
		"another key":      {Name: "plain", Key: []Type{TypeMark}},
		"a map":            {Name: "plain", Key: sets[0].Key, Data: []Type{TypePort}},
		"a set":            {Name: "map", Key: sets[1].Key},
		"dynamic":          {Name: "plain", Key: sets[0].Key, Dynamic: true, MaxSize: 1},
		"not dynamic":      {Name: "learned", Key: sets[3].Key, Data: sets[3].Data},
		"another size":     {Name: "learned", Key: sets[3].Key, Data: sets[3].Data, Dynamic: true, MaxSize: 98},
		"without ranges":   {Name: "ranges", Key: sets[2].Key},
		"one that is not ": {Name: "nothing", Key: sets[0].Key},
	} {
		if s.HasSet(tb, &other) {
			t.Errorf("set that is %s passes for the same", name)
		}
	}
	rules := chains[0].Rules
	for name, other := range map[string]Chain{
		"one rule less":    {Name: "sub", Rules: rules[:1]},
		"one rule more":    {Name: "sub", Rules: append(slices.Clone(rules), rules[0])},
		"another order":    {Name: "sub", Rules: [][]Expr{rules[1], rules[0]}},
		"another verdict":  {Name: "sub", Rules: [][]Expr{rules[0], {Drop()}}},
		"one more expr":    {Name: "sub", Rules: [][]Expr{append(slices.Clone(rules[0]), Drop()), rules[1]}},
		"a base chain":     {Name: "sub", Hook: chains[1].Hook, Rules: rules},
		"no base chain":    {Name: "base", Rules: chains[1].Rules},
		"another priority": {Name: "base", Hook: &Hook{Type: "nat", Number: Prerouting, Priority: -99}, Rules: chains[1].Rules},
		"another hook":     {Name: "base", Hook: &Hook{Type: "nat", Number: Output, Priority: -100}, Rules: chains[1].Rules},
	} {
		if _, same := s.HasChain(tb, &other); same {
			t.Errorf("chain with %s passes for the same", name)
		}
	}
	if s.Fits(tb, 0, sets[1:], chains) || s.Fits(tb, 0, sets, chains[1:]) {
		t.Error("a table with a set or chain too many fits")
	}
	if !s.Fits(tb, 0, append(slices.Clone(sets), Set{Name: "new"}), chains) {
		t.Error("a table with a set too few does not fit, which can be added")
	}
}

// compareWithGoogle reads a set with another library.
func compareWithGoogle(t *testing.T, ns *netns.NS, tb Table, set string, want []Elem) {
	t.Helper()
	err := ns.Do(func() error {
		c, err := gnft.New()
		if err != nil {
			return err
		}
		table := &gnft.Table{Family: gnft.TableFamily(tb.Family), Name: tb.Name}
		s, err := c.GetSetByName(table, set)
		if err != nil {
			return err
		}
		others, err := c.GetSetElements(s)
		if err != nil {
			return err
		}
		slices.SortFunc(others, func(a, b gnft.SetElement) int { return bytes.Compare(a.Key, b.Key) })
		if !slices.EqualFunc(others, want, func(o gnft.SetElement, w Elem) bool {
			return bytes.Equal(o.Key, w.Key) && bytes.Equal(o.Val, w.Data)
		}) {
			t.Errorf("%s: google/nftables reads %d other elements", set, len(others))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// TestSkeletonSeesTheTableAndPolicies is about parts other than sets and rules that other tools can change.
func TestSkeletonSeesTheTableAndPolicies(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	chains := []Chain{{Name: "base", Hook: &Hook{Type: "nat", Number: Prerouting, Priority: -100}}}
	commit(t, c, func(b *Batch) { b.AddTable(testTable); b.AddChain(testTable, &chains[0]) })
	fits := func() bool {
		s, err := c.ReadSkeleton(testTable)
		if err != nil {
			t.Fatal(err)
		}
		return s.Fits(testTable, 0, nil, chains)
	}
	if !fits() {
		t.Fatal("what was written does not fit")
	}
	change := func(policy gnft.ChainPolicy) {
		err := ns.Do(func() error {
			g, err := gnft.New()
			if err != nil {
				return err
			}
			g.AddChain(&gnft.Chain{Table: &gnft.Table{Family: gnft.TableFamilyIPv4, Name: testTable.Name}, Name: "base",
				Policy: &policy, Type: gnft.ChainTypeNAT, Hooknum: gnft.ChainHookPrerouting, Priority: gnft.ChainPriorityNATDest})
			return g.Flush()
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	change(gnft.ChainPolicyDrop)
	if fits() {
		t.Error("a chain that drops by policy fits")
	}
	change(gnft.ChainPolicyAccept)
	if !fits() {
		t.Error("a chain whose policy was put back does not fit")
	}
	commit(t, c, func(b *Batch) {
		b.begin(nftMsgNewTable, nlmFCreate, testTable.Family)
		b.buf = appendAttrString(b.buf, nftaTableName, testTable.Name)
		b.buf = appendAttr(b.buf, attrU32(nftaTableFlags, nftTableFDormant))
		b.count++
	})
	if fits() {
		t.Error("a dormant table fits")
	}
}

// TestRefusals checks that a refused batch changes nothing, says why, and leaves the connection usable.
func TestRefusals(t *testing.T) {
	c := dial(t, newNS(t))
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		b.AddElem(testTable, "m", entry(1, 1))
	})
	before := sortedElems(t, c, "m")
	generation, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name string
		want error
		fill func(*Batch)
	}{
		{"other data for a key", os.ErrExist, func(b *Batch) { b.AddElem(testTable, "m", entry(1, 2)) }},
		{"deletion of what is not there", os.ErrNotExist, func(b *Batch) { b.DeleteElem(testTable, "m", entry(9, 9)) }},
		{"a set that is not there", os.ErrNotExist, func(b *Batch) { b.AddElem(testTable, "other", entry(1, 1)) }},
		{"a table that is not there", os.ErrNotExist, func(b *Batch) { b.DeleteTable(Table{IPv6, "other"}) }},
		{"a rule that jumps nowhere", os.ErrNotExist, func(b *Batch) {
			b.AddChain(testTable, &Chain{Name: "c"})
			b.AddRule(testTable, "c", []Expr{Jump("nowhere")})
		}},
	} {
		for _, neighbours := range []uint32{0, 3, 5000} {
			var b Batch
			for i := range neighbours {
				b.AddElem(testTable, "m", entry(100+i, 1))
			}
			r.fill(&b)
			for i := range neighbours {
				b.AddElem(testTable, "m", entry(10_000+i, 1))
			}
			err := c.Commit(&b)
			if !errors.Is(err, r.want) {
				t.Errorf("%s among %d: %v, want %v", r.name, neighbours, err, r.want)
			}
			if after := sortedElems(t, c, "m"); !slices.EqualFunc(before, after, sameElem) {
				t.Errorf("%s among %d: the set has %d elements now", r.name, neighbours, len(after))
			}
			if now, err := c.Generation(); err != nil || now != generation {
				t.Errorf("%s among %d: generation %d, %v, want %d", r.name, neighbours, now, err, generation)
			}
		}
	}
	commit(t, c, func(b *Batch) {
		b.AddElem(testTable, "m", entry(1, 1)) // the same data is no error
		b.DeleteElem(testTable, "m", entry(1, 1))
		b.AddElem(testTable, "m", entry(1, 2))
	})
	if after := sortedElems(t, c, "m"); len(after) != 1 || native.Uint32(after[0].Data) != 2 {
		t.Errorf("after the refusals the set cannot be changed: %v", after)
	}
}

func TestMissingObjects(t *testing.T) {
	c := dial(t, newNS(t))
	if ok, err := c.HasTable(testTable); ok || err != nil {
		t.Errorf("HasTable: %v, %v", ok, err)
	}
	if s, err := c.ReadSkeleton(testTable); !errors.Is(err, os.ErrNotExist) || s != nil {
		t.Errorf("ReadSkeleton: %v, %v", s, err)
	}
	if _, err := c.Elems(testTable, "m"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Elems without a table: %v", err)
	}
	commit(t, c, func(b *Batch) { b.AddTable(testTable) })
	if _, err := c.Elems(testTable, "m"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Elems without a set: %v", err)
	}
	if ok, err := c.HasTable(testTable); !ok || err != nil {
		t.Errorf("HasTable: %v, %v", ok, err)
	}
	if err := c.Commit(&Batch{}); err != nil {
		t.Errorf("an empty batch: %v", err)
	}
}

// TestManyElements commits more elements than fit into any one message, and reads them back.
func TestManyElements(t *testing.T) {
	const count = 100_001
	c := dial(t, newNS(t))
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		for i := range uint32(count) {
			b.AddElem(testTable, "m", entry(i, i+1))
		}
	})
	seen := map[uint32]bool{}
	elems, err := c.Elems(testTable, "m")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range elems {
		key := native.Uint32(e.Key)
		if native.Uint32(e.Data) != key+1 {
			t.Fatalf("%d has %v", key, e.Data)
		}
		seen[key] = true
	}
	if len(seen) != count {
		t.Errorf("%d elements came back, want %d", len(seen), count)
	}
}

// TestDumpDuringCommits reads a set while every commit replaces all of its data: a dump shows one generation.
func TestDumpDuringCommits(t *testing.T) {
	const count = 300 // several messages
	ns := newNS(t)
	c, w := dial(t, ns), dial(t, ns)
	commit(t, w, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		for i := range uint32(count) {
			b.AddElem(testTable, "m", entry(i, 0))
		}
	})
	stop, finished := make(chan struct{}), make(chan error, 1)
	go func() {
		for round := uint32(1); ; round++ {
			select {
			case <-stop:
				finished <- nil
				return
			default:
			}
			var b Batch
			for i := range uint32(count) {
				b.DeleteElem(testTable, "m", entry(i, 0))
			}
			for i := range uint32(count) {
				b.AddElem(testTable, "m", entry(i, round))
			}
			if err := w.Commit(&b); err != nil {
				finished <- fmt.Errorf("round %d: %w", round, err)
				return
			}
		}
	}()
	whole := 0
	rounds := map[uint32]bool{}
	for range 200 {
		elems, err := c.Elems(testTable, "m")
		if err != nil {
			continue // it says so, which is honest
		}
		whole++
		if len(elems) != count {
			t.Errorf("a dump has %d elements, want %d", len(elems), count)
		}
		first := native.Uint32(elems[0].Data)
		rounds[first] = true
		if i := slices.IndexFunc(elems, func(e Elem) bool { return native.Uint32(e.Data) != first }); i >= 0 {
			t.Errorf("a dump mixes generations %d and %d", first, native.Uint32(elems[i].Data))
		}
	}
	close(stop)
	if err := <-finished; err != nil {
		t.Error(err)
	}
	if whole == 0 || len(rounds) < 2 {
		t.Errorf("%d dumps of %d generations succeeded: nothing was tested", whole, len(rounds))
	}
	t.Logf("%d whole dumps of %d generations", whole, len(rounds))
}

func TestGeneration(t *testing.T) {
	ns := newNS(t)
	c, other := dial(t, ns), dial(t, ns)
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	conns := []*Conn{c, other}
	for i := range uint32(5) {
		commit(t, conns[i%2], func(b *Batch) { b.AddTable(Table{IPv4, fmt.Sprint("t", i)}) })
		now, err := c.Generation()
		if err != nil || now != before+1+i {
			t.Errorf("after %d commits: %d, %v, want %d", i+1, now, err, before+1+i)
		}
	}
	commit(t, c, func(b *Batch) { b.AddTable(Table{IPv4, "t0"}) })
	if now, _ := c.Generation(); now != before+5 {
		t.Errorf("a commit that changes nothing raised the generation by %d", now-before-5)
	}
}

// TestForeignAnswers lets another process answer in the kernel's place: that a batch succeeded, which it does not.
func TestForeignAnswers(t *testing.T) {
	ns := newNS(t)
	c := dial(t, ns)
	own, err := unix.Getsockname(c.fd)
	if err != nil {
		t.Fatal(err)
	}
	err = ns.Do(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		for _, forged := range [][]byte{ack(2, 0), {1}, done(2, 0)} {
			if err := unix.Sendto(fd, forged, 0, own); !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("a message of another process: %v, want %v", err, unix.ECONNREFUSED)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Commit(oneElement()); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a batch for a table that does not exist: %v", err)
	}
}
