// Package top has the table of `switchyard top`: how many new connections each port of a Service gets between two
// readings of the counts.
package top

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/x/ansi"

	"github.com/switchyard-net/switchyard/internal/admin/view"
)

// Report is the difference of two readings. Its form as JSON is stable: fields may be added.
type Report struct {
	// At is when the second reading was, and Seconds how long after the first one.
	At      time.Time `json:"at"`
	Seconds float64   `json:"seconds"`
	Ports   []Row     `json:"ports"`
	// LeftOut is how many ports are selected and not among these.
	LeftOut int `json:"leftOut,omitempty"`
}

// Row is a port of a Service.
type Row struct {
	Namespace string `json:"namespace"`
	Service   string `json:"service"`
	// Port is its name, or its number if it has none.
	Port string `json:"port"`
	// PerSecond is nil if the port is not in both readings.
	PerSecond *Rates `json:"perSecond,omitempty"`
	// Total is since the port was programmed.
	Total     view.Counts    `json:"total"`
	Endpoints view.Endpoints `json:"endpoints"`
}

// Rates are the new connections a second, and how many of them were rejected and dropped.
type Rates struct {
	Connections float64 `json:"connections"`
	Rejects     float64 `json:"rejects"`
	Drops       float64 `json:"drops"`
}

// Between returns the difference of two readings. The second has the time that passed.
func Between(before, now *view.Traffic) *Report {
	type key struct{ namespace, service, port string }
	last := make(map[key]view.Counts, len(before.Ports))
	for i := range before.Ports {
		p := &before.Ports[i]
		last[key{p.Namespace, p.Service, p.Port}] = p.Counts
	}
	r := &Report{At: now.At, Seconds: now.Elapsed.Seconds(), Ports: []Row{}, LeftOut: now.LeftOut}
	for i := range now.Ports {
		p := &now.Ports[i]
		row := Row{Namespace: p.Namespace, Service: p.Service, Port: p.Port, Total: p.Counts, Endpoints: p.Endpoints}
		if was, ok := last[key{p.Namespace, p.Service, p.Port}]; ok && r.Seconds > 0 {
			row.PerSecond = &Rates{
				rate(was.Connections, p.Connections, r.Seconds), rate(was.Rejects, p.Rejects, r.Seconds), rate(was.Drops, p.Drops, r.Seconds),
			}
		}
		r.Ports = append(r.Ports, row)
	}
	return r
}

// rate returns the increase of a counter, a second. A counter that has gone down has restarted from 0.
func rate(was, is uint64, seconds float64) float64 {
	if is < was {
		was = 0
	}
	return float64(is-was) / seconds
}

// rates are the rates of a row, 0 where they are not known.
func (r *Row) rates() Rates {
	if r.PerSecond == nil {
		return Rates{}
	}
	return *r.PerSecond
}

// Order is how rows are sorted.
type Order string

// The orders: the busiest first, those with the most rejects or drops first, or by name.
const (
	ByConnections Order = "connections"
	ByRejects     Order = "rejects"
	ByDrops       Order = "drops"
	ByName        Order = "name"
)

// Orders are all there are.
var Orders = []Order{ByConnections, ByRejects, ByDrops, ByName}

// next is the order after this one.
func (o Order) next() Order { return Orders[(slices.Index(Orders, o)+1)%len(Orders)] }

// of is what rows are compared by, the largest first. Those with the same are sorted by name.
func (o Order) of(r *Row) float64 {
	switch rates := r.rates(); o {
	case ByConnections:
		return rates.Connections
	case ByRejects:
		return rates.Rejects
	case ByDrops:
		return rates.Drops
	}
	return 0
}

// Sort sorts the rows.
func (r *Report) Sort(by Order) {
	slices.SortFunc(r.Ports, func(a, b Row) int {
		return cmp.Or(cmp.Compare(by.of(&b), by.of(&a)), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Service, b.Service), cmp.Compare(a.Port, b.Port))
	})
}

// Write prints the rows as a table. With namespaces, they have a column.
func (r *Report) Write(w io.Writer, namespaces bool) error {
	header, lines := table{rows: r.Ports, namespaces: namespaces}.lines()
	var b strings.Builder
	for _, line := range append([]string{header}, lines...) {
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// table lays rows out in columns.
type table struct {
	rows       []Row
	namespaces bool
	// paint has rejects and drops stand out.
	paint bool
}

// columns are the names of the columns. Those from the first rate on are numbers, and stand at the right.
var columns = []string{"NAMESPACE", "SERVICE", "PORT", "CONN/S", "REJECTS/S", "DROPS/S", "TOTAL", "ENDPOINTS"}

const (
	firstNumber   = 3
	rejectsColumn = 4
	dropsColumn   = 5
)

// bad is how rejects and drops look.
var bad = ansi.Style{}.Bold().ForegroundColor(ansi.Red)

// lines returns the header, and a line for each row.
func (t table) lines() (header string, lines []string) {
	cells := [][]string{columns}
	for i := range t.rows {
		cells = append(cells, t.rows[i].cells())
	}
	widths := make([]int, len(columns))
	for _, row := range cells {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	for n, row := range cells {
		var b strings.Builder
		for i, cell := range row {
			if i == 0 && !t.namespaces {
				continue
			}
			text := fmt.Sprintf("%-*s   ", widths[i], cell)
			if i >= firstNumber {
				text = fmt.Sprintf("%*s   ", widths[i], cell)
			}
			if t.paint && n > 0 && t.rows[n-1].stands(i) {
				text = bad.Styled(text)
			}
			b.WriteString(text)
		}
		lines = append(lines, strings.TrimSuffix(b.String(), "   "))
	}
	return lines[0], lines[1:]
}

// cells are the cells of all columns.
func (r *Row) cells() []string {
	text := func(rate float64) string {
		if r.PerSecond == nil {
			return "-"
		}
		return fmt.Sprintf("%.1f", rate)
	}
	rates := r.rates()
	return []string{
		r.Namespace, r.Service, r.Port, text(rates.Connections), text(rates.Rejects), text(rates.Drops),
		fmt.Sprint(r.Total.Connections), fmt.Sprintf("%d/%d", r.Endpoints.Used, r.Endpoints.All),
	}
}

// stands reports whether a cell stands out: connections are rejected or dropped.
func (r *Row) stands(column int) bool {
	rates := r.rates()
	return column == rejectsColumn && rates.Rejects > 0 || column == dropsColumn && rates.Drops > 0
}
