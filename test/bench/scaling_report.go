//go:build linux

package bench

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"
)

const growthsText = `# How time grows

Written by ` + "`bench scaling --out docs/benchmarks`" + ` (%d CPUs, %s, %s). Each operation is measured in all dimensions
that objects or packets can increase, in steps of a factor of ten. A time is the shortest of several rounds of at least a millisecond.

- **slope** is the exponent of a power law fitted to the times: 0 is constant, 1 linear, 2 quadratic. **last** is the slope between the two largest sizes, where fixed costs
  hide less.
- An operation on one object must not depend on the number of other objects: at most %.2f, for caches. All other operations
  may be linear: at most %.2f. A change of an endpoint or range may grow with its own
  Service. A record is computed, compared and sent as a whole.
- STEEP marks steeper slopes, with the reason.

` + "```\n%s```\n"

// WriteGrowths writes the measurements to a directory, as scaling.md.
func WriteGrowths(dir string, all []Growth) error {
	var table strings.Builder
	err := writeGrowths(&table, all)
	return errors.Join(err, writePage(dir, "scaling.md", fmt.Sprintf(growthsText, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly),
		maxFlatSlope, maxSlope, &table)))
}

// Unexplained returns an error that names the operations that grow faster than they may for no known reason, nil if there are none.
func Unexplained(all []Growth) error {
	var names []string
	for _, g := range all {
		if g.Steep && g.Explained == "" {
			names = append(names, fmt.Sprintf("%s with more and more %s (slope %.2f, last %.2f, at most %.2f)", g.Operation, g.Dimension, g.Slope, g.Last, g.limit()))
		}
	}
	if len(names) == 0 {
		return nil
	}
	return fmt.Errorf("%d of the operations grow faster than they may, and nothing explains it: %s", len(names), strings.Join(names, "; "))
}

// writeGrowths writes a table for people, in which STEEP marks what grows faster than it may.
func writeGrowths(out io.Writer, all []Growth) error {
	var table bytes.Buffer
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "operation\tdimension\ttime of one at each size\tslope\tlast\tat most\t")
	for _, g := range all {
		var times []string
		for i, n := range g.Sizes {
			times = append(times, fmt.Sprintf("%s %s", short(n), rounded(g.Seconds[i])))
		}
		mark := ""
		if g.Steep {
			mark = "STEEP: " + cmp.Or(g.Explained, "not explained")
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%.2f\t%.2f\t%.2f\t%s\n", g.Operation, g.Dimension, strings.Join(times, ", "), g.Slope, g.Last, g.limit(), mark)
	}
	err := w.Flush()
	for line := range strings.Lines(table.String()) {
		if err == nil {
			_, err = fmt.Fprintln(out, strings.TrimRight(line, " \n"))
		}
	}
	return err
}

// rounded is a time with three significant digits.
func rounded(seconds float64) string {
	d := time.Duration(seconds * 1e9)
	unit := time.Nanosecond
	for unit*1000 <= d {
		unit *= 10
	}
	return d.Round(unit).String()
}
