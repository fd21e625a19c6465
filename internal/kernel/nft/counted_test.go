//go:build linux

package nft

import (
	"slices"
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
	time.Sleep(20 * time.Millisecond) // the kernel's clock, not ours, decides that the third one has timed out
	var found []int
	if err := c.FindElems(testTable, "s", 8, slices.Concat(key(4), key(1), key(3), key(2)), func(i int, e Elem) {
		found = append(found, i)
		if i == 1 && (e.Comment != comment || e.Timeout != 3_600_000 || e.Expires > 1_800_000 || e.Expires == 0) {
			t.Errorf("element: %+v", e)
		}
	}); err != nil || !slices.Equal(found, []int{1, 3}) {
		t.Errorf("found %v, %v", found, err)
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
