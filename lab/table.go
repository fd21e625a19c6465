//go:build linux

package lab

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// minWidth is the narrowest table that can be read; on narrower terminals lines wrap.
const minWidth = 80

// group is the part of the table about one Service.
type group struct {
	service  *model.Service
	rows     []row
	findings []diagnosis.Finding
}

// row shows the clients of one frontend with the same outcome.
type row struct {
	first   *result // of its clients
	clients []probe.Client
	servers map[string]int
	// handedOver is how many connections were handed over to other nodes.
	handedOver int
	p50        time.Duration
	good       bool
	// again is set if the row above is about the same frontend.
	again bool
}

// groups folds results, which are ordered as plan orders calls, into the groups of the table.
func groups(results []result) []group {
	var list []group
	for i := range results {
		r := &results[i]
		if len(list) == 0 || list[len(list)-1].service.Name != r.service.Name {
			list = append(list, group{service: r.service})
		}
		g := &list[len(list)-1]
		if j := slices.IndexFunc(g.rows, func(o row) bool { return o.joins(r) }); j >= 0 {
			g.rows[j].add(r)
			continue
		}
		again := len(g.rows) > 0 && sameFrontend(g.rows[len(g.rows)-1].first, r)
		g.rows = append(g.rows, row{first: r, clients: []probe.Client{r.packet.From}, servers: maps.Clone(r.servers), handedOver: r.handedOver, p50: r.p50,
			good: len(r.surprises) == 0, again: again})
	}
	return list
}

// groups folds the results of a round, with the findings of each Service.
func (v *view) groups() []group {
	list, of := groups(v.results), v.byService()
	for i := range list {
		list[i].findings = of[list[i].service.Name]
	}
	return list
}

func sameFrontend(a, b *result) bool {
	return a.kind == b.kind && a.packet.Dst == b.packet.Dst && a.packet.Protocol == b.packet.Protocol
}

// joins reports whether what happened to r is what the row shows already. With affinity, clients may have different servers.
func (o *row) joins(r *result) bool {
	sameServers := maps.EqualFunc(o.first.servers, r.servers, func(int, int) bool { return true }) || r.sticks()
	return sameFrontend(o.first, r) && o.first.outcome == r.outcome && o.first.source == r.source && sameServers &&
		o.first.taken() == r.taken() && o.good == (len(r.surprises) == 0)
}

func (o *row) add(r *result) {
	o.clients = append(o.clients, r.packet.From)
	for name, n := range r.servers {
		o.servers[name] += n
	}
	o.handedOver += r.handedOver
	o.p50 = max(o.p50, r.p50)
}

// table draws groups in a given width.
type table struct {
	paint palette
	width int
	// wrap breaks long lines about findings. Without it, they stay as they are.
	wrap func(paint func(string) string, text string) []string
}

// columns are the widths of the columns. The answers' column gets the width that the others leave.
type columns struct {
	kind, proto, addr, from, source, p50, answers int
	// edge is 0 if the edge takes no row.
	edge int
	// stacked puts frontends on lines of their own, because the terminal is too narrow for all columns.
	stacked bool
}

// frontendWidth is the width of the columns that name a frontend, with the spaces between and behind them.
func (c *columns) frontendWidth() int { return c.kind + 1 + c.proto + 1 + c.addr + 2 }

func (t table) columns(list []group) columns {
	c := columns{kind: len("load balancer"), proto: 3, addr: len("ADDRESS"), from: len("FROM"), source: 6, p50: 6}
	for _, g := range list {
		for _, o := range g.rows {
			c.addr = max(c.addr, len(o.first.packet.Dst.String()))
			c.from = max(c.from, len(clientNames(o.clients)))
			c.proto = max(c.proto, len(o.first.packet.Protocol.String()))
			if o.first.taken() {
				c.edge = max(len(edgeHeader), len(o.byEdge()))
			}
		}
	}
	needed := barWidth + minLegend
	for _, g := range list {
		names := namesOf(&g)
		for i := range g.rows {
			needed = max(needed, barWidth+1+utf8.RuneCountInString(strings.Join(names.answered(names.shares(&g.rows[i])), " ")))
		}
	}
	// The margin, and the spaces before and after the columns, with the mark at the end.
	c.answers = max(t.width, minWidth) - (2 + c.frontendWidth() + c.from + 2 + 1 + c.source + 1 + c.p50 + 2)
	if c.edge > 0 {
		c.answers -= c.edge + 1
	}
	if c.answers < barWidth+minLegend {
		c.stacked = true
		c.answers += c.frontendWidth() - 2
	}
	// Where there is room for more than all answers, what follows is not far from them. Counts change from round to round: columns stay for a while.
	const step = 8
	c.answers = min(c.answers, (needed+step-1)/step*step)
	return c
}

// lines draws the table: for each Service a heading, its rows and its findings.
func (t table) lines(list []group) []string {
	lines := []string{t.header(list)}
	for _, i := range t.items(list) {
		switch {
		case i.paint == nil:
			lines = append(lines, i.lines...)
		case t.wrap != nil:
			lines = append(lines, t.wrap(i.paint, i.lines[0])...)
		default:
			lines = append(lines, i.paint(i.lines[0]))
		}
	}
	return lines
}

// header names the columns.
func (t table) header(list []group) string {
	c := t.columns(list)
	return t.paint.dim(c.join("  "+c.frontend("FRONTEND", "", "ADDRESS"), "FROM", pad("ANSWERED BY", c.answers), "SOURCE", edgeHeader, "P50"))
}

// item is a part of the table below the header.
type item struct {
	lines []string
	// names is set for what names a Service.
	names bool
	// paint is the colour of a line about a finding, and nil for other lines.
	paint func(string) string
	// row is nil for items that are no rows. alone is the row with the frontend that it may share with the row above.
	row   *row
	alone []string
}

func (t table) items(list []group) []item {
	c := t.columns(list)
	var items []item
	for _, g := range list {
		names := namesOf(&g)
		items = append(items, item{lines: []string{t.heading(&g, &names)}, names: true})
		for i := range g.rows {
			o := &g.rows[i]
			items = append(items, item{lines: t.row(o, c, &names, o.again), row: o, alone: t.row(o, c, &names, false)})
		}
		for _, o := range g.rows {
			for _, s := range o.first.surprises {
				items = append(items, item{lines: []string{t.paint.bad("    ✗ " + o.first.place() + ": " + s)}})
			}
		}
		for _, f := range g.findings {
			paint, mark := t.paint.mark(&f)
			items = append(items, item{lines: []string{"    " + mark + sentenceOf(&f)}, paint: paint})
		}
	}
	return items
}

func (c *columns) frontend(kind, proto, addr string) string {
	if c.stacked {
		return "  "
	}
	return fmt.Sprintf("%-*s %-*s %-*s  ", c.kind, kind, c.proto, proto, c.addr, addr)
}

// join makes a line of its parts; answers have their width already.
func (c *columns) join(frontend, from, answers, source, edge, p50 string) string {
	if c.edge > 0 {
		source = fmt.Sprintf("%-*s %-*s", c.source, source, c.edge, edge)
	}
	return fmt.Sprintf("%s%-*s  %s %-*s %*s", frontend, c.from, from, answers, c.source, source, c.p50, p50)
}

// place names a call for a sentence.
func (r *result) place() string {
	return fmt.Sprintf("%v %v %v from the %s", kindName(r.kind), r.packet.Protocol, r.packet.Dst, clientName(r.packet.From))
}

func (t table) heading(g *group, names *naming) string {
	facts := []string{}
	svc := g.service
	switch {
	case svc.Type == model.TypeNodePort:
		facts = append(facts, "NodePort")
	case svc.Type == model.TypeLoadBalancer:
		facts = append(facts, "LoadBalancer")
	}
	if svc.InternalLocal {
		facts = append(facts, "internalTrafficPolicy Local")
	}
	if svc.ExternalLocal {
		facts = append(facts, "externalTrafficPolicy Local")
	}
	if svc.Affinity > 0 {
		facts = append(facts, "affinity "+svc.Affinity.String())
	}
	if len(svc.SourceRanges) > 0 {
		facts = append(facts, "only for "+strings.Trim(fmt.Sprint(svc.SourceRanges), "[]"))
	}
	line := t.paint.bold(svc.Name.String())
	if pods := names.String(); pods != "" {
		line += "  " + pods
	}
	if len(facts) > 0 {
		line += t.paint.dim("  " + strings.Join(facts, ", "))
	}
	return line
}

// naming is how the servers of one group are shown. Each has one colour in all rows, and only the heading shows the
// common prefix of their names.
type naming struct {
	pods   []string // sorted
	prefix string   // of all pods, empty if there are fewer than two
}

func namesOf(g *group) naming {
	all := make(map[string]bool)
	for _, o := range g.rows {
		for server := range o.servers {
			all[podName(server)] = true
		}
	}
	n := naming{pods: slices.Sorted(maps.Keys(all))}
	if len(n.pods) < 2 {
		return n
	}
	n.prefix = n.pods[0]
	for _, p := range n.pods {
		for !strings.HasPrefix(p, n.prefix) {
			n.prefix = n.prefix[:len(n.prefix)-1]
		}
	}
	n.prefix = n.prefix[:strings.LastIndexByte(n.prefix, '-')+1]
	return n
}

// maxNamed is how many pods a heading names.
const maxNamed = 20

// String lists the pods: storefront-[1 2 3].
func (n *naming) String() string {
	names := n.pods
	if more := len(names) - maxNamed; more > 1 {
		names = append(names[:maxNamed:maxNamed], fmt.Sprintf("+%d", more))
	}
	if n.prefix == "" {
		return strings.Join(names, " ")
	}
	return n.prefix + "[" + strings.ReplaceAll(strings.Join(names, " "), n.prefix, "") + "]"
}

// shares counts the answers of a row by pod.
func (n *naming) shares(o *row) []int {
	counts := make([]int, len(n.pods))
	for server, k := range o.servers {
		i, _ := slices.BinarySearch(n.pods, podName(server))
		counts[i] += k
	}
	return counts
}

// answered names the pods that answered, each with the number of its answers.
func (n *naming) answered(shares []int) (items []string) {
	for i, k := range shares {
		if k > 0 {
			items = append(items, fmt.Sprintf("%s×%d", strings.TrimPrefix(n.pods[i], n.prefix), k))
		}
	}
	return items
}

// podName leaves out the namespace and the port of a server: both follow from the Service.
func podName(server string) string {
	if _, rest, ok := strings.Cut(server, "/"); ok {
		server = rest
	}
	name, _, _ := strings.Cut(server, "|")
	return name
}

// row draws a row, without its frontend if again is set.
func (t table) row(o *row, c columns, names *naming, again bool) []string {
	kind, proto, addr := kindName(o.first.kind), o.first.packet.Protocol.String(), o.first.packet.Dst.String()
	var lines []string
	if c.stacked && !again {
		lines = append(lines, fmt.Sprintf("  %s %s %s", kind, proto, addr))
	}
	if again {
		kind, proto, addr = "", "", ""
	}
	mark := t.paint.good("✓")
	if !o.good {
		mark = t.paint.bad("✗")
	}
	line := c.join("  "+c.frontend(kind, proto, addr), clientNames(o.clients), t.answers(o, c.answers, names), o.first.source.String(), o.byEdge(), o.latency())
	return append(lines, line+" "+mark)
}

// edgeHeader is above how many connections the edge has handed over, of those that it takes.
const edgeHeader = "HANDED OVER"

func (o *row) byEdge() string {
	if !o.first.taken() || o.first.outcome != topology.Answered {
		return ""
	}
	total := 0
	for _, n := range o.servers {
		total += n
	}
	return fmt.Sprintf("%d of %d", o.handedOver, total)
}

func (o *row) latency() string {
	switch {
	case o.first.outcome == topology.TimedOut:
		return "-"
	case o.p50 < time.Millisecond:
		return fmt.Sprintf("%dµs", o.p50.Microseconds())
	}
	return fmt.Sprintf("%.1fms", float64(o.p50.Microseconds())/1000)
}

const (
	// barWidth is the width of the bar that shows the distribution.
	barWidth = 12
	// minLegend is the least room that the legend needs next to the table.
	minLegend = 14
)

// answers shows which servers answered, in exactly width columns.
func (t table) answers(o *row, width int, names *naming) string {
	switch o.first.outcome {
	case topology.Answered:
	case topology.Refused:
		return t.paint.warn(pad("refused", width))
	case topology.TimedOut:
		return t.paint.quiet(pad("dropped", width))
	default:
		return t.paint.bad(pad(o.first.outcome.String(), width))
	}
	shares := names.shares(o)
	return t.bar(shares) + " " + t.legend(names, shares, width-barWidth-1)
}

// bar shows each pod's share of the answers as a stretch of one colour.
func (t table) bar(shares []int) string {
	total := 0
	for _, n := range shares {
		total += n
	}
	var b strings.Builder
	sum, drawn := 0, 0
	for i, n := range shares {
		sum += n
		end := (sum*barWidth + total/2) / total
		b.WriteString(t.paint.share(i, strings.Repeat(t.paint.cell(i), end-drawn)))
		drawn = end
	}
	return b.String()
}

// legend lists the pods with the number of their answers, as far as there is room, in exactly room columns.
func (t table) legend(names *naming, shares []int, room int) string {
	items := names.answered(shares)
	text := strings.Join(items, " ")
	for kept := len(items) - 1; utf8.RuneCountInString(text) > room && kept > 0; kept-- {
		text = strings.Join(append(items[:kept:kept], fmt.Sprintf("+%d", len(items)-kept)), " ")
	}
	return pad(text, room)
}

// pad brings text to exactly width columns.
func pad(text string, width int) string {
	n := utf8.RuneCountInString(text)
	if n > width {
		return string([]rune(text)[:max(width-1, 0)]) + "…"
	}
	return text + strings.Repeat(" ", width-n)
}

func kindName(k state.FrontendKind) string {
	return cmp.Or(map[state.FrontendKind]string{
		state.ClusterIP: "cluster IP", state.ExternalIP: "external IP", state.LoadBalancer: "load balancer", state.NodePort: "node port",
	}[k], k.String())
}

func clientName(c probe.Client) string {
	if c == probe.FromOutside {
		return "client"
	}
	return c.String()
}

func clientNames(list []probe.Client) string {
	var names []string
	for _, c := range list {
		names = append(names, clientName(c))
	}
	return strings.Join(names, ", ")
}
