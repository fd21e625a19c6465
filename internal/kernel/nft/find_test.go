//go:build linux

package nft

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// TestFind looks up keys, some of them there.
func TestFind(t *testing.T) {
	c := dial(t, newNS(t))
	plain := Set{Name: "plain", Key: testMap.Key}
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		b.AddSet(testTable, &plain)
		for i := range uint32(2000) {
			if i%7 != 3 {
				b.AddElem(testTable, "m", entry(i, i+1))
				b.AddElem(testTable, "plain", Elem{Key: entry(i, 0).Key})
			}
		}
	})
	width := len(entry(0, 0).Key)
	keys := func(from, to uint32) (list []byte) {
		for i := from; i < to; i++ {
			list = append(list, entry(i, 0).Key...)
		}
		return list
	}
	for _, set := range []string{"m", "plain"} {
		for _, r := range [][2]uint32{{0, 2000}, {3, 4}, {0, 1}, {1990, 3000}, {4000, 4010}, {5, 5}} {
			var got, want []string
			err := c.Find(testTable, set, width, keys(r[0], r[1]), func(i int, data []byte) { got = append(got, fmt.Sprintf("%d %x", i, data)) })
			if err != nil {
				t.Fatal(err)
			}
			for i := r[0]; i < min(r[1], 2000); i++ {
				if i%7 != 3 {
					data := entry(0, i+1).Data
					if set == "plain" {
						data = nil
					}
					want = append(want, fmt.Sprintf("%d %x", i-r[0], data))
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s, keys %d to %d: got %d elements, want %d", set, r[0], r[1], len(got), len(want))
			}
		}
	}
	for _, missing := range []func() error{
		func() error {
			return c.Find(testTable, "no-such-set", width, keys(0, 3), func(int, []byte) { t.Error("found") })
		},
		func() error {
			return c.Find(Table{IPv6, "no"}, "m", width, keys(0, 3), func(int, []byte) { t.Error("found") })
		},
	} {
		if err := missing(); err != nil {
			t.Errorf("a set that does not exist: %v", err)
		}
	}
}

// TestFindWithASmallBuffer is about a socket that cannot take the answers to many keys at once.
func TestFindWithASmallBuffer(t *testing.T) {
	c := dial(t, newNS(t))
	const n = 3000
	var keys []byte
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		for i := range uint32(n) {
			b.AddElem(testTable, "m", entry(i, i))
			keys = append(keys, entry(i, 0).Key...)
		}
	})
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	next := 0
	err := c.Find(testTable, "m", len(keys)/n, keys, func(i int, data []byte) {
		if i != next || !bytes.Equal(data, entry(0, uint32(i)).Data) {
			t.Fatalf("got element %d with data %x, want element %d", i, data, next)
		}
		next++
	})
	if err != nil || next != n {
		t.Errorf("found %d elements, %v", next, err)
	}
	if c.room == maxRoom {
		t.Error("the buffer was large enough")
	}
}

// TestHasAll asks for keys that are all there, and for some that are not. The socket could not take the elements themselves.
func TestHasAll(t *testing.T) {
	c := dial(t, newNS(t))
	const n = 3000
	plain := Set{Name: "plain", Key: testMap.Key}
	commit(t, c, func(b *Batch) {
		b.AddTable(testTable)
		b.AddSet(testTable, &testMap)
		b.AddSet(testTable, &plain)
		for i := range uint32(n) {
			b.AddElem(testTable, "m", entry(i, i))
			b.AddElem(testTable, "plain", Elem{Key: entry(i, 0).Key})
		}
	})
	if err := unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 4096); err != nil {
		t.Fatal(err)
	}
	width := len(entry(0, 0).Key)
	for _, set := range []string{"m", "plain", "no-such-set"} {
		for _, r := range []struct {
			from, to uint32
			all      bool
		}{{0, n, true}, {n - 1, n, true}, {7, 7, true}, {1, n + 1, false}, {n, n + 1, false}, {n, 2 * n, false}, {0, n, true}} {
			var keys []byte
			for i := r.from; i < r.to; i++ {
				keys = append(keys, entry(i, 0).Key...)
			}
			want := r.all && (set != "no-such-set" || len(keys) == 0)
			if all, err := c.HasAll(testTable, set, width, keys); all != want || err != nil {
				t.Errorf("%s has all keys from %d to %d: %v, %v", set, r.from, r.to, all, err)
			}
			found := 0 // other requests are answered in full
			if err := c.Find(testTable, set, width, keys[:min(len(keys), 9*width)], func(int, []byte) { found++ }); err != nil {
				t.Error(err)
			}
			if there := min(9, int(min(r.to, n)-min(r.from, n))); set != "no-such-set" && found != there {
				t.Errorf("%s, keys from %d to %d: found %d of the first %d", set, r.from, r.to, found, there)
			}
		}
	}
	if _, err := c.HasAll(testTable, "m", width-4, make([]byte, width-4)); err == nil {
		t.Error("keys of another length: no error")
	}
}
