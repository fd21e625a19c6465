package consistent

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Slot returns the slot of a connection in a table of m slots, as the kernel's expression jhash computes it. It is the slot of a client's address, or
// of its address and port if the port is not 0. Addresses of a node with another byte order have other slots.
func Slot(client netip.Addr, port uint16, m int) int {
	key := client.AsSlice()
	if port != 0 {
		key = append(binary.BigEndian.AppendUint16(key, port), 0, 0)
	}
	hi, _ := bits.Mul32(jhash(key, Seed), uint32(m))
	return int(hi)
}

// jhash is the function of this name in linux/jhash.h.
func jhash(key []byte, initial uint32) uint32 {
	a := 0xdeadbeef + uint32(len(key)) + initial
	b, c := a, a
	for ; len(key) > 12; key = key[12:] {
		a += binary.NativeEndian.Uint32(key)
		b += binary.NativeEndian.Uint32(key[4:])
		c += binary.NativeEndian.Uint32(key[8:])
		a, b, c = mix(a, b, c)
	}
	if len(key) == 0 {
		return c
	}
	var rest [12]byte
	copy(rest[:], key)
	a += binary.LittleEndian.Uint32(rest[:])
	b += binary.LittleEndian.Uint32(rest[4:])
	c += binary.LittleEndian.Uint32(rest[8:])
	return final(a, b, c)
}

func mix(a, b, c uint32) (_, _, _ uint32) {
	rol := bits.RotateLeft32
	a = (a - c) ^ rol(c, 4)
	c += b
	b = (b - a) ^ rol(a, 6)
	a += c
	c = (c - b) ^ rol(b, 8)
	b += a
	a = (a - c) ^ rol(c, 16)
	c += b
	b = (b - a) ^ rol(a, 19)
	a += c
	c = (c - b) ^ rol(b, 4)
	b += a
	return a, b, c
}

func final(a, b, c uint32) uint32 {
	rol := bits.RotateLeft32
	c = (c ^ b) - rol(b, 14)
	a = (a ^ c) - rol(c, 11)
	b = (b ^ a) - rol(a, 25)
	c = (c ^ b) - rol(b, 16)
	a = (a ^ c) - rol(c, 4)
	b = (b ^ a) - rol(a, 14)
	return (c ^ b) - rol(b, 24)
}
