// Package bench measures Switchyard's parts against synthetic clusters: the figures that README.md quotes, for anyone to
// rerun.
package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"
)

// Result is one measured figure.
type Result struct {
	// Name identifies what was measured, as "part/what".
	Name string `json:"name"`
	// Services is the size of the cluster, Endpoints the number of endpoints of each service.
	Services  int     `json:"services"`
	Endpoints int     `json:"endpoints"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
}

// Options specifies what to measure. The zero value measures the sizes that Switchyard's goals are set for.
type Options struct {
	// Services are the cluster sizes to measure at. Default: the benchmark's own.
	Services []int
	// Endpoints is the number of endpoints of each service. Default: 5.
	Endpoints int
}

// NFTablesOptions are the options of [NFTables].
type NFTablesOptions struct {
	Options
	// Ranges are the total numbers of source ranges to measure with, of many Services. Default: 1,000 and 100,000. Empty but not
	// nil: none.
	Ranges []int
	// Clients are the numbers of remembered clients of one Service with affinity. Default: 1,000 and 1,000,000. Empty but not
	// nil: none.
	Clients []int
}

// withDefaults fills in what is not set.
func (o Options) withDefaults(services ...int) Options {
	if len(o.Services) == 0 {
		o.Services = services
	}
	if o.Endpoints == 0 {
		o.Endpoints = 5
	}
	return o
}

// Reporter takes results as they come: each is written as one line of JSON at once, and Close writes all as a table.
type Reporter struct {
	lines, table io.Writer

	mu      sync.Mutex
	results []reported
	err     error // the first of writing to lines
}

// reported is a result as it is written.
type reported struct {
	Result
	// AtMost is what Value should be at most, nil if there is no target. Missed is set if it is more.
	AtMost *float64 `json:"atMost,omitempty"`
	Missed bool     `json:"missed,omitempty"`
}

// verdict is what the table says about the target.
func (r *reported) verdict() string {
	switch {
	case r.AtMost == nil:
		return ""
	case r.Missed:
		return fmt.Sprintf("at most %g: missed", *r.AtMost)
	}
	return fmt.Sprintf("at most %g: ok", *r.AtMost)
}

// NewReporter returns a reporter that writes JSON to lines (stdout), and to table (stderr) everything for people.
func NewReporter(lines, table io.Writer) *Reporter {
	return &Reporter{lines: lines, table: table}
}

// Report takes a result.
func (r *Reporter) Report(result Result) { r.report(reported{Result: result}) }

// ReportAgainst takes a result that should be at most so much.
func (r *Reporter) ReportAgainst(result Result, atMost float64) {
	r.report(reported{result, &atMost, result.Value > atMost})
}

func (r *Reporter) report(result reported) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.results = append(r.results, result)
	if err := json.NewEncoder(r.lines).Encode(result); err != nil && r.err == nil {
		r.err = err
	}
}

// announceAfter is how long a step may take before it is announced.
const announceAfter = 2 * time.Second

// Step describes what is being done, if it takes long. The caller calls done at the end of it.
func (r *Reporter) Step(format string, args ...any) (done func()) {
	timer := time.AfterFunc(announceAfter, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		fmt.Fprintf(r.table, format+" ...\n", args...)
	})
	return func() { timer.Stop() }
}

// Note says something for people.
func (r *Reporter) Note(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	fmt.Fprintf(r.table, format+"\n", args...)
}

// Close writes the table. It returns the first error of writing results.
func (r *Reporter) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := writeResults(r.table, r.results); err != nil && r.err == nil {
		r.err = err
	}
	return r.err
}

// Missed returns an error that names the figures that missed their target, nil if there are none. Other work on the machine makes figures
// worse, so that a miss is no fault before it has been measured on a quiet one.
func (r *Reporter) Missed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	var missed []string
	for _, x := range r.results {
		if x.Missed {
			missed = append(missed, fmt.Sprintf("%s with %d services is %s %s, at most %g", x.Name, x.Services, readable(x.Value), x.Unit, *x.AtMost))
		}
	}
	if len(missed) == 0 {
		return nil
	}
	return fmt.Errorf("%d of the figures missed their target: %s", len(missed), strings.Join(missed, "; "))
}

// writeResults writes a table for people, with a column for targets if there are any.
func writeResults(out io.Writer, results []reported) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	target, column := "", ""
	if slices.ContainsFunc(results, func(x reported) bool { return x.AtMost != nil }) {
		target, column = "target\t", "\t"
	}
	fmt.Fprintln(w, "benchmark\tservices\tendpoints\tvalue\tunit\t"+target)
	for _, x := range results {
		fmt.Fprintf(w, "%s\t%d\t%d\t%s\t%s\t%s%s\n", x.Name, x.Services, x.Endpoints, readable(x.Value), x.Unit, x.verdict(), column)
	}
	return w.Flush()
}

// readable has three significant digits, or all those before the point.
func readable(v float64) string {
	decimals := 0
	for limit := 100.0; decimals < 3 && math.Abs(v) < limit; limit /= 10 {
		decimals++
	}
	return strconv.FormatFloat(v, 'f', decimals, 64)
}

// Percentile returns the smallest duration that at least p percent of durations do not exceed, 0 if there are none. It sorts
// durations.
func Percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	rank := int(p / 100 * float64(len(durations)))
	if float64(rank) < p/100*float64(len(durations)) {
		rank++
	}
	return durations[max(rank, 1)-1]
}

// writePage writes a page of docs/benchmarks to a directory.
func writePage(dir, name, text string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// Milliseconds is d in the unit "ms" of results.
func Milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

// Microseconds is d in the unit "us" of results.
func Microseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
