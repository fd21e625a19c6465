package bench

import (
	"bytes"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var oddCosts = treeCosts{Hop: 0.7, Start: 11, Change: 0.5, RelayServe: 5, RelayChange: 0.31, NodeServe: 0.13, NodeChange: 0.017}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*max(math.Abs(a), math.Abs(b), 1) }

// rounds is how often n jobs take turns on some processors.
func rounds(n, processors int) float64 { return float64((n + processors - 1) / processors) }

// TestTreeOfOneChange compares with what can be computed by hand: a relay begins when the one above has served the relays before it.
func TestTreeOfOneChange(t *testing.T) {
	c := oddCosts
	for _, e := range []struct {
		tree
		want float64
	}{
		{tree{[]int{1}, 1000, 1}, 2*c.Hop + c.Change + 1000*c.NodeChange},
		{tree{[]int{1}, 1000, 3}, 2*c.Hop + c.Change + rounds(1000, 3)*c.NodeChange},
		{tree{[]int{4}, 1000, 2}, 2*c.Hop + c.Change + rounds(250, 2)*c.NodeChange},
		{tree{[]int{1, 8}, 1000, 2}, 3*c.Hop + 2*c.Change + rounds(8, 2)*c.RelayChange + rounds(125, 2)*c.NodeChange},
		{tree{[]int{2, 6, 30}, 3000, 1}, 4*c.Hop + 3*c.Change + (3+5)*c.RelayChange + 100*c.NodeChange},
	} {
		s := newTreeSim(e.tree, c, 1)
		revision := s.changeAt(0)
		s.run()
		if got := s.done[revision]; !near(got, e.want) {
			t.Errorf("%+v: all nodes have a change after %v, want %v", e.tree, got, e.want)
		}
		if got, want := s.leaves()[0].busy, c.Change+float64(e.Nodes/len(s.leaves()))*c.NodeChange; !near(got, want) {
			t.Errorf("%+v: a leaf has computed for %v, want %v", e.tree, got, want)
		}
	}
}

// TestTreeFromNothing: all start at once, or the nodes of a relay that was lost follow the others.
func TestTreeFromNothing(t *testing.T) {
	c := oddCosts
	s := newTreeSim(tree{[]int{2, 6}, 600, 2}, c, 1)
	s.startAll()
	s.run()
	if want := 3*c.Hop + 2*c.Start + rounds(3, 2)*c.RelayServe + rounds(100, 2)*c.NodeServe; !near(s.done[1], want) {
		t.Errorf("all nodes are served after %v, want %v", s.done[1], want)
	}
	s = newTreeSim(tree{[]int{2, 6}, 600, 2}, c, 1)
	s.loseLeaf()
	s.run()
	if want := 2*c.Hop + rounds(20, 2)*c.NodeServe; !near(s.done[1], want) {
		t.Errorf("the nodes of a lost relay are served after %v, want %v", s.done[1], want)
	}
}

// TestTreePart: the time until a part of the nodes have a change is the time of the last node among them.
func TestTreePart(t *testing.T) {
	c := oddCosts
	s := newTreeSim(tree{[]int{1}, 2000, 1}, c, 0.999)
	revision := s.changeAt(3)
	s.run()
	if want := 3 + 2*c.Hop + c.Change + 1998*c.NodeChange; !near(s.done[revision], want) {
		t.Errorf("1998 of 2000 nodes have a change at %v, want %v", s.done[revision], want)
	}
}

// TestTreeManyChanges: whatever comes how fast, all nodes get all changes in order, no relay computes longer than there is time, and
// a relay that has time for each change alone delays none.
func TestTreeManyChanges(t *testing.T) {
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 1))
		shape := tree{[]int{1 + rng.IntN(2), 2 + rng.IntN(5)}, 50 + rng.IntN(100), 1 + rng.IntN(3)}
		s := newTreeSim(shape, oddCosts, 1)
		at := 0.0
		var times []float64
		for range 50 {
			at += rng.ExpFloat64() * rng.Float64() * 2
			times = append(times, at)
			s.changeAt(at)
		}
		s.run()
		for i, at := range times {
			r := i + 2
			if s.reached[r] != shape.Nodes || s.done[r] < at || s.done[r] < s.done[r-1] {
				t.Fatalf("seed %d, %+v: revision %d of time %v has reached %d nodes at %v, the one before at %v", seed, shape, r, at, s.reached[r], s.done[r], s.done[r-1])
			}
		}
		for _, r := range s.leaves() { // together or not, each change is paid for
			if want := float64(len(times)) * (oddCosts.Change + float64(len(r.followers))*oddCosts.NodeChange); !near(r.busy, want) {
				t.Errorf("seed %d: a leaf has computed for %v, want %v", seed, r.busy, want)
			}
		}
		for level, relays := range s.levels {
			for _, r := range relays {
				if most := s.now * float64(shape.Processors); r.busy > most || r.free != shape.Processors {
					t.Errorf("seed %d: a relay of level %d has computed for %v of %v, and %d processors are free", seed, level, r.busy, most, r.free)
				}
			}
		}
	}
	shape := tree{[]int{1, 3}, 30, 1}
	alone, often := newTreeSim(shape, oddCosts, 1), newTreeSim(shape, oddCosts, 1)
	one := alone.changeAt(0)
	alone.run()
	for i := range 20 {
		often.changeAt(float64(i) * 2)
	}
	often.run()
	for i := range 20 {
		if got := often.done[i+2] - float64(i)*2; !near(got, alone.done[one]) {
			t.Errorf("change %d took %v, want %v as for a single one", i, got, alone.done[one])
		}
	}
}

// TestCostsAreReadBack: what one run reports, another one takes, of the right size only.
func TestCostsAreReadBack(t *testing.T) {
	var lines bytes.Buffer
	r := NewReporter(&lines, io.Discard)
	var costs, other internetCosts
	for i, f := range costs.fields() {
		*f.value = float64(i) + 1.5
		r.Report(Result{costPrefix + f.name, 10, 5, *f.value, f.unit})
	}
	for _, f := range other.fields() {
		r.Report(Result{costPrefix + f.name, 20, 5, 7, f.unit})
	}
	r.Report(Result{"relay/nodes", 10, 5, 3, "nodes"})
	file := filepath.Join(t.TempDir(), "costs")
	if err := os.WriteFile(file, lines.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readCosts(file, 10, 5)
	if err != nil || got != costs {
		t.Errorf("read %+v, %v; want %+v", got, err, costs)
	}
	if _, err := readCosts(file, 30, 5); err == nil || !strings.Contains(err.Error(), "30 services") {
		t.Errorf("costs of another size: error %v", err)
	}
}
