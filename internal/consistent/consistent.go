// Package consistent gives connections endpoints by a hash. Each node makes the same choice, and nearly all connections keep theirs when an
// endpoint comes or goes.
//
// A connection's hash is a slot of a table. Each endpoint asks for slots in an order of its own, and for as many as its weight is worth. In
// each round, every endpoint asks for one more slot, and gets it if the slot is free. In the tables of Maglev (NSDI 2016), an endpoint gets its
// next free slot in each round instead. Then twice as many of the others' slots change when an endpoint goes.
package consistent

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

// Sizes are how many slots tables have. They are primes, so that the steps of an endpoint lead to every slot.
var Sizes = [...]int{251, 1021, 4093}

// Most is how many endpoints a table can have, one less if a share is refused.
const Most = 4093

// SizeFor returns how many slots the table of so many endpoints has.
func SizeFor(endpoints int) int {
	switch {
	case endpoints <= 3:
		return Sizes[0]
	case endpoints <= 10:
		return Sizes[1]
	}
	return Sizes[2]
}

// Refused is in the slots of a table whose connections are refused.
const Refused = -1

// Table returns for each slot the index of an endpoint of the route, or [Refused]. It follows from the addresses, ports and weights alone, so that
// it is the same on each node. The route has at most [Most] endpoints. The caller owns the table.
func Table(r *state.Route) []int16 {
	n := len(r.Endpoints)
	m := SizeFor(n)
	asking := make([]walk, n, n+1)
	for i, e := range r.Endpoints {
		addr := e.Addr.Addr().As16()
		asking[i] = walkOf(int16(i), binary.BigEndian.AppendUint16(addr[:], e.Addr.Port()), m)
	}
	if r.Refused > 0 {
		asking = append(asking, walkOf(Refused, []byte("refused"), m))
	}
	for i, slots := range apportion.Slots(r.Weights(), m) {
		asking[i].left = slots + slots/spare
	}
	const empty = -2
	table := make([]int16, m)
	for i := range table {
		table[i] = empty
	}
	for free := m; free > 0; { // ends within m rounds: every slot is asked for by everyone with slots left
		still := asking[:0]
		for _, w := range asking {
			if table[w.at] == empty {
				table[w.at] = w.of
				w.left--
				free--
			}
			if w.at += w.step; w.at >= m {
				w.at -= m
			}
			if w.left > 0 {
				still = append(still, w)
			}
		}
		asking = still
	}
	return table
}

// spare is which part of its slots an endpoint may have in addition, so that fewer slots change hands.
const spare = 64

// walk is the order in which an endpoint asks for slots. It begins at a slot, and a step leads to the next one.
type walk struct {
	at, step int
	of       int16 // the index of the endpoint, or Refused
	left     int   // how many slots it still asks for
}

func walkOf(of int16, key []byte, m int) walk {
	sum := sha256.Sum256(key)
	number := func(at, below int) int { return int(binary.BigEndian.Uint64(sum[at:]) % uint64(below)) }
	return walk{at: number(0, m), step: 1 + number(8, m-1), of: of}
}

// Seed is the seed of the hash. It does not change, because nodes of different versions make the same choice.
const Seed = 0x53770001
