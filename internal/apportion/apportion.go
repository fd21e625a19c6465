// Package apportion shares a number of slots between weights.
package apportion

import (
	"container/heap"
	"math"
)

// Slots returns how many of n slots each weight gets, by the method of Webster (Sainte-Laguë), and at least one slot each. All slots are given.
// Of equal claims, the first weight's comes first. Weights are at least 1, and n is at least their number. It takes O(n log len(weights)).
//
// Webster's method minimizes the sum of (slots/weight - n/sum)² · weight. While n stays, a weight that goes gives away its own slots only.
func Slots(weights []uint32, n int) []int {
	c := claims{weights, make([]int, len(weights)), make([]int, len(weights))}
	for i := range weights {
		c.slots[i], c.order[i] = 1, i
	}
	heap.Init(&c)
	for range n - len(weights) {
		c.slots[c.order[0]]++
		heap.Fix(&c, 0)
	}
	return c.slots
}

// claims are a heap of indices of weights. The first one has the best claim to the next slot: the largest weight/(slots+½).
type claims struct {
	weights []uint32
	slots   []int
	order   []int
}

func (c *claims) Len() int      { return len(c.order) }
func (c *claims) Swap(i, j int) { c.order[i], c.order[j] = c.order[j], c.order[i] }
func (c *claims) Push(any)      { panic("apportion: the number of weights does not change") }
func (c *claims) Pop() any      { panic("apportion: the number of weights does not change") }

func (c *claims) Less(i, j int) bool {
	a, b := c.order[i], c.order[j]
	// Exact: weights have 32 bits, and there are fewer than 2^30 slots.
	left, right := uint64(c.weights[a])*uint64(2*c.slots[b]+1), uint64(c.weights[b])*uint64(2*c.slots[a]+1)
	return left > right || left == right && a < b
}

// Misplaced returns which share of connections goes elsewhere than the weights ask for, from 0 to 1: half of the sum of all errors.
func Misplaced(weights []uint32, slots []int) float64 {
	var sum, n float64
	for i, w := range weights {
		sum += float64(w)
		n += float64(slots[i])
	}
	var off float64
	for i, w := range weights {
		off += math.Abs(float64(slots[i])/n - float64(w)/sum)
	}
	return off / 2
}

const (
	// A class is chosen if it misplaces at most mostMisplaced, and kept while it misplaces at most keepMisplaced. A class that changed with
	// each weight would move many connections.
	mostMisplaced, keepMisplaced = 0.01, 0.02
	// mostSlots is the largest class that is chosen for the sake of accuracy.
	mostSlots = 256
)

// Class returns how many slots the weights get: one of classes, which ascend, and the last of which is at least the number of weights. It is the
// smallest that misplaces at most 1%. If none of at most 256 does, it is the largest of these. More than 256 weights get the smallest class with a
// slot for each. The class that there was, 0 if none, stays while it misplaces at most 2%.
func Class(weights []uint32, classes []int, was int) int {
	fits := func(class int, most float64) bool {
		return class >= len(weights) && Misplaced(weights, Slots(weights, class)) <= most
	}
	if was > 0 && fits(was, keepMisplaced) {
		return was
	}
	best := 0
	for _, class := range classes {
		if best > 0 && class > mostSlots {
			break
		}
		if class >= len(weights) {
			best = class
		}
		if fits(class, mostMisplaced) {
			return class
		}
	}
	return best
}
