//go:build linux

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// Growth is how the time of an operation grows with one dimension of a cluster.
type Growth struct {
	// Operation is "part/operation". Dimension is what there is ten times more of at each size.
	Operation string `json:"operation"`
	Dimension string `json:"dimension"`
	// Flat is set for an operation on one object among more and more objects: its time must stay. The time of any other
	// operation may grow as much as its input.
	Flat bool `json:"flat"`
	// Sizes are those that were measured, and Seconds is how long one operation took at each.
	Sizes   []int     `json:"sizes"`
	Seconds []float64 `json:"seconds"`
	// Slope is the slope of the straight line that fits best on a log-log scale. It is 0 for a constant time, 1 for a
	// time that grows as the size, and 2 for its square. Last is the slope between the two largest sizes, where fixed
	// costs no longer hide a square.
	Slope float64 `json:"slope"`
	Last  float64 `json:"last"`
	// Steep is set if one of them is above what the operation may have. Explained is the reason, if it is known and accounts for both.
	Steep     bool   `json:"steep"`
	Explained string `json:"explained,omitempty"`
}

// The limits of slopes: anything above exceeds the cost of caches and the garbage collector when memory grows
// tenfold.
const (
	maxSlope     = 1.1
	maxFlatSlope = 0.25
)

// limit is what the operation's slopes may be.
func (g *Growth) limit() float64 {
	if g.Flat {
		return maxFlatSlope
	}
	return maxSlope
}

// explanation is the reason why an operation may be steep, and how steep it makes the operation at most.
type explanation struct {
	reason string
	atMost float64
}

// judge computes the slopes.
func (g *Growth) judge(why explanation) {
	n := len(g.Sizes)
	var x, y, xx, xy float64
	for i, size := range g.Sizes {
		lx, ly := math.Log(float64(size)), math.Log(g.Seconds[i])
		x, y, xx, xy = x+lx/float64(n), y+ly/float64(n), xx+lx*lx/float64(n), xy+lx*ly/float64(n)
	}
	g.Slope = (xy - x*y) / (xx - x*x)
	g.Last = math.Log(g.Seconds[n-1]/g.Seconds[n-2]) / math.Log(float64(g.Sizes[n-1])/float64(g.Sizes[n-2]))
	g.Steep, g.Explained = max(g.Slope, g.Last) > g.limit(), ""
	if g.Steep && max(g.Slope, g.Last) <= why.atMost {
		g.Explained = why.reason
	}
}

// ScalingOptions select what [Scaling] measures.
type ScalingOptions struct {
	// Quick measures small sizes: it shows that all operations work, and nothing about how they grow.
	Quick bool
	// Only, if it is not empty, selects the operations of this part or dimension.
	Only string
}

// scaling is something whose operations are measured with more and more of one dimension.
type scaling struct {
	part string
	dimension
	// setup makes it of one size. It is closed once all operations are measured.
	setup func(context.Context, scaledCluster) (*scaled, error)
	// explained has the reasons for the slopes of operations, by their names.
	explained map[string]explanation
}

// scaled is the subject of a measurement, at one size.
type scaled struct {
	ops   []scaledOp // in the order in which they are measured
	close func() error
}

type scaledOp struct {
	name string
	// single is set if the operation is about one object. It is flat if the dimension is about others.
	single bool
	run    func() error
	// reset makes run possible, also for the first time. It may be nil, and is not measured.
	reset func() error
}

// Scaling measures every operation of the parts of Switchyard, each with ten times more and more of everything that
// objects or packets can multiply. It takes at most 8 minutes on two cores. Each result is written to lines at once,
// as one line of JSON; a table for people follows on table. Operations that need a kernel are measured in namespaces
// of their own.
func Scaling(ctx context.Context, lines, table io.Writer, o ScalingOptions) ([]Growth, error) {
	// Memory that was given back to the system costs as much to get again as the work. With a large goal, little is given back.
	defer debug.SetGCPercent(debug.SetGCPercent(800))
	selected, err := o.selected(slices.Concat(coreScalings(), wireScalings(), kernelScalings()))
	if err != nil {
		return nil, err
	}
	var all []Growth
	out := json.NewEncoder(lines)
	for _, s := range selected {
		fmt.Fprintf(table, "%s: %s ...\n", s.part, s.name)
		grown, err := s.measure(ctx, o.Quick)
		if err != nil {
			return all, fmt.Errorf("%s with more and more %s: %w", s.part, s.name, err)
		}
		for _, g := range grown {
			if err := out.Encode(g); err != nil {
				return all, err
			}
		}
		all = append(all, grown...)
	}
	return all, writeGrowths(table, all)
}

// selected returns the scalings that are to be measured.
func (o ScalingOptions) selected(all []scaling) ([]scaling, error) {
	if o.Only == "" {
		return all, nil
	}
	var selected []scaling
	known := map[string]bool{}
	for _, s := range all {
		known[s.part], known[s.name] = true, true
		if o.Only == s.part || o.Only == s.name {
			selected = append(selected, s)
		}
	}
	if len(selected) == 0 {
		return nil, fmt.Errorf("there is no part or dimension %q, choose one of %q", o.Only, slices.Sorted(maps.Keys(known)))
	}
	return selected, nil
}

// measure measures all operations at all sizes. Operations that are too steep are measured again, at most twice, as
// other processes may have been in the way; the shortest times count. Operations that take longer than scaledAgain
// are not measured again.
func (s *scaling) measure(ctx context.Context, quick bool) ([]Growth, error) {
	began := time.Now()
	grown, err := s.grow(ctx, quick, nil)
	for range 2 {
		if err != nil || quick || time.Since(began) > scaledAgain || !slices.ContainsFunc(grown, func(g Growth) bool { return g.Steep && g.Explained == "" }) {
			break
		}
		grown, err = s.grow(ctx, quick, grown)
	}
	return grown, err
}

// grow measures at all sizes. grown, if it is not nil, has earlier measurements.
func (s *scaling) grow(ctx context.Context, quick bool, grown []Growth) ([]Growth, error) {
	sizes := s.sizes
	if quick {
		sizes = s.quick
	}
	for i, n := range sizes {
		ops, took, err := s.at(ctx, n, quick)
		if err != nil {
			return nil, fmt.Errorf("%d: %w", n, err)
		}
		if grown == nil {
			grown = make([]Growth, len(ops))
		}
		for j, op := range ops {
			g := &grown[j]
			if g.Seconds == nil {
				*g = Growth{Operation: s.part + "/" + op.name, Dimension: s.name, Flat: op.single && !s.own, Sizes: sizes,
					Seconds: slices.Repeat([]float64{math.Inf(1)}, len(sizes))}
			}
			g.Seconds[i] = min(g.Seconds[i], took[j])
		}
	}
	for i := range grown {
		_, name, _ := strings.Cut(grown[i].Operation, "/")
		grown[i].judge(s.explained[name])
	}
	return grown, nil
}

// at measures all operations at one size, in seconds.
func (s *scaling) at(ctx context.Context, n int, quick bool) (ops []scaledOp, took []float64, err error) {
	runtime.GC() // what the last size left is not measured
	at, err := s.setup(ctx, s.of(n))
	if err != nil {
		return nil, nil, err
	}
	defer func() { err = errors.Join(err, at.close()) }()
	for _, op := range at.ops {
		seconds, err := op.time(ctx, quick)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", op.name, err)
		}
		took = append(took, seconds)
	}
	return at.ops, took, nil
}

// An operation runs in rounds, each of as many runs as take scaledRound. So the resolution of the clock does not matter, and
// costs of only some runs count. There are scaledLeast rounds at least, and more until scaledTime has been measured. They end earlier if
// all this, with the parts that are not measured, takes longer than scaledMost.
const (
	scaledRound = time.Millisecond
	scaledTime  = 150 * time.Millisecond
	scaledMost  = 2 * time.Second
	scaledLeast = 4
	scaledAgain = 30 * time.Second
)

// time returns how many seconds one run takes, by the shortest round.
func (op *scaledOp) time(ctx context.Context, quick bool) (seconds float64, err error) {
	seconds = math.Inf(1)
	began, total := time.Now(), time.Duration(0)
	for round := 0; round == 0 || (round < scaledLeast || total < scaledTime) && time.Since(began) < scaledMost; round++ {
		if round < scaledLeast {
			runtime.GC() // what others left is not for this operation to clean up
		}
		took, runs := time.Duration(0), 0
		for runs == 0 || took < scaledRound && !quick {
			d, err := op.once(ctx)
			if err != nil {
				return 0, err
			}
			took += d
			runs++
		}
		seconds = min(seconds, took.Seconds()/float64(runs))
		if quick && round == 1 {
			break
		}
		total += took
	}
	return seconds, nil
}

// once runs the operation, and measures it.
func (op *scaledOp) once(ctx context.Context) (time.Duration, error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if op.reset != nil {
		if err := op.reset(); err != nil {
			return 0, err
		}
	}
	began := time.Now()
	err := op.run()
	return time.Since(began), err
}
