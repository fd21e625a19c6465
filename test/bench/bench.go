//go:build linux

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
	// Name identifies the measurement, as "part/what".
	Name string `json:"name"`
	// Services is the size of the cluster, Endpoints the number of endpoints of each service.
	Services  int     `json:"services"`
	Endpoints int     `json:"endpoints"`
	Value     float64 `json:"value"`
	Unit      string  `json:"unit"`
}

// targets are what figures should be at most, in their units: by name, or by name and size.
var targets = map[string]float64{
	"memory/rss 10000x5":             40,
	"nftables/warm-restart 100000x5": 2,
	"nftables/warm-restart-written":  0,

	"tenants/100000-ranges/load":                          1_000,
	"tenants/1000-ranges/changed-range-p50":               100,
	"tenants/100000-ranges/changed-range-p50":             100,
	"tenants/1000-ports-of-1000-ranges/changed-range-p99": 10_000,
	"tenants/1000000-clients/changed-endpoint-p99":        1_000,

	// A ratio below 0.97 is noise.
	"balance/ratio/class-5-next-to-weights":            1.03,
	"balance/ratio/class-5-next-to-refused-share":      1.03,
	"balance/ratio/class-5-next-to-hash":               1.03,
	"balance/ratio/one-endpoint-next-to-weights":       1.03,
	"balance/ratio/one-endpoint-next-to-refused-share": 1.03,
	"balance/ratio/one-endpoint-next-to-hash":          1.03,
	"balance/ratio/weights-64":                         1.22,
	"balance/ratio/weights-256":                        1.22,
	"balance/ratio/hash-client":                        1.02,
	"balance/ratio/hash-connection":                    1.02,
	"balance/ratio/class-5-again":                      1.03,
	"balance/ratio/first-datagram-next-to-ejection":    1.05,
	"balance/ratio/datagram-next-to-ejection":          1.05,
	"balance/ratio/ejection-first-syn":                 1.05,
	"balance/ratio/ejection-repeated-syn":              1.05,
	"balance/ratio/ejection-ack":                       1.05,
	"balance/endpoint-change-hash-4093-p50":            2_500,
	"balance/weight-change-class-256-p50":              500,
	"balance/weights-exchanged-class-256-p50":          500,

	// Ratios of the edge to nftables alone, what the entry node tracks, and a change of weights in milliseconds.
	"edge/ratio/packet-64-flows/tcx":    0.80,
	"edge/ratio/packet-50000-flows/tcx": 0.80,
	"edge/ratio/packet-new-flows/tcx":   0.80,
	"edge/ratio/packet-64-flows/xdp":    0.30,
	"edge/ratio/packet-50000-flows/xdp": 0.30,
	"edge/ratio/packet-new-flows/xdp":   0.30,
	"edge/ratio/connect/tcx":            0.92,
	"edge/ratio/request/tcx":            0.90,
	"edge/ratio/ping/tcx":               0.95,
	"edge/conntrack/tcx":                0,
	"edge/conntrack/xdp":                0,
	"edge/weight-change-p50":            0.1,

	// Differences of connections. The targets of programming are the cost of hooks in addition to nftables.
	"ebpf/hooks-over-direct/pod-connect":                 1,
	"ebpf/hooks-over-direct/pod-reconnect":               0.3,
	"ebpf/hooks-over-direct/pod-unconcerned-udp-connect": 0.1,
	"ebpf/over-nftables/pod-connect":                     -1,
	"ebpf/over-nftables/node-connect":                    -3,
	"ebpf/part-of-nftables/pod-request":                  0.98,
	"ebpf/endpoint-change-p50/own":                       0.5,
	"ebpf/frontend-added-p50/own":                        2.5,
	"ebpf/cold-load/own":                                 40,
	"ebpf/cold-load/own 100000x5":                        200,
	"ebpf/flips/mixed-reads":                             0,
}

// Options specifies what to measure. The zero value measures the sizes that Switchyard's goals are set for.
type Options struct {
	// Services are the cluster sizes to measure at. Default: the benchmark's own.
	Services []int
	// Endpoints is the number of endpoints of each service. Default: 5.
	Endpoints int
}

// withDefaults fills in missing options.
func (o Options) withDefaults(services ...int) Options {
	if len(o.Services) == 0 {
		o.Services = services
	}
	setDefault(&o.Endpoints, 5)
	return o
}

func setDefault[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
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

// Report takes a result, and compares it with its target if it has one.
func (r *Reporter) Report(result Result) {
	r.mu.Lock()
	defer r.mu.Unlock()
	x := reported{Result: result}
	for _, key := range []string{result.Name, fmt.Sprintf("%s %dx%d", result.Name, result.Services, result.Endpoints)} {
		if atMost, ok := targets[key]; ok {
			x.AtMost, x.Missed = &atMost, result.Value > atMost
		}
	}
	r.results = append(r.results, x)
	if err := json.NewEncoder(r.lines).Encode(x); err != nil && r.err == nil {
		r.err = err
	}
}

// figures reports the measurements of one part, at one size.
type figures struct {
	*Reporter
	part                string
	services, endpoints int
}

func (f figures) report(name string, value float64, unit string) {
	f.Report(Result{f.part + "/" + name, f.services, f.endpoints, value, unit})
}

// times reports percentiles of durations, as name-p50 and name-p99.
func (f figures) times(name string, took []time.Duration, unit string) {
	for _, p := range []float64{50, 99} {
		f.report(fmt.Sprintf("%s-p%.0f", name, p), in(unit, Percentile(took, p)), unit)
	}
}

// in is a duration in a unit of results.
func in(unit string, d time.Duration) float64 {
	switch unit {
	case "us":
		return float64(d.Nanoseconds()) / 1e3
	case "ms":
		return float64(d.Nanoseconds()) / 1e6
	}
	return d.Seconds()
}

// each measures a part at each size in turn, and announces sizes that take long.
func (r *Reporter) each(o Options, part string, measure func(figures) error) error {
	for _, services := range o.Services {
		done := r.Step("%s: %d services with %d endpoints", part, services, o.Endpoints)
		err := measure(figures{r, part, services, o.Endpoints})
		done()
		if err != nil {
			return err
		}
	}
	return nil
}

// announceAfter is how long a step may take before it is announced.
const announceAfter = 2 * time.Second

// Step describes the current step, if it takes long. The caller calls done at the end of it.
func (r *Reporter) Step(format string, args ...any) (done func()) {
	timer := time.AfterFunc(announceAfter, func() { r.Note(format+" ...", args...) })
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

// short is a size for people: 1000 is 1k.
func short(n int) string {
	switch {
	case n >= 1_000_000 && n%1_000_000 == 0:
		return fmt.Sprintf("%dM", n/1_000_000)
	case n >= 1000 && n%100 == 0:
		return fmt.Sprintf("%gk", float64(n)/1000)
	}
	return fmt.Sprint(n)
}

// markdownTable is a Markdown table whose columns are also aligned for people.
type markdownTable struct {
	text strings.Builder
	w    *tabwriter.Writer
}

func table(titles ...string) *markdownTable {
	t := &markdownTable{}
	t.w = tabwriter.NewWriter(&t.text, 0, 0, 1, ' ', 0)
	t.row(titles...)
	t.row(slices.Repeat([]string{"---"}, len(titles))...)
	return t
}

func (t *markdownTable) row(cells ...string) {
	fmt.Fprintf(t.w, "| %s\t|\n", strings.Join(cells, "\t| "))
}

// String ends the table.
func (t *markdownTable) String() string {
	_ = t.w.Flush() // to memory
	return t.text.String()
}

// writePage writes a page of docs/benchmarks to a directory.
func writePage(dir, name, text string) error {
	return errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644))
}

// Percentile returns the smallest duration that at least p percent of durations do not exceed, 0 if there are none. It sorts
// durations.
func Percentile(durations []time.Duration, p float64) time.Duration {
	if len(durations) == 0 {
		return 0
	}
	slices.Sort(durations)
	rank := int(math.Ceil(p / 100 * float64(len(durations))))
	return durations[max(rank, 1)-1]
}

// MiB is bytes in the unit "MiB" of results.
func MiB(bytes uint64) float64 { return float64(bytes) / (1 << 20) }
