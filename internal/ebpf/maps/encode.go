// Package maps keeps the maps in which socket hooks look up where connections go.
//
// A frontend leads to a route, a route to a range of slots, each slot is an endpoint. With weights, an endpoint has several slots. A route is one word, so that it
// changes in one step from one set of endpoints to another. New endpoints go into unused slots, then the word is
// stored. Slots and routes that programs may still look at are used again after a grace period. lookup.h has the
// layouts, and how programs read them.
package maps

import (
	"encoding/binary"
	"net/netip"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
)

// The layouts of lookup.h.
type (
	frontend4 [8]byte
	frontend6 [20]byte
)

func encode4(f plan.Frontend) (k frontend4) {
	if f.Addr.IsValid() {
		a := f.Addr.As4()
		copy(k[:], a[:])
	}
	binary.BigEndian.PutUint16(k[4:], f.Port)
	k[6] = uint8(state.TCP)
	return k
}

func encode6(f plan.Frontend) (k frontend6) {
	if f.Addr.IsValid() {
		a := f.Addr.As16()
		copy(k[:], a[:])
	}
	binary.BigEndian.PutUint16(k[16:], f.Port)
	k[18] = uint8(state.TCP)
	return k
}

// valueOf returns the value of a frontend with this key.
func valueOf(key []byte, route uint32) uint64 { return uint64(checkOf(key))<<32 | uint64(route) }

// checkOf is check4 and check6 of lookup.h.
func checkOf(key []byte) uint32 {
	h := uint32(0x5357)
	addr := len(key) - 4
	for i := 0; i < addr; i += 4 {
		h = mix(h, binary.NativeEndian.Uint32(key[i:]))
	}
	return mix(h, uint32(binary.NativeEndian.Uint16(key[addr:]))<<16|uint32(key[addr+2]))
}

func mix(h, v uint32) uint32 {
	h ^= v
	h *= 0x9E3779B1
	return h ^ h>>15
}

// wordOf returns the word of a route.
func wordOf(base uint32, count int, clients plan.Clients) uint64 {
	return uint64(base) | uint64(count)<<32 | uint64(clients)<<56
}

// slotOf returns the first words of the slot of an endpoint; IPv4 has one, IPv6 three.
func slotOf(e netip.AddrPort) (words [3]uint64) {
	var b [24]byte
	if e.Addr().Is4() {
		a := e.Addr().As4()
		copy(b[:], a[:])
		binary.BigEndian.PutUint16(b[4:], e.Port())
	} else {
		a := e.Addr().As16()
		copy(b[:], a[:])
		binary.BigEndian.PutUint16(b[16:], e.Port())
	}
	for i := range words {
		words[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return words
}

// partsOf is the reverse of wordOf.
func partsOf(word uint64) (base uint32, count uint16, clients plan.Clients) {
	return uint32(word), uint16(word >> 32), plan.Clients(word >> 56)
}

// endpointOf is the reverse of slotOf.
func endpointOf(words [3]uint64, f state.Family) netip.AddrPort {
	var b [24]byte
	for i, w := range words {
		binary.NativeEndian.PutUint64(b[8*i:], w)
	}
	if f == state.IPv4 {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b[:4])), binary.BigEndian.Uint16(b[4:]))
	}
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b[:16])), binary.BigEndian.Uint16(b[16:]))
}
