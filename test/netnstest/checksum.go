package netnstest

import (
	"encoding/binary"
	"slices"
)

// Checksum is the checksum of the Internet protocols (RFC 1071) over all parts in a row, for packets that a test
// writes itself.
func Checksum(parts ...[]byte) uint16 {
	text := slices.Concat(parts...)
	if len(text)%2 == 1 {
		text = append(text, 0)
	}
	var sum uint32
	for i := 0; i < len(text); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(text[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
