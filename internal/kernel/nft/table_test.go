//go:build linux

package nft

import (
	"errors"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// needs skips what the kernel cannot do.
func needs(t testing.TB, c *Conn, f Feature) {
	t.Helper()
	switch ok, err := c.Has(f); {
	case err != nil:
		t.Fatal(err)
	case !ok:
		t.Skipf("this kernel does not have %s, as Linux %s has", f.Name, f.Since)
	}
}

// TestFeatures asks for features twice, around which nothing may change.
func TestFeatures(t *testing.T) {
	c := dial(t, newNS(t))
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []Feature{PersistentTables, Hashing, ElementCounts} {
		has, err := c.Has(f)
		again, errAgain := c.Has(f)
		if err != nil || errAgain != nil || has != again {
			t.Errorf("%s: %v, %v, then %v, %v", f.Name, has, err, again, errAgain)
		}
		t.Logf("%s (Linux %s): %v", f.Name, f.Since, has)
	}
	if _, err := c.Has(Feature{Name: "another"}); err == nil {
		t.Error("a feature that cannot be asked for")
	}
	if after, err := c.Generation(); err != nil || after != before {
		t.Errorf("generation %d, %v, was %d", after, err, before)
	}
}

// TestFeaturesOfOtherKernels is about answers that this kernel does not give.
func TestFeaturesOfOtherKernels(t *testing.T) {
	for _, c := range []struct {
		feature Feature
		errno   unix.Errno
		has, ok bool
	}{
		{PersistentTables, unix.ENOENT, true, true},
		{PersistentTables, unix.EOPNOTSUPP, false, true},
		{PersistentTables, unix.EPERM, false, false},
		{PersistentTables, 0, false, false},
		{Hashing, unix.ERANGE, true, true},
		{Hashing, unix.ENOENT, false, true},
		{Hashing, unix.EPERM, false, false},
		{ElementCounts, unix.EINVAL, true, true},
		{ElementCounts, unix.ENOENT, false, true},
		{ElementCounts, unix.EPERM, false, false},
	} {
		conn := fakeKernel(t, func(request []message) [][]byte { return [][]byte{ack(request[max(len(request)-2, 0)].seq, c.errno)} })
		if has, err := conn.Has(c.feature); has != c.has || (err == nil) != c.ok {
			t.Errorf("%s, answer %v: %v, %v", c.feature.Name, c.errno, has, err)
		}
	}
}

// TestOwnedTable is about a table that others cannot change, and that vanishes with its socket.
func TestOwnedTable(t *testing.T) {
	ns := newNS(t)
	owner, other := dial(t, ns), dial(t, ns)
	create := func(c *Conn, comment string) error {
		var b Batch
		b.CreateTable(testTable, Owned, comment)
		return c.Commit(&b)
	}
	if err := create(owner, "a comment"); err != nil {
		t.Fatal(err)
	}
	port, err := owner.Port()
	if err != nil {
		t.Fatal(err)
	}
	if info, err := other.Table(testTable); err != nil || info != (TableInfo{Owned, port, "a comment"}) {
		t.Errorf("the table shows %+v, %v; its owner's port is %d", info, err, port)
	}
	if err := create(other, ""); !errors.Is(err, unix.EPERM) {
		t.Errorf("creating it again: %v, want %v", err, unix.EPERM)
	}
	for name, fill := range map[string]func(*Batch){
		"taking it over": func(b *Batch) { b.AddTableAs(testTable, Owned) },
		"deleting it":    func(b *Batch) { b.DeleteTable(testTable) },
		"adding a set":   func(b *Batch) { b.AddSet(testTable, &testMap) },
	} {
		var b Batch
		fill(&b)
		if err := other.Commit(&b); !errors.Is(err, unix.EPERM) {
			t.Errorf("%s: %v, want %v", name, err, unix.EPERM)
		}
	}
	owner.Close()
	if _, err := other.Table(testTable); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after its owner is gone: %v", err)
	}
	if err := create(other, strings.Repeat("x", 1000)); err != nil {
		t.Fatal(err)
	}
	if info, err := other.Table(testTable); err != nil || info.Comment != strings.Repeat("x", MaxComment) {
		t.Errorf("a long comment: %q, %v", info.Comment, err)
	}
	var b Batch
	b.CreateTable(testTable, Owned, "")
	if err := other.Commit(&b); !errors.Is(err, unix.EEXIST) {
		t.Errorf("the owner creates it again: %v, want %v", err, unix.EEXIST)
	}
}

// flushRuleset deletes all tables of all families, as "nft flush ruleset" does.
func flushRuleset(b *Batch) {
	b.begin(nftMsgDelTable, 0, 0)
	b.count++
}

// TestPersistentTable lets a table go from one owner to the next, with all that is in it.
func TestPersistentTable(t *testing.T) {
	ns := newNS(t)
	first, second := dial(t, ns), dial(t, ns)
	needs(t, first, PersistentTables)
	own := func(c *Conn) error {
		var b Batch
		b.AddTableAs(testTable, Owned|Persistent)
		b.AddSet(testTable, &testMap)
		b.AddElem(testTable, "m", entry(1, 2))
		return c.Commit(&b)
	}
	if err := own(first); err != nil {
		t.Fatal(err)
	}
	if err := own(second); !errors.Is(err, unix.EPERM) {
		t.Errorf("taking over a table that has an owner: %v, want %v", err, unix.EPERM)
	}
	bystander := Table{IPv4, "bystander"}
	commit(t, second, func(b *Batch) { b.AddTable(bystander) })
	commit(t, second, flushRuleset)
	if ok, err := second.HasTable(bystander); ok || err != nil {
		t.Errorf("a table without an owner after a flush: %v, %v", ok, err)
	}
	first.Close()
	if info, err := second.Table(testTable); err != nil || info.Flags != Persistent || info.Owner != 0 {
		t.Errorf("without its owner the table shows %+v, %v", info, err)
	}
	if err := own(second); err != nil {
		t.Errorf("taking it over: %v", err)
	}
	s, err := second.ReadSkeleton(testTable)
	if err != nil {
		t.Fatal(err)
	}
	for flags, fits := range map[TableFlags]bool{Owned | Persistent: true, Persistent: false, 0: false} {
		if s.Fits(testTable, flags, []Set{testMap}, nil) != fits {
			t.Errorf("the table fits flags %d: %v", flags, !fits)
		}
	}
	if elems := sortedElems(t, second, "m"); len(elems) != 1 || !sameElem(elems[0], entry(1, 2)) {
		t.Errorf("the table holds %v", elems)
	}
}

// TestComments reads user data that others have written.
func TestComments(t *testing.T) {
	for data, want := range map[string]string{
		"\x00\x03hi\x00":             "hi",
		"\x05\x01x\x00\x03hi\x00":    "hi",
		"\x00\x02hi":                 "hi",
		"\x00\x09hi\x00":             "",
		"\x00":                       "",
		"":                           "",
		string(encodeComment("")):    "",
		string(encodeComment("one")): "one",
	} {
		if got := decodeComment([]byte(data)); got != want {
			t.Errorf("%q: %q, want %q", data, got, want)
		}
	}
}

// TestCounts compares the kernel's numbers of elements with what was written.
func TestCounts(t *testing.T) {
	c := dial(t, newNS(t))
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddTable(Table{IPv6, "another"})
		b.AddSet(testTable, &testMap)
		b.AddSet(Table{IPv6, "another"}, &testMap)
	})
	has, err := c.Has(ElementCounts)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		fill func(*Batch)
		want int
	}{
		{"empty", func(*Batch) {}, 0},
		{"added", func(b *Batch) {
			for i := range uint32(1000) {
				b.AddElem(testTable, "m", entry(i, i))
			}
		}, 1000},
		{"some deleted, and one replaced", func(b *Batch) {
			for i := range uint32(10) {
				b.DeleteElem(testTable, "m", entry(i, i))
			}
			b.AddElem(testTable, "m", entry(0, 7))
		}, 991},
		{"flushed and filled", func(b *Batch) {
			b.FlushSet(testTable, "m")
			for i := range uint32(7) {
				b.AddElem(testTable, "m", entry(i, i+1))
			}
		}, 7},
		{"flushed", func(b *Batch) { b.FlushSet(testTable, "m") }, 0},
	} {
		commit(t, c, step.fill)
		if elems := sortedElems(t, c, "m"); len(elems) != step.want {
			t.Errorf("%s: there are %d elements, want %d", step.name, len(elems), step.want)
		}
		s, err := c.ReadSkeleton(testTable)
		if err != nil {
			t.Fatal(err)
		}
		n, ok := s.Count("m")
		if ok != has || has && n != step.want {
			t.Errorf("%s: the kernel counts %d elements (%v), want %d (%v)", step.name, n, ok, step.want, has)
		}
		f, ok, err := c.Fill(testTable, "m")
		if err != nil || ok != has || has && f != (Fill{Count: step.want}) {
			t.Errorf("%s: asked for the set alone, the kernel tells %+v (%v, %v), want %d (%v)", step.name, f, ok, err, step.want, has)
		}
	}
}

// TestFillOfBoundedSet: a set tells how many elements it can hold, and one that is not there tells nothing.
func TestFillOfBoundedSet(t *testing.T) {
	c := dial(t, newNS(t))
	has, err := c.Has(ElementCounts)
	if err != nil {
		t.Fatal(err)
	}
	bounded := testMap
	bounded.Dynamic, bounded.MaxSize = true, 5
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &bounded)
		b.AddElem(testTable, bounded.Name, entry(1, 1))
		b.AddElem(testTable, bounded.Name, entry(2, 2))
	})
	if f, ok, err := c.Fill(testTable, bounded.Name); err != nil || ok != has || has && f != (Fill{Count: 2, Size: 5}) {
		t.Errorf("%+v (%v, %v), want 2 of 5 (%v)", f, ok, err, has)
	}
	for _, other := range []Table{testTable, {IPv6, "no-such-table"}} {
		if f, ok, err := c.Fill(other, "no-such-set"); err != nil || ok {
			t.Errorf("a set that is not there: %+v (%v, %v)", f, ok, err)
		}
	}
}

// TestNoRoom is about batches that a smaller one could replace, and others.
func TestNoRoom(t *testing.T) {
	for errno, want := range map[unix.Errno]bool{unix.ENOMEM: true, unix.ENOBUFS: true, unix.EMSGSIZE: true, unix.EINVAL: false} {
		c := fakeKernel(t, func([]message) [][]byte { return [][]byte{ack(2, errno)} })
		if err := c.Commit(oneElement()); errors.Is(err, ErrNoRoom) != want || !errors.Is(err, errno) {
			t.Errorf("%v: %v", errno, err)
		}
	}
	c := dial(t, newNS(t))
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 4096); err != nil {
		t.Fatal(err)
	}
	var b Batch
	b.AddTable(testTable)
	b.AddSet(testTable, &testMap)
	for i := range uint32(1000) {
		b.AddElem(testTable, "m", entry(i, i))
	}
	if err := c.Commit(&b); !errors.Is(err, ErrNoRoom) || !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("more than the socket's buffer holds: %v", err)
	}
	if ok, err := c.HasTable(testTable); ok || err != nil {
		t.Errorf("after a batch that did not fit: %v, %v", ok, err)
	}
}
