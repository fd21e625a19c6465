package apportion

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"
)

// cost is what Webster's method minimizes, but for a constant, times the product of all weights: exact for 4 weights of 16 bits and 16 slots.
func cost(weights []uint32, slots []int) (sum uint64) {
	for i := range weights {
		term := uint64(slots[i]) * uint64(slots[i])
		for j, w := range weights {
			if j != i {
				term *= uint64(w)
			}
		}
		sum += term
	}
	return sum
}

// best returns the least cost of all ways to share n slots, with at least one each.
func best(weights []uint32, n int) uint64 {
	slots := make([]int, len(weights))
	least := ^uint64(0)
	var try func(i, left int)
	try = func(i, left int) {
		if i == len(slots)-1 {
			slots[i] = left
			least = min(least, cost(weights, slots))
			return
		}
		for slots[i] = 1; slots[i] <= left-(len(slots)-1-i); slots[i]++ {
			at := slots[i]
			try(i+1, left-at)
			slots[i] = at
		}
	}
	try(0, n)
	return least
}

func check(t *testing.T, weights []uint32, n int) {
	t.Helper()
	slots := Slots(weights, n)
	sum := 0
	for _, s := range slots {
		if sum += s; s < 1 {
			t.Fatalf("%v in %d slots: %v; each gets at least one", weights, n, slots)
		}
	}
	if sum != n {
		t.Fatalf("%v in %d slots: %v are %d", weights, n, slots, sum)
	}
	if got, want := cost(weights, slots), best(weights, n); got != want {
		t.Fatalf("%v in %d slots: %v costs %d, the best costs %d", weights, n, slots, got, want)
	}
}

// FuzzSlots compares with an exhaustive search over 4 weights and 16 slots.
func FuzzSlots(f *testing.F) {
	f.Add([]byte{0, 80, 0, 15, 0, 5}, uint8(16))
	f.Add([]byte{255, 255, 0, 1, 0, 1, 0, 1}, uint8(16))
	f.Add([]byte{0, 3, 0, 1}, uint8(4))
	f.Fuzz(func(t *testing.T, data []byte, n uint8) {
		var weights []uint32
		for ; len(data) >= 2 && len(weights) < 4; data = data[2:] {
			weights = append(weights, uint32(max(1, binary.BigEndian.Uint16(data))))
		}
		if len(weights) > 0 {
			check(t, weights, len(weights)+int(n)%(17-len(weights)))
		}
	})
}

func TestSlotsAreTheBestThereAre(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		weights := make([]uint32, 1+rng.IntN(4))
		for i := range weights {
			weights[i] = 1 + rng.Uint32N(1<<(1+rng.IntN(16))-1)
		}
		check(t, weights, len(weights)+rng.IntN(17-len(weights)))
	}
}

func TestSlots(t *testing.T) {
	for _, c := range []struct {
		weights []uint32
		n       int
		want    []int
	}{
		{[]uint32{3, 1}, 4, []int{3, 1}},
		{[]uint32{80, 15, 5}, 128, []int{103, 19, 6}},
		{[]uint32{1, 1, 1}, 4, []int{2, 1, 1}},
		{[]uint32{1<<32 - 1, 1}, 64, []int{63, 1}},
		{nil, 0, []int{}},
	} {
		if got := Slots(c.weights, c.n); !slices.Equal(got, c.want) {
			t.Errorf("%v in %d slots: %v, want %v", c.weights, c.n, got, c.want)
		}
	}
}

// TestSlotsOfOneThatGoes: while the number of slots stays, the others only gain.
func TestSlotsOfOneThatGoes(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for range 500 {
		weights := make([]uint32, 2+rng.IntN(20))
		for i := range weights {
			weights[i] = 1 + rng.Uint32N(100)
		}
		gone := rng.IntN(len(weights))
		before, after := Slots(weights, 128), Slots(slices.Delete(slices.Clone(weights), gone, gone+1), 128)
		for i, n := range slices.Delete(before, gone, gone+1) {
			if after[i] < n {
				t.Fatalf("%v without %d: %d has %d slots instead of %d", weights, gone, i, after[i], n)
			}
		}
	}
}

func TestClass(t *testing.T) {
	classes := []int{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 1024}
	many := slices.Repeat([]uint32{1, 2, 3}, 100)
	for _, c := range []struct {
		weights   []uint32
		was, want int
	}{
		{[]uint32{1}, 0, 1},
		{[]uint32{3, 1}, 0, 4},
		{[]uint32{300, 100}, 0, 4},
		{[]uint32{99, 1}, 0, 64},
		{[]uint32{65535, 1}, 0, 128}, // the one slot is 0.8%
		{[]uint32{3, 1}, 64, 64},     // exact
		{[]uint32{99, 1}, 2, 64},     // not kept: half is misplaced
		{many, 0, 384},               // more than 256
	} {
		if got := Class(c.weights, classes, c.was); got != c.want {
			t.Errorf("%v, of class %d: class %d, want %d", c.weights[:min(3, len(c.weights))], c.was, got, c.want)
		}
	}
	// The bound of the largest class: no share is off by more than about one slot of 256.
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		weights := make([]uint32, 2+rng.IntN(30))
		for i := range weights {
			weights[i] = 1 + rng.Uint32N(100)
		}
		class := Class(weights, classes, 0)
		if off := Misplaced(weights, Slots(weights, class)); off > 0.01 && class < 256 {
			t.Fatalf("%v: class %d misplaces %.1f%%", weights, class, 100*off)
		}
	}
}
