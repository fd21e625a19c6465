package bench

import (
	"errors"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"
)

const growthsText = `# How time grows

Written by ` + "`bench scaling --out docs/benchmarks`" + ` (%d CPUs, %s, %s). Each operation is measured with ten times more and more of
everything that objects or packets can make more of. Its time is the shortest of several rounds, each of at least a millisecond.

- **slope** is the slope of the best straight line on a log-log scale. It is 0 for a constant time, 1 for a time that grows as the size, 2 for its square. **last** is the slope between the two largest sizes, where fixed costs no longer hide a square.
- An operation on one object, while others become more, must stay: at most %.2f, which is what caches cost. All others may grow as much as
  what they work on: at most %.2f. The cost of a change of an endpoint or range may grow with its own Service. A record is computed, compared and sent as a whole.
- STEEP marks slopes above that, with the reason.

![time over size, log-log; flat operations are dashed](scaling.svg)

` + "```\n%s```\n"

// WriteGrowths writes what was measured to a directory, as scaling.md and scaling.svg.
func WriteGrowths(dir string, all []Growth) error {
	var table strings.Builder
	err := writeGrowths(&table, all)
	text := fmt.Sprintf(growthsText, runtime.NumCPU(), runtime.Version(), time.Now().UTC().Format(time.DateOnly), maxFlatSlope, maxSlope, &table)
	return errors.Join(err,
		os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, "scaling.md"), []byte(text), 0o644),
		os.WriteFile(filepath.Join(dir, "scaling.svg"), []byte(plot(all)), 0o644))
}

// Sizes in the plot, in pixels.
const (
	panelWidth, panelHeight = 620, 300
	plotLeft, plotWidth     = 60, 250
	plotTop, plotHeight     = 30, 240
	legendLeft              = plotLeft + plotWidth + 16
	legendLine              = 11
)

// plot draws a panel for each part, with a line for each operation and dimension: time over size, both logarithmic.
func plot(all []Growth) string {
	var parts []string
	panels := map[string][]Growth{}
	for _, g := range all {
		part, _, _ := strings.Cut(g.Operation, "/")
		if panels[part] == nil {
			parts = append(parts, part)
		}
		panels[part] = append(panels[part], g)
	}
	var b strings.Builder
	y := 0
	var body strings.Builder
	for i, part := range parts {
		row := parts[i/2*2 : min(i/2*2+2, len(parts))]
		fmt.Fprintf(&body, "<g transform=\"translate(%d,%d)\">\n", i%2*panelWidth, y)
		panel(&body, part, panels[part])
		body.WriteString("</g>\n")
		if i%2 == 1 || i == len(parts)-1 {
			longest := slices.MaxFunc(row, func(a, b string) int { return len(panels[a]) - len(panels[b]) })
			y += max(panelHeight, plotTop+legendLine*(1+len(panels[longest]))+plotTop)
		}
	}
	fmt.Fprintf(&b, "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" font-size=\"9\">\n", 2*panelWidth, y)
	b.WriteString("<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n")
	return b.String() + body.String() + "</svg>\n"
}

// decades is a range of powers of ten.
type decades struct{ from, to int }

// cover makes the range contain v.
func (d *decades) cover(v float64) {
	const inexact = 1e-9 // of logarithms of powers of ten
	d.from, d.to = min(d.from, int(math.Floor(math.Log10(v)+inexact))), max(d.to, int(math.Ceil(math.Log10(v)-inexact)))
}

func (d decades) at(v float64) float64 {
	return (math.Log10(v) - float64(d.from)) / float64(max(d.to-d.from, 1))
}

func panel(b *strings.Builder, part string, grown []Growth) {
	x, y := decades{math.MaxInt, math.MinInt}, decades{math.MaxInt, math.MinInt}
	for _, g := range grown {
		for i, n := range g.Sizes {
			x.cover(float64(n))
			y.cover(g.Seconds[i])
		}
	}
	px := func(n float64) float64 { return plotLeft + plotWidth*x.at(n) }
	py := func(s float64) float64 { return plotTop + plotHeight*(1-y.at(s)) }
	fmt.Fprintf(b, "<text x=\"%d\" y=\"18\" font-size=\"13\" font-weight=\"bold\">%s</text>\n", plotLeft, html.EscapeString(part))
	for d := x.from; d <= x.to; d++ {
		at := px(math.Pow10(d))
		fmt.Fprintf(b, "<path d=\"M%.1f %d V%d\" stroke=\"#ddd\"/><text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>\n",
			at, plotTop, plotTop+plotHeight, at, plotTop+plotHeight+12, short(int(math.Pow10(d))))
	}
	for d := y.from; d <= y.to; d++ {
		at := py(math.Pow10(d))
		fmt.Fprintf(b, "<path d=\"M%d %.1f H%d\" stroke=\"#ddd\"/><text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>\n",
			plotLeft, at, plotLeft+plotWidth, plotLeft-4, at+3, rounded(math.Pow10(d)))
	}
	for i, g := range grown {
		color := fmt.Sprintf("hsl(%d,70%%,%d%%)", i*360/len(grown), 40-i%2*12)
		dash := ""
		if g.Flat {
			dash = " stroke-dasharray=\"4 2\""
		}
		var points []string
		for j, n := range g.Sizes {
			points = append(points, fmt.Sprintf("%.1f,%.1f", px(float64(n)), py(g.Seconds[j])))
		}
		fmt.Fprintf(b, "<polyline points=\"%s\" fill=\"none\" stroke=\"%s\"%s/>\n", strings.Join(points, " "), color, dash)
		_, name, _ := strings.Cut(g.Operation, "/")
		at := plotTop + legendLine*(i+1)
		fmt.Fprintf(b, "<path d=\"M%d %d h14\" stroke=\"%s\"%s/><text x=\"%d\" y=\"%d\">%s</text>\n",
			legendLeft, at-3, color, dash, legendLeft+18, at, html.EscapeString(name+", "+g.Dimension))
	}
}
