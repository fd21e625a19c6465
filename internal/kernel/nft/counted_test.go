//go:build linux

package nft

import (
	"strings"
	"testing"
	"time"
)

// TestExpiringCountedElements is about a set whose elements time out, count packets and have comments.
func TestExpiringCountedElements(t *testing.T) {
	c := dial(t, newNS(t))
	set := Set{Name: "s", Key: []Type{TypeIPv4, TypePort}, Expiring: true, Counted: true}
	key := func(n byte) []byte { return []byte{10, 0, 0, n, 0, 80, 0, 0} }
	comment := strings.Repeat("x", MaxComment)
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &set)
		b.AddChain(testTable, &Chain{Name: "c"})
		b.AddRule(testTable, "c", []Expr{Counter()})
		b.AddElem(testTable, "s", Elem{Key: key(1), Timeout: 3_600_000, Expires: 1_800_000, Comment: comment})
		b.AddElem(testTable, "s", Elem{Key: key(2)})
		b.AddElem(testTable, "s", Elem{Key: key(3), Timeout: 1, Expires: 1})
	})
	sk, err := c.ReadSkeleton(testTable)
	if err != nil {
		t.Fatal(err)
	}
	if _, same := sk.HasChain(testTable, &Chain{Name: "c", Rules: [][]Expr{{Counter()}}}); !sk.HasSet(testTable, &set) || !same || sk.Packets("c") != 0 {
		t.Errorf("the set is not recognized (%v), or the rule is not (%v), or it has counted %d packets", sk.HasSet(testTable, &set), same, sk.Packets("c"))
	}
	for _, other := range []Set{{Name: "s", Key: set.Key, Expiring: true}, {Name: "s", Key: set.Key, Counted: true}} {
		if (other.Expiring == set.Expiring) != sk.HasSet(testTable, &other) {
			t.Errorf("%+v: recognized: %v", other, sk.HasSet(testTable, &other))
		}
	}
	if e, ok, err := c.Elem(testTable, "s", key(1)); err != nil || !ok || e.Comment != comment || e.Timeout != 3_600_000 || e.Expires > 1_800_000 || e.Expires == 0 {
		t.Errorf("element: %+v, %v, %v", e, ok, err)
	}
	time.Sleep(20 * time.Millisecond) // the kernel's clock, not ours, decides that the third one has timed out
	for _, set := range []string{"s", "no-such-set"} {
		if e, ok, err := c.Elem(testTable, set, key(3)); err != nil || ok {
			t.Errorf("%s: an element that is not there: %+v, %v, %v", set, e, ok, err)
		}
	}
	// To add an element first makes sure that it can be deleted, whether it is there, has timed out, or is not known.
	commit(t, c, func(b *Batch) {
		for n := range byte(4) {
			b.AddElem(testTable, "s", Elem{Key: key(n + 1)})
			b.DeleteElem(testTable, "s", Elem{Key: key(n + 1)})
		}
	})
	if elems := sortedElems(t, c, "s"); len(elems) != 0 {
		t.Errorf("left: %+v", elems)
	}
}
