package balance

import (
	"math/bits"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// weights are numbers by index, of which one is drawn by its size. They are a Fenwick tree: sums[i] is the sum of the numbers from
// i&(i+1) to i. So each method but fill takes the logarithm of their count.
type weights struct {
	sums  []int
	total int
}

// fill sets all numbers.
func (w *weights) fill(n int, number func(i int) int) {
	w.sums, w.total = make([]int, n), 0
	for i := range w.sums {
		w.sums[i] += number(i)
		w.total += number(i)
		if up := i | (i + 1); up < n {
			w.sums[up] += w.sums[i]
		}
	}
}

// add adds by to a number.
func (w *weights) add(i, by int) {
	w.total += by
	for ; i < len(w.sums); i |= i + 1 {
		w.sums[i] += by
	}
}

// below returns the sum of the numbers before i.
func (w *weights) below(i int) (sum int) {
	for ; i > 0; i &= i - 1 {
		sum += w.sums[i-1]
	}
	return sum
}

// find returns the index i for which below(i) <= at < below(i+1). at is at least 0 and less than the total.
func (w *weights) find(at int) (i int) {
	for step := 1 << bits.Len(uint(len(w.sums))); step > 0; step >>= 1 {
		if next := i + step; next <= len(w.sums) && w.sums[next-1] <= at {
			i, at = next, at-w.sums[next-1]
		}
	}
	return i
}

// drawBut returns an index by the size of its number, but none of some others. ok is false if only zeros are left.
func (w *weights) drawBut(but []int, draw func(n int) int) (i int, ok bool) {
	if w.total == 0 {
		return 0, false
	}
	numbers := make([]int, len(but))
	for k, i := range but {
		numbers[k] = w.below(i+1) - w.below(i)
		w.add(i, -numbers[k])
	}
	if ok = w.total > 0; ok {
		i = w.find(draw(w.total))
	}
	for k, i := range but {
		w.add(i, numbers[k])
	}
	return i, ok
}

// weigh has the view draw by the weights of a route, if it has any. None of the endpoints is ejected so far.
func (v *view) weigh(endpoints []state.Endpoint) {
	if len(endpoints) == 0 || endpoints[0].Weight == 0 {
		v.weighed, v.shares = nil, [2]weights{}
		return
	}
	if !sameSlice(v.weighed, endpoints) {
		v.weighed, v.shares = endpoints, [2]weights{}
		v.shares[0].fill(len(endpoints), func(i int) int { return int(endpoints[i].Weight) })
	}
}

func (v *view) isWeighted() bool { return v.weighed != nil }

// sum is the sum of all weights.
func (v *view) sum() int { return v.shares[0].total + v.shares[1].total }

// weight returns the weight of an endpoint of the view.
func (v *view) weight(endpoint netip.AddrPort) int { return int(v.endpoints[v.find(endpoint)].Weight) }

// move notes that an endpoint is ejected, or is no longer.
func (v *view) move(index, from, to int) {
	if v.isWeighted() {
		weight := int(v.endpoints[index].Weight)
		if v.shares[to].sums == nil {
			v.shares[to].sums = make([]int, len(v.endpoints))
		}
		v.shares[from].add(index, -weight)
		v.shares[to].add(index, weight)
	}
}

// byWeight is any for endpoints with weights.
func (v *view) byWeight(tried []netip.AddrPort, draw func(n int) int) (endpoint netip.AddrPort, ok bool) {
	var but []int
	for _, a := range tried {
		if i := v.find(a); i >= 0 {
			but = append(but, i)
		}
	}
	for part := range v.shares {
		if i, ok := v.shares[part].drawBut(but, draw); ok {
			return v.endpoints[i].Addr, true
		}
	}
	return endpoint, false
}
