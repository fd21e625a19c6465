//go:build linux

package nft

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// encode lays out attributes as the kernel would.
func encode(attrs ...Attr) []byte {
	var b []byte
	for _, a := range attrs {
		b = appendAttr(b, a)
	}
	return b
}

func TestAttributes(t *testing.T) {
	b := encode(attrString(1, "abc"), attrString(2, "abcd"), attrNest(3, attrU32(1, 7), attrU32(1, 8)), attrU64(4, 9))
	if len(b)%4 != 0 {
		t.Errorf("%d bytes are not padded", len(b))
	}
	var types []uint16
	if err := eachAttr(b, func(typ uint16, _ []byte) error { types = append(types, typ); return nil }); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(types, []uint16{1, 2, 3, 4}) {
		t.Errorf("types are %v", types)
	}
	if attrStr(b, 1) != "abc" || attrStr(b, 2) != "abcd" || attrStr(b, 9) != "" {
		t.Errorf("strings are %q, %q, %q", attrStr(b, 1), attrStr(b, 2), attrStr(b, 9))
	}
	if first, second := findAttr(findAttr(b, 3, 0), 1, 0), findAttr(findAttr(b, 3, 0), 1, 1); beUint32(first) != 7 || beUint32(second) != 8 {
		t.Errorf("repeated attributes are %v and %v", first, second)
	}
	stop := errors.New("stop")
	calls := 0
	if err := eachAttr(b, func(uint16, []byte) error { calls++; return stop }); err != stop || calls != 1 {
		t.Errorf("a callback that fails: %v after %d calls", err, calls)
	}
}

// TestTruncated cuts a valid list everywhere: it is an error unless the cut is between attributes.
func TestTruncated(t *testing.T) {
	b := encode(attrU32(1, 7), attrString(2, "ab"), attrU64(4, 9))
	whole := map[int]bool{0: true, 8: true, 15: true, 16: true, 28: true} // the padding at the end may be missing
	for n := range len(b) + 1 {
		err := eachAttr(b[:n], func(uint16, []byte) error { return nil })
		if (err == nil) != whole[n] {
			t.Errorf("cut after %d bytes: %v", n, err)
		}
	}
}

func TestContains(t *testing.T) {
	sent := []Attr{attrU32(1, 7), attrNest(2, attrU32(1, 1), attrU32(1, 2))}
	for _, c := range []struct {
		name string
		dump []byte
		want bool
	}{
		{"the same", encode(sent...), true},
		{"more than was sent", encode(attrU32(9, 1), attrU32(1, 7), attrNest(2, attrU32(1, 1), attrU32(1, 2), attrU32(3, 3))), true},
		{"another value", encode(attrU32(1, 8), sent[1]), false},
		{"a missing attribute", encode(sent[1]), false},
		{"another nested value", encode(sent[0], attrNest(2, attrU32(1, 1), attrU32(1, 3))), false},
		{"another order", encode(sent[0], attrNest(2, attrU32(1, 2), attrU32(1, 1))), false},
		{"one of two", encode(sent[0], attrNest(2, attrU32(1, 1))), false},
		{"nothing", nil, false},
	} {
		if got := contains(c.dump, sent); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

// messagesOf takes a batch apart.
func messagesOf(t *testing.T, buf []byte) []message {
	t.Helper()
	var list []message
	if err := eachMessage(buf, func(m message) error { list = append(list, m); return nil }); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestSplit puts more elements into a batch than a message can hold.
func TestSplit(t *testing.T) {
	const count = 100_001
	for _, width := range []int{4, 44} {
		var b Batch
		for i := range count {
			key := make([]byte, width)
			native.PutUint32(key, uint32(i))
			b.AddElem(Table{IPv4, "t"}, "s", Elem{Key: key, KeyEnd: key, Data: key, Timeout: 1, Expires: 1})
		}
		if b.Len() != count {
			t.Errorf("Len is %d", b.Len())
		}
		buf, _ := b.seal()
		next := uint32(0)
		for _, m := range messagesOf(t, buf) {
			if m.typ != subsystem|nftMsgNewSetElem {
				continue
			}
			attrs := m.payload[4:]
			if n := len(findAttr(attrs, nftaSetElemListElements, 0)); n+attrHeader > maxAttr {
				t.Errorf("an element list of %d bytes", n)
			}
			if attrStr(attrs, nftaSetElemListTable) != "t" || attrStr(attrs, nftaSetElemListSet) != "s" {
				t.Errorf("message for %q %q", attrStr(attrs, nftaSetElemListTable), attrStr(attrs, nftaSetElemListSet))
			}
			elems, err := decodeElems(attrs, nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, e := range elems {
				if native.Uint32(e.Key) != next || !bytes.Equal(e.Key, e.Data) || !bytes.Equal(e.Key, e.KeyEnd) || len(e.Key) != width {
					t.Fatalf("element %d came out as %v", next, e)
				}
				next++
			}
		}
		if next != count {
			t.Errorf("%d elements of %d bytes arrived, want %d", next, width, count)
		}
	}
}

// TestGrouping checks that only neighbours of one set, table and operation share a message, and that Reset forgets all.
func TestGrouping(t *testing.T) {
	a, b := Table{IPv4, "a"}, Table{IPv6, "a"}
	e := Elem{Key: []byte{1, 2, 3, 4}}
	var batch Batch
	for range 2 {
		batch.AddElem(a, "x", e)
		batch.AddElem(a, "x", e)
		batch.AddElem(a, "y", e)
		batch.DeleteElem(a, "y", e)
		batch.DeleteElem(b, "y", e)
		batch.AddTable(b)
		batch.DeleteElem(b, "y", e)
		buf, ack := batch.seal()
		var got []string
		for _, m := range messagesOf(t, buf) {
			n := 0
			_ = eachAttr(findAttr(m.payload[4:], nftaSetElemListElements, 0), func(uint16, []byte) error { n++; return nil })
			got = append(got, fmt.Sprintf("%d:%d*%d", m.seq, m.typ&0xff, n))
		}
		want := strings.Fields("1:16*0 2:12*2 3:12*1 4:14*1 5:14*1 6:0*0 7:14*1 8:17*0")
		if !slices.Equal(got, want) || ack != 7 {
			t.Errorf("messages %s, answered at %d, want %s and 7", got, ack, want)
		}
		batch.Reset()
		if batch.Len() != 0 {
			t.Errorf("after Reset Len is %d", batch.Len())
		}
	}
}

// elemList is a list of elements with keys of four bytes, each of which begins with one that is given.
func elemList(keys ...byte) Attr {
	list := make([]Attr, len(keys))
	for i, k := range keys {
		list[i] = attrNest(nftaListElem, attrNest(nftaSetElemKey, Attr{Type: nftaDataValue, Value: []byte{k, 0, 0, 0}}))
	}
	return attrNest(nftaSetElemListElements, list...)
}

// TestLyingLengths: what the kernel is cut short in must not pass for less than there is.
func TestLyingLengths(t *testing.T) {
	whole := encode(attrString(nftaSetElemListTable, "t"), elemList(1, 2))
	if elems, err := decodeElems(whole, nil); err != nil || len(elems) != 2 {
		t.Fatalf("whole: %v, %v", elems, err)
	}
	for n := range whole {
		if elems, err := decodeElems(whole[:n], nil); err == nil && n != 0 && (n < 6 || n > 8) { // there the list is not begun
			t.Errorf("cut after %d of %d bytes: %v passes for all", n, len(whole), elems)
		}
	}
	for at := range len(whole) / 4 {
		lie := slices.Clone(whole)
		native.PutUint16(lie[4*at:], maxAttr)
		if elems, err := decodeElems(lie, nil); err == nil && len(elems) < 1 {
			t.Errorf("a lie at %d: %v passes for all", 4*at, elems)
		}
	}
	one := datagram(subsystem|nftMsgNewSetElem, 0, 1, whole)
	twice := slices.Concat(one, one)
	for n := range len(twice) + 1 {
		err := eachMessage(twice[:n], func(message) error { return nil })
		if boundary := n%len(one) == 0; (err == nil) != boundary {
			t.Errorf("a datagram cut after %d of %d bytes: %v", n, len(twice), err)
		}
	}
}

// checkSame wants the elements that were put into a batch to be read from it as they were. Without a timeout there is
// no time when it expires.
func checkSame(t *testing.T, b *Batch, want []Elem) {
	t.Helper()
	sealed, _ := b.seal()
	var got []Elem
	for _, m := range messagesOf(t, sealed) {
		if m.typ != subsystem|nftMsgNewSetElem {
			continue
		}
		var err error
		if got, err = decodeElems(m.payload[4:], got); err != nil {
			t.Error(err)
		}
	}
	same := func(a, b Elem) bool {
		return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd) && bytes.Equal(a.Data, b.Data) && a.Timeout == b.Timeout &&
			(a.Timeout == 0 || a.Expires == b.Expires)
	}
	if !slices.EqualFunc(got, want, same) {
		t.Errorf("went %v, came %v", want, got)
	}
}

// FuzzDecode feeds garbage to all that reads what the kernel says. It must end, not panic, and take no more memory than it was
// sent; and what it reads of elements can be written and read again.
func FuzzDecode(f *testing.F) {
	elems := encode(attrNest(3, attrNest(1, attrNest(1, Attr{Type: 1, Value: []byte("1234")}), attrU64(4, 1))))
	f.Add(elems)
	f.Add(encode(attrString(1, "t"), attrString(2, "c"), attrNest(4, Expr{"x", []Attr{attrU32(1, 1)}}.attr())))
	var b Batch
	b.AddElem(Table{IPv4, "t"}, "s", Elem{Key: []byte("1234")})
	sealed, _ := b.seal()
	f.Add(sealed)
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{4, 0, 3, 0, 4, 0, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		elems, err := decodeElems(data, nil)
		size := 0
		var b Batch
		for _, e := range elems {
			if e.Key == nil {
				t.Error("an element without a key")
			}
			size += len(e.Key) + len(e.KeyEnd) + len(e.Data)
			b.AddElem(Table{IPv4, "t"}, "s", e)
		}
		if size > len(data) {
			t.Errorf("%d bytes of elements in %d", size, len(data))
		}
		if err == nil && len(elems) > 0 && size < 1000 {
			checkSame(t, &b, elems)
		}
		calls := 0
		_ = eachAttr(data, func(uint16, []byte) error { calls++; return nil })
		_ = eachMessage(data, func(m message) error {
			calls++
			_, _ = m.errno()
			m.doneErrno()
			return nil
		})
		if calls > len(data)/2 {
			t.Errorf("%d calls for %d bytes", calls, len(data))
		}
		s := newSkeleton()
		s.setTable(data)
		s.addSet(data)
		s.addChain(data)
		s.addRule(data)
		tb := Table{IPv4, "t"}
		set := Set{Name: attrStr(data, nftaSetName), Key: []Type{TypeIPv4}, Interval: true}
		chain := Chain{Name: attrStr(data, nftaChainName), Hook: &Hook{Type: "nat"}, Rules: [][]Expr{{Masquerade()}}}
		s.Sets()
		s.HasSet(tb, &set)
		s.HasChain(tb, &chain)
		s.Fits(tb, 0, []Set{set}, []Chain{chain})
	})
}
