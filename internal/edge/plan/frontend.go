package plan

import (
	"encoding/binary"
	"iter"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// Frontends yields the frontends of a port that the edge serves.
func Frontends(p *state.Port) iter.Seq[state.FrontendKey] {
	return func(yield func(state.FrontendKey) bool) {
		for i := range p.Frontends {
			f := &p.Frontends[i]
			if p.Edge.Takes(f.Kind) && !yield(p.Key(f)) {
				return
			}
		}
	}
}

// Addresses yields the addresses at which a record has frontends of its own, one for each such frontend. NodePorts of other Services are behind them.
func Addresses(s *state.Service) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		for p, f := range s.Frontends() {
			if f.Kind != state.ClusterIP && f.Addr.IsValid() && p.Protocol != state.SCTP && !yield(f.Addr) {
				return
			}
		}
	}
}

// Key returns a frontend as programs look it up: the address, the port and the protocol. NodePorts have address 0. IPv4 has 8 bytes, IPv6 20.
func Key(f state.FrontendKey) []byte {
	key := make([]byte, 0, 20)
	switch {
	case f.Addr.IsValid():
		key = append(key, f.Addr.AsSlice()...)
	case f.Family == state.IPv4:
		key = key[:4]
	default:
		key = key[:16]
	}
	key = binary.BigEndian.AppendUint16(key, f.Port)
	return append(key, byte(f.Protocol), 0)
}

// Check returns the hash of a key, which the value of the frontend has in its high half: check4 and check6 of tables.h.
func Check(key []byte) uint32 {
	h := uint32(hashSeed)
	addr := len(key) - 4
	for i := 0; i < addr; i += 4 {
		h = mix(h, binary.BigEndian.Uint32(key[i:]))
	}
	return finish(mix(h, uint32(binary.BigEndian.Uint16(key[addr:]))<<16|uint32(key[addr+2])))
}

// Slot returns the slot of a connection in a table of size slots: flow_hash of packet.h.
func Slot(protocol state.Protocol, client, frontend netip.AddrPort, size int) int {
	h := uint32(hashSeed)
	from, to := client.Addr().AsSlice(), frontend.Addr().AsSlice()
	for i := 0; i < len(from); i += 4 {
		h = mix(h, binary.BigEndian.Uint32(from[i:]))
		h = mix(h, binary.BigEndian.Uint32(to[i:]))
	}
	h = mix(h, uint32(client.Port())<<16|uint32(frontend.Port()))
	return int(finish(h^uint32(protocol)) % uint32(size))
}

// The functions of packet.h.
const hashSeed = 0x5357

func mix(h, v uint32) uint32 {
	v *= 0xcc9e2d51
	v = v<<15 | v>>17
	h ^= v * 0x1b873593
	h = h<<13 | h>>19
	return h*5 + 0xe6546b64
}

func finish(h uint32) uint32 {
	h ^= h >> 16
	h *= 0x85ebca6b
	h ^= h >> 13
	h *= 0xc2b2ae35
	return h ^ h>>16
}
