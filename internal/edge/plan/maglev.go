package plan

import (
	"math"

	"github.com/switchyard-net/switchyard/state"
)

// TableSizes are the sizes that tables may have. They are prime numbers, so that each step through a table meets all of its slots.
var TableSizes = [...]int{251, 1021, 4093, 16381}

// Tables makes tables. The zero value is useful. It keeps memory for the next table, and only one goroutine may use it at a time.
type Tables struct {
	owners  []uint16
	taken   []bool
	cursors []cursor
	turns   []uint16 // the shares in the order of their turns
	starts  []uint32 // where each round begins in turns
}

// cursor is where a node looks for its next slot.
type cursor struct{ at, step uint32 }

// Table returns a table of size slots, one of [TableSizes]: for each slot the number of a share. It depends on nothing but IDs and weights, and each share
// has slots in proportion to its weight. There are 65,535 shares at most, each with a weight. The table is valid until the next call.
//
// The nodes take slots in turns, in the order of the shares. A node with half the weight of another one has half as many turns. In its turn, a node takes the
// next free slot of its own permutation of all slots (Eisenbud et al., "Maglev", NSDI 2016, section 3.4).
func (t *Tables) Table(size int, shares []state.EdgeShare) []uint16 {
	if len(shares) == 0 {
		return nil
	}
	t.order(size, shares)
	t.owners, t.taken = resized(t.owners, size), resized(t.taken, size)
	clear(t.taken)
	t.cursors = resized(t.cursors, len(shares))
	m := uint32(size)
	for i, s := range shares {
		t.cursors[i] = cursor{uint32(scatter(s.Node, 1) % uint64(m)), uint32(scatter(s.Node, 2)%uint64(m-1)) + 1}
	}
	for _, i := range t.turns[:size] {
		c := t.cursors[i]
		for t.taken[c.at] {
			if c.at += c.step; c.at >= m {
				c.at -= m
			}
		}
		t.taken[c.at] = true
		t.owners[c.at] = i
		t.cursors[i] = c
	}
	return t.owners
}

// order sets turns to the shares in the order of their turns, for size slots or a few more. In a round, a share has a turn if its weight has added up to the largest
// weight since its last turn. So its jth turn is in round ⌈j · largest / weight⌉. The shares of each round are in their order.
func (t *Tables) order(size int, shares []state.EdgeShare) {
	var largest uint64
	for _, s := range shares {
		largest = max(largest, uint64(s.Weight))
	}
	rounds := roundsFor(size, shares, largest)
	t.starts = resized(t.starts, rounds+2)
	clear(t.starts)
	total := 0
	for _, s := range shares {
		for j := uint64(1); j <= uint64(rounds)*uint64(s.Weight)/largest; j++ {
			t.starts[roundOf(j, s, largest)+1]++
			total++
		}
	}
	for r := range rounds + 1 {
		t.starts[r+1] += t.starts[r]
	}
	t.turns = resized(t.turns, total)
	for i, s := range shares {
		for j := uint64(1); j <= uint64(rounds)*uint64(s.Weight)/largest; j++ {
			r := roundOf(j, s, largest)
			t.turns[t.starts[r]] = uint16(i)
			t.starts[r]++
		}
	}
}

// roundOf returns the round of a share's jth turn, from 1 on.
func roundOf(j uint64, s state.EdgeShare, largest uint64) uint64 {
	return (j*largest + uint64(s.Weight) - 1) / uint64(s.Weight)
}

// roundsFor returns how many rounds have at least size turns. The share with the largest weight has one in each.
func roundsFor(size int, shares []state.EdgeShare, largest uint64) int {
	low, high := 1, size
	for low < high {
		mid, turns := (low+high)/2, 0
		for _, s := range shares {
			turns += int(uint64(mid) * uint64(s.Weight) / largest)
		}
		if turns >= size {
			high = mid
		} else {
			low = mid + 1
		}
	}
	return low
}

// resized returns a list of n elements, in the memory of list if there is room.
func resized[E any](list []E, n int) []E {
	if cap(list) < n {
		return make([]E, n)
	}
	return list[:n]
}

// scatter returns a number for an ID, one for each seed (splitmix64).
func scatter(id uint32, seed uint64) uint64 {
	x := uint64(id) | seed<<32
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// MaxShares is how many shares a table can have.
const MaxShares = math.MaxUint16
