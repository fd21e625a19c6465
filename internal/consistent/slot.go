package consistent

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Serves reports whether connections that take a route of a port get their endpoints from a table. Session affinity wins over a hash. A single
// endpoint needs no table, and more endpoints than a table has slots for are drawn at random: [Crowded].
func Serves(p *state.Port, r *state.Route) bool {
	n := len(r.Endpoints)
	return hashes(p) && (n > 1 || n == 1 && r.Refused > 0) && n < Most
}

// Crowded reports whether connections that take a route of a port should get their endpoints from a table, but there are too many endpoints.
func Crowded(p *state.Port, r *state.Route) bool { return hashes(p) && len(r.Endpoints) >= Most }

func hashes(p *state.Port) bool {
	return p.Affinity == 0 && (p.Balance == state.HashClient || p.Balance == state.HashConnection)
}

// Slot returns the slot of a client's connection in a table of m slots. It is as the kernel's expression jhash computes it, so that dataplanes make
// the same choice. by is [state.HashClient] or [state.HashConnection]. Nodes of another byte order get other slots.
func Slot(by state.Balance, client netip.AddrPort, m int) int {
	var buf [20]byte
	key := buf[:0]
	if addr := client.Addr(); addr.Is4() {
		four := addr.As4()
		key = append(key, four[:]...)
	} else {
		sixteen := addr.As16()
		key = append(key, sixteen[:]...)
	}
	if by == state.HashConnection {
		key = append(binary.BigEndian.AppendUint16(key, client.Port()), 0, 0)
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
