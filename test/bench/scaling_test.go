//go:build linux

package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestSlopes(t *testing.T) {
	for _, c := range []struct {
		name        string
		seconds     func(n float64) float64
		flat, steep bool
		slope, last float64
	}{
		{"constant", func(float64) float64 { return 3 }, true, false, 0, 0},
		{"linear", func(n float64) float64 { return n / 1e6 }, false, false, 1, 1},
		{"linear, but about one object", func(n float64) float64 { return n / 1e6 }, true, true, 1, 1},
		{"n log n", func(n float64) float64 { return n * math.Log2(n) }, false, true, 1.13, 1.10},
		{"square", func(n float64) float64 { return n * n / 1e9 }, false, true, 2, 2},
		{"square behind a fixed cost", func(n float64) float64 { return 1 + n*n/1e8 }, false, true, 0.63, 1.70},
		{"cache misses of one object", func(n float64) float64 { return math.Pow(n, 0.2) }, true, false, 0.2, 0.2},
		{"faster", func(n float64) float64 { return 1 / n }, true, false, -1, -1},
	} {
		g := Growth{Flat: c.flat, Sizes: []int{100, 1000, 10_000, 100_000}}
		for _, n := range g.Sizes {
			g.Seconds = append(g.Seconds, c.seconds(float64(n)))
		}
		g.judge(explanation{})
		if math.Abs(g.Slope-c.slope) > 0.01 || math.Abs(g.Last-c.last) > 0.01 || g.Steep != c.steep {
			t.Errorf("%s: slope %.3f, last %.3f, steep: %v; want %.2f, %.2f, %v", c.name, g.Slope, g.Last, g.Steep, c.slope, c.last, c.steep)
		}
	}
}

// TestTimeOfAnOperation: many runs are one round. Costs that are paid now and then count, but delays by other
// processes and the reset do not.
func TestTimeOfAnOperation(t *testing.T) {
	for _, c := range []struct {
		name  string
		run   func(n int) time.Duration // the n-th
		reset time.Duration
		want  time.Duration
		runs  [2]int // at least and at most
	}{
		{"short", func(int) time.Duration { return 10 * time.Microsecond }, 0, 10 * time.Microsecond, [2]int{15_000, 15_200}},
		{"now and then long", func(n int) time.Duration {
			if n%10 == 0 {
				return 110 * time.Microsecond
			}
			return 10 * time.Microsecond
		}, 0, 20 * time.Microsecond, [2]int{7000, 8000}},
		{"delayed most of the time", func(n int) time.Duration {
			if n%7 == 0 {
				return 2 * time.Millisecond
			}
			return 9 * time.Millisecond
		}, 0, 2 * time.Millisecond, [2]int{15, 30}},
		{"long", func(int) time.Duration { return 5 * time.Second }, 0, 5 * time.Second, [2]int{1, 1}},
		{"with a long reset", func(int) time.Duration { return 3 * time.Millisecond }, 700 * time.Millisecond, 3 * time.Millisecond, [2]int{3, 3}},
	} {
		synctest.Test(t, func(t *testing.T) {
			runs := 0
			op := scaledOp{run: func() error { runs++; time.Sleep(c.run(runs)); return nil }}
			if c.reset > 0 {
				op.reset = func() error { time.Sleep(c.reset); return nil }
			}
			seconds, err := op.time(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			if got := time.Duration(seconds * 1e9).Round(100 * time.Nanosecond); got != c.want || runs < c.runs[0] || runs > c.runs[1] {
				t.Errorf("%s: %v in %d runs, want %v in %v", c.name, got, runs, c.want, c.runs)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	op := scaledOp{run: func() error { return nil }}
	if _, err := op.time(ctx, false); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context ended", err)
	}
	op.reset = func() error { return io.ErrUnexpectedEOF }
	if _, err := op.time(t.Context(), false); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("got %v, want the error of the reset", err)
	}
}

// TestSteepIsMeasuredAgain: another process may delay one size once. An explained slope need not be measured again.
func TestSteepIsMeasuredAgain(t *testing.T) {
	for _, c := range []struct {
		name      string
		delays    int // of the largest size; -1 for a long one
		explained map[string]explanation
		setups    int
		steep     bool
	}{
		{"undisturbed", 0, nil, 2, false},
		{"disturbed once", 1, nil, 4, false},
		{"steep", 100, nil, 6, true},
		{"steep and slow", -1, nil, 2, true},
		{"steep and explained", 100, map[string]explanation{"op": {"because", 2.5}}, 2, true},
		{"steeper than explained", 100, map[string]explanation{"op": {"because", 1.5}}, 6, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			setups, closed := 0, 0
			s := scaling{
				part: "part", dimension: dimension{name: "things", sizes: []int{10, 100}, of: func(n int) scaledCluster { return scaledCluster{services: n} }},
				explained: c.explained,
				setup: func(_ context.Context, cluster scaledCluster) (*scaled, error) {
					setups++
					d := time.Duration(cluster.services) * time.Millisecond
					switch {
					case cluster.services == 100 && c.delays > 0:
						c.delays--
						d *= 10
					case cluster.services == 100 && c.delays < 0:
						d = time.Minute
					}
					if setups == 3 {
						d *= 2 // what was measured before is shorter, and counts
					}
					return &scaled{
						ops:   []scaledOp{{name: "op", run: func() error { time.Sleep(d); return nil }}},
						close: func() error { closed++; return nil },
					}, nil
				},
			}
			grown, err := s.measure(t.Context(), false)
			if err != nil {
				t.Fatal(err)
			}
			if len(grown) != 1 || grown[0].Seconds[0] != 0.01 || grown[0].Steep != c.steep || setups != c.setups || closed != setups {
				t.Errorf("%s: %+v after %d setups, %d closed; want %d setups, steep: %v", c.name, grown, setups, closed, c.setups, c.steep)
			}
		})
	}
}

func TestScalingSelection(t *testing.T) {
	all := []scaling{
		{part: "brain", dimension: dimension{name: "ports"}}, {part: "store", dimension: dimension{name: "ports"}},
		{part: "store", dimension: dimension{name: "services"}},
	}
	for only, want := range map[string]int{"": 3, "store": 2, "ports": 2, "services": 1} {
		if got, err := (ScalingOptions{Only: only}).selected(all); err != nil || len(got) != want {
			t.Errorf("%q selects %d, %v; want %d", only, len(got), err, want)
		}
	}
	if _, err := (ScalingOptions{Only: "port"}).selected(all); err == nil || !strings.Contains(err.Error(), `["brain" "ports" "services" "store"]`) {
		t.Errorf("got %v, want what may be chosen", err)
	}
}

// someGrowths is a report with a line of each kind.
func someGrowths() []Growth {
	all := []Growth{
		{Operation: "store/load", Dimension: "services", Sizes: []int{1000, 10_000, 100_000}, Seconds: []float64{0.001, 0.01, 0.1}},
		{Operation: "store/change", Dimension: "services", Flat: true, Sizes: []int{1000, 100_000}, Seconds: []float64{1e-6, 1.5e-6}},
		{Operation: "kernel/list", Dimension: "<flows>", Sizes: []int{10, 100}, Seconds: []float64{1e-6, 1e-4}},
	}
	for i := range all {
		all[i].judge(explanation{"it compares all pairs", 2.1})
	}
	return all
}

func TestScalingTable(t *testing.T) {
	var out bytes.Buffer
	if err := writeGrowths(&out, someGrowths()); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"operation dimension time of one at each size slope last at most",
		"store/load services 1k 1ms, 10k 10ms, 100k 100ms 1.00 1.00 1.10",
		"store/change services 1k 1µs, 100k 1.5µs 0.09 0.09 0.25",
		"kernel/list <flows> 10 1µs, 100 100µs 2.00 2.00 1.10 STEEP: it compares all pairs",
	}
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.Join(strings.Fields(line), " "))
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestUnexplained: what is steep is named, unless the reason is known and accounts for all of it.
func TestUnexplained(t *testing.T) {
	square := func(operation, dimension string, flat bool, why explanation) Growth {
		g := Growth{Operation: operation, Dimension: dimension, Flat: flat, Sizes: []int{10, 100}, Seconds: []float64{1e-6, 1e-4}}
		g.judge(why)
		return g
	}
	if err := Unexplained(someGrowths()); err != nil {
		t.Errorf("with one that is steep and explained: %v", err)
	}
	err := Unexplained(append(someGrowths(), square("store/load", "ports", false, explanation{}),
		square("kernel/list", "flows", false, explanation{"it compares all pairs", 2.1}), square("brain/change", "ports", true, explanation{"it sorts", 1.2})))
	want := "2 of the operations grow faster than they may, and nothing explains it: store/load with more and more ports (slope 2.00, last 2.00, at most 1.10); " +
		"brain/change with more and more ports (slope 2.00, last 2.00, at most 0.25)"
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestWriteGrowths(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	if err := WriteGrowths(dir, someGrowths()); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "scaling.md"))
	if err != nil {
		t.Fatal(err)
	}
	if want := "STEEP: it compares all pairs\n```\n"; !strings.HasSuffix(string(b), want) || strings.Contains(string(b), "%!") {
		t.Errorf("scaling.md is\n%s\nwant the end %q", b, want)
	}
}

// TestScalingOperations runs every operation at small sizes.
func TestScalingOperations(t *testing.T) {
	netnstest.Need(t)
	var lines bytes.Buffer
	all, err := Scaling(t.Context(), &lines, io.Discard, ScalingOptions{Quick: true})
	if err != nil {
		t.Fatal(err)
	}
	measured := map[[2]string]bool{}
	for line := range strings.Lines(lines.String()) {
		var g Growth
		if err := json.Unmarshal([]byte(line), &g); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		part, name, _ := strings.Cut(g.Operation, "/")
		if name == "" || len(g.Sizes) < 2 || len(g.Seconds) != len(g.Sizes) || slices.Min(g.Seconds) <= 0 || math.IsNaN(g.Slope+g.Last) {
			t.Errorf("bad result %s", line)
		}
		measured[[2]string{part, g.Dimension}] = true
	}
	if n := strings.Count(lines.String(), "\n"); n != len(all) {
		t.Errorf("%d lines of %d results", n, len(all))
	}
	parts := map[string]string{
		"brain": "endpoints per service, slices, ports, ranges, node addresses",
		"store": "services, endpoints per service, slices, ports, ranges, node addresses, namespaces that opt out",
		"wire":  "endpoints per service, slices, ports, ranges, node addresses",
		"relay": "services, endpoints per service, slices, ports, ranges, namespaces that opt out, followers",
	}
	if runtime.GOOS == "linux" {
		parts["nftables"] = "services, endpoints per service, ports, ranges, node addresses, sticky clients, UDP flows"
		parts["conntrack"] = "UDP flows, UDP flows over IPv6, services that lose an endpoint, endpoints that leave"
	}
	for part, dimensions := range parts {
		for d := range strings.SplitSeq(dimensions, ", ") {
			if !measured[[2]string{part, d}] {
				t.Errorf("%s was not measured with more %s", part, d)
			}
		}
	}
}
