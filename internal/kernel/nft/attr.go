package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// Netlink attributes are a 2-byte length (with header), a 2-byte type whose top bits are flags, and the value, padded to 4
// bytes. Header fields are in host byte order, nf_tables' integers in network byte order.
const (
	attrHeader  = 4
	attrNested  = 1 << 15
	attrTypeBit = 1<<14 - 1
	maxAttr     = 1<<16 - 1
)

var native = binary.NativeEndian

var errTruncated = errors.New("truncated netlink attribute")

// Attr is a netlink attribute to be sent. Nested attributes are set in Nested, all others in Value.
type Attr struct {
	Type   uint16
	Value  []byte
	Nested []Attr
}

func attrU32(typ uint16, v uint32) Attr {
	return Attr{Type: typ, Value: binary.BigEndian.AppendUint32(nil, v)}
}

func attrU64(typ uint16, v uint64) Attr {
	return Attr{Type: typ, Value: binary.BigEndian.AppendUint64(nil, v)}
}

func attrString(typ uint16, s string) Attr {
	return Attr{Type: typ, Value: append([]byte(s), 0)}
}

func attrNest(typ uint16, nested ...Attr) Attr {
	return Attr{Type: typ | attrNested, Nested: nested}
}

func align4(n int) int { return (n + 3) &^ 3 }

func appendAttrHeader(b []byte, typ uint16, valueLen int) []byte {
	b = native.AppendUint16(b, uint16(attrHeader+valueLen))
	return native.AppendUint16(b, typ)
}

func appendAttrBytes(b []byte, typ uint16, value []byte) []byte {
	b = appendAttrHeader(b, typ, len(value))
	b = append(b, value...)
	for range align4(len(value)) - len(value) {
		b = append(b, 0)
	}
	return b
}

func appendAttrString(b []byte, typ uint16, s string) []byte {
	b = appendAttrHeader(b, typ, len(s)+1)
	b = append(b, s...)
	for range align4(len(s)+1) - len(s) {
		b = append(b, 0)
	}
	return b
}

// beginNest starts a nested attribute; endNest, given the returned position, fills in its length.
func beginNest(b []byte, typ uint16) ([]byte, int) {
	return appendAttrHeader(b, typ|attrNested, 0), len(b)
}

func endNest(b []byte, at int) []byte {
	native.PutUint16(b[at:], uint16(len(b)-at))
	return b
}

func appendAttr(b []byte, a Attr) []byte {
	if a.Type&attrNested == 0 {
		return appendAttrBytes(b, a.Type, a.Value)
	}
	b, at := beginNest(b, a.Type)
	for _, n := range a.Nested {
		b = appendAttr(b, n)
	}
	return endNest(b, at)
}

// eachAttr calls fn for every attribute in b, with the flags taken off its type, until fn returns an error.
func eachAttr(b []byte, fn func(typ uint16, value []byte) error) error {
	for len(b) >= attrHeader {
		n := int(native.Uint16(b))
		if n < attrHeader || n > len(b) {
			return errTruncated
		}
		if err := fn(native.Uint16(b[2:])&attrTypeBit, b[attrHeader:n]); err != nil {
			return err
		}
		b = b[min(align4(n), len(b)):]
	}
	if len(b) > 0 {
		return errTruncated
	}
	return nil
}

// findAttr returns the value of the nth attribute of a type in b, counted from 0, or nil.
func findAttr(b []byte, typ uint16, nth int) []byte {
	for len(b) >= attrHeader {
		n := int(native.Uint16(b))
		if n < attrHeader || n > len(b) {
			return nil
		}
		if native.Uint16(b[2:])&attrTypeBit == typ {
			if nth == 0 {
				return b[attrHeader:n]
			}
			nth--
		}
		b = b[min(align4(n), len(b)):]
	}
	return nil
}

func attrStr(b []byte, typ uint16) string {
	s, _, _ := bytes.Cut(findAttr(b, typ, 0), []byte{0})
	return string(s)
}

// attrUint32 returns the value of an integer attribute, 0 if there is none.
func attrUint32(b []byte, typ uint16) uint32 {
	if v := findAttr(b, typ, 0); len(v) == 4 {
		return beUint32(v)
	}
	return 0
}

// contains reports whether every attribute that was sent stands in what the kernel dumped, with the same value. The kernel adds
// attributes of its own (handles, defaults), which do not count. Attributes of one type are in order.
func contains(dump []byte, sent []Attr) bool {
	for i, a := range sent {
		nth := 0
		for _, before := range sent[:i] {
			if before.Type == a.Type {
				nth++
			}
		}
		got := findAttr(dump, a.Type&attrTypeBit, nth)
		if got == nil {
			return false
		}
		if a.Type&attrNested == 0 {
			if !bytes.Equal(got, a.Value) {
				return false
			}
		} else if !contains(got, a.Nested) {
			return false
		}
	}
	return true
}
