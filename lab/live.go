//go:build linux

package lab

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/switchyard-net/switchyard/internal/admin/top"
	"github.com/switchyard-net/switchyard/internal/plaintext"
	"github.com/switchyard-net/switchyard/test/probe"
)

// live is the table on a terminal: the newest view, what people have chosen to see of it, and where they are in it.
type live struct {
	paint         palette
	width, height int
	// started is the current step while there is no view yet.
	started string
	view    *view
	newest  *view // while paused, the rounds to show afterwards
	explain func(r *result, c probe.Client) (string, error)

	top       int // first line of the body on the screen
	selected  int // row, of those that are shown
	order     order
	namespace string // empty for all
	filter    top.Filter
	// found leaves out the Services without findings and without rows that are not as they must be.
	found  bool
	paused bool
	// reason is the explanation of one row, which replaces the table. It is shown from its line reasonTop on, and from
	// is its client.
	reason    []string
	reasonTop int
	from      int
}

// order is how Services are sorted.
type order int

const (
	byName order = iota
	faultsFirst
	slowestFirst
	orders
)

func (o order) String() string { return [...]string{"name", "faults", "slowest"}[o] }

// Messages of the session to the table.
type (
	progressMsg string
	viewMsg     struct{ view *view }
	explainMsg  func(*result, probe.Client) (string, error)
)

// Init implements [tea.Model].
func (l *live) Init() tea.Cmd { return nil }

// Update implements [tea.Model].
func (l *live) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		l.width, l.height = m.Width, m.Height
	case progressMsg:
		l.started = string(m)
	case explainMsg:
		l.explain = m
	case viewMsg:
		l.newest = m.view
		if !l.paused || l.view == nil {
			l.view = m.view
		}
	case tea.KeyPressMsg:
		key := m.String()
		switch {
		case key == "ctrl+c", key == "q" && !l.filter.Typing && l.reason == nil:
			return l, tea.Quit
		case l.filter.Typing:
			l.filter.Edit(key, m.Text)
			l.selected, l.top = 0, 0
		case l.view != nil:
			l.key(key)
		}
	}
	l.keepInside()
	return l, nil
}

func (l *live) key(key string) {
	if l.reason != nil {
		l.reasonKey(key)
		return
	}
	switch key {
	case "up", "k":
		l.move(-1)
	case "down", "j":
		l.move(1)
	case "pgup":
		l.page(-1)
	case "pgdown", "space":
		l.page(1)
	case "home", "g":
		l.selected, l.top = 0, 0
	case "end", "G":
		body, rows := l.body()
		l.selected, l.top = len(rows)-1, len(body)
	case "/":
		l.filter.Typing = true
	case "esc":
		l.filter, l.namespace, l.found = top.Filter{}, "", false
	case "f":
		l.found = !l.found
		l.selected, l.top = 0, 0
	case "n":
		l.namespace = l.nextNamespace()
		l.selected, l.top = 0, 0
	case "s":
		l.order = (l.order + 1) % orders
		l.selected, l.top = 0, 0
	case "p":
		l.paused = !l.paused
		l.view = l.newest
	case "e", "enter":
		l.from = 0
		l.ask()
	}
}

// reasonKey is for the reasons of one row.
func (l *live) reasonKey(key string) {
	switch key {
	case "q", "esc", "e", "enter":
		l.reason = nil
	case "c": // the row's next client
		l.from++
		l.ask()
	case "up", "k":
		l.reasonTop--
	case "down", "j":
		l.reasonTop++
	case "pgup":
		l.reasonTop -= l.reasonRoom()
	case "pgdown", "space":
		l.reasonTop += l.reasonRoom()
	}
	l.reasonTop = max(0, min(l.reasonTop, len(l.reason)-l.reasonRoom()))
}

// reasonRoom is how many lines the reasons have, above one with the keys.
func (l *live) reasonRoom() int { return max(1, l.height-2) }

// reasonLabel is the width of what stands before each reason, such as its word.
const reasonLabel = 13

// ask fetches the reasons for the row that is selected.
func (l *live) ask() {
	_, rows := l.body()
	if len(rows) == 0 || l.explain == nil {
		return
	}
	o := rows[l.selected].row
	client := o.clients[l.from%len(o.clients)]
	text, err := l.explain(o.first, client)
	if err != nil {
		text = err.Error()
	}
	l.reason, l.reasonTop = []string{}, 0
	for line := range strings.Lines(strings.TrimSpace(text)) {
		hang := 0
		if strings.HasPrefix(line, " ") {
			hang = reasonLabel
		}
		l.reason = append(l.reason, l.hanging(strings.TrimSuffix(line, "\n"), hang)...)
	}
}

// move selects another row and keeps it on the screen.
func (l *live) move(by int) {
	_, rows := l.body()
	l.selected = max(0, min(l.selected+by, len(rows)-1))
	if len(rows) == 0 {
		return
	}
	at := rows[l.selected].line
	l.top = max(min(l.top, at), at-l.free()+1)
	if l.selected == 0 {
		l.top = 0
	}
	if l.selected == len(rows)-1 && by > 0 {
		l.top = max(l.top, at+1) // what stands below the last row is reached by the same key
	}
}

// page scrolls by a screen, and selects the first row there.
func (l *live) page(by int) {
	body, rows := l.body()
	l.top = max(0, min(l.top+by*l.free(), l.lastTop(body)))
	for i, r := range rows {
		if r.line >= l.top {
			l.selected = i
			break
		}
	}
}

// keepInside brings the place back into what there is.
func (l *live) keepInside() {
	if l.view == nil || l.height == 0 {
		return
	}
	body, rows := l.body()
	l.selected = max(0, min(l.selected, len(rows)-1))
	l.top = max(0, min(l.top, l.lastTop(body)))
}

// lastTop is the first line on the screen when the last one of the body is on it.
func (l *live) lastTop(body []string) int {
	if len(body) <= l.room() {
		return 0
	}
	return len(body) - l.free()
}

// nextNamespace is the one after that which is chosen, empty after the last one.
func (l *live) nextNamespace() string {
	var names []string
	for i := range l.view.results {
		names = append(names, l.view.results[i].service.Name.Namespace)
	}
	slices.Sort(names)
	names = append(slices.Compact(names), "")
	return names[(slices.Index(names, l.namespace)+1)%len(names)]
}

// groups are those that people want to see, in their order.
func (l *live) groups() []group {
	var list []group
	for _, g := range l.view.groups() {
		if (!l.found || len(g.findings)+g.bad() > 0) && (l.namespace == "" || g.service.Name.Namespace == l.namespace) && l.matches(&g) {
			list = append(list, g)
		}
	}
	switch l.order {
	case faultsFirst:
		slices.SortStableFunc(list, func(a, b group) int { return cmp.Compare(b.bad(), a.bad()) })
	case slowestFirst:
		slices.SortStableFunc(list, func(a, b group) int { return cmp.Compare(b.slowest(), a.slowest()) })
	}
	return list
}

// matches reports whether the filter is part of a Service's name, or of an address or a pod of it.
func (l *live) matches(g *group) bool {
	texts := []string{g.service.Name.String()}
	for i := range g.rows {
		o := &g.rows[i]
		texts = append(texts, kindName(o.first.kind)+" "+o.first.packet.Protocol.String()+" "+o.first.packet.Dst.String())
		for server := range o.servers {
			texts = append(texts, server)
		}
	}
	return l.filter.Matches(texts...)
}

// bad is how many rows are not as they must be.
func (g *group) bad() (n int) {
	for i := range g.rows {
		if !g.rows[i].good {
			n++
		}
	}
	return n
}

func (g *group) slowest() (d time.Duration) {
	for i := range g.rows {
		d = max(d, g.rows[i].p50)
	}
	return d
}

// placed is a row and its line in the body.
type placed struct {
	item
	line int
	// heading is the line of its Service.
	heading int
}

// body is what scrolls: the rows, and the notes below them.
func (l *live) body() (lines []string, rows []placed) {
	items := table{paint: l.paint, width: l.width}.items(l.groups())
	heading := 0
	for _, i := range items {
		if i.row != nil {
			rows = append(rows, placed{i, len(lines) + len(i.lines) - 1, heading})
		} else if i.names {
			heading = len(lines)
		}
		for _, line := range i.lines {
			if i.paint != nil {
				line = i.paint(line)
			}
			lines = append(lines, l.wrapped(line)...)
		}
	}
	if len(items) == 0 && len(l.view.results) > 0 {
		what := "this text"
		if l.found {
			what = "findings"
		}
		lines = append(lines, l.paint.warn("! no Service here has "+what+": Esc shows all"))
	}
	return append(lines, l.view.notesBelow(l.paint, l.width)...), rows
}

// shown is the part of the body that is on the screen. Above a first row whose Service and frontend are further up, these are named again.
func (l *live) shown(body []string, rows []placed) []string {
	room := l.room()
	if l.top == 0 || l.free() == room {
		return body[min(l.top, len(body)):min(l.top+room, len(body))]
	}
	var above []string
	if i := slices.IndexFunc(rows, func(r placed) bool { return r.line >= l.top }); i >= 0 {
		r := rows[i]
		if r.heading < l.top {
			above = append(above, body[r.heading])
		}
		if last := len(r.alone) - 1; r.row.again || r.line-last < l.top {
			above = append(above, r.alone[:last]...)
		}
		if i != l.selected {
			body[r.line] = l.alone(r)
		}
	}
	return append(above, body[l.top:min(l.top+room-len(above), len(body))]...)
}

// alone is the line of a row with its frontend.
func (l *live) alone(r placed) string { return l.wrapped(r.alone[len(r.alone)-1])[0] }

// wrapped breaks a line that the terminal is too narrow for, and indents what follows as its beginning.
func (l *live) wrapped(line string) []string { return l.hanging(line, 0) }

// hanging is wrapped, with what follows indented by a number of columns at least.
func (l *live) hanging(line string, least int) []string {
	if ansi.StringWidth(line) <= l.width {
		return []string{line}
	}
	text := ansi.Strip(line)
	indent := strings.Repeat(" ", min(max(least, len(text)-len(strings.TrimLeft(text, " "))), l.width/2))
	lines := strings.Split(ansi.Wrap(line, l.width-len(indent), ""), "\n")
	for i := range lines[1:] {
		lines[i+1] = indent + lines[i+1]
	}
	return lines
}

// head stands above the body, foot below it.
func (l *live) head() []string {
	return append(l.wrapped(l.view.title(l.paint)), l.wrapped((table{paint: l.paint, width: l.width}).header(l.groups()))...)
}

func (l *live) foot() []string {
	v := l.view
	summary := v.summary(l.paint, l.width)
	if most := max(1, l.height/3); len(summary) > most { // of many faults the last lines, with the verdict
		summary = summary[len(summary)-most:]
	}
	state := fmt.Sprintf("revision %d; sorted by %v", v.revision, l.order)
	if l.namespace != "" {
		state += "; namespace " + l.namespace
	}
	if l.found {
		state += "; with findings only"
	}
	state += l.filter.State()
	if l.paused {
		state += "; PAUSED"
	}
	if v.followed && !l.paused {
		state += "; edit " + v.inputs + " to change the lab"
	}
	keys := l.filter.Keys("q quit  ↑↓  / filter  f findings  n namespace  s sort  p pause  e explain row")
	lines := append(summary, l.wrapped(l.paint.dim(state))...)
	return append(lines, l.wrapped(l.paint.dim(keys))...)
}

// room is how many lines the body has.
func (l *live) room() int { return max(1, l.height-len(l.head())-len(l.foot())) }

// free is the least number of lines of the body on the screen after scrolling. The Service and the frontend of the
// first row may be above these lines.
func (l *live) free() int {
	const above = 2
	if room := l.room(); room > 2*above {
		return room - above
	}
	return l.room()
}

// View implements [tea.Model].
func (l *live) View() tea.View {
	v := tea.NewView(plaintext.Clean(l.screen()))
	v.AltScreen = true
	return v
}

// screen is the content of the terminal.
func (l *live) screen() string {
	switch {
	case l.view == nil || l.width == 0:
		return l.paint.dim(l.started)
	case l.reason != nil:
		shown := slices.Clone(l.reason[l.reasonTop:min(l.reasonTop+l.reasonRoom(), len(l.reason))])
		return strings.Join(append(shown, "", l.paint.dim("Esc table  ↑↓ PgUp PgDn  c next client")), "\n")
	}
	head, foot := l.head(), l.foot()
	body, rows := l.body()
	for i, r := range rows {
		if i == l.selected {
			body[r.line] = l.paint.chosen(l.alone(r))
		}
	}
	body = l.shown(body, rows)
	for len(body) < l.room() {
		body = append(body, "")
	}
	return strings.Join(slices.Concat(head, body, foot), "\n")
}

// last is what stays on the screen when the table goes.
func (l *live) last() []string {
	if l.newest == nil {
		return nil
	}
	return clean(append([]string{l.newest.title(l.paint)}, l.newest.summary(l.paint, l.width)...))
}

// stopped reports whether the program ended because it was asked to.
func stopped(err error) bool { return err == nil || errors.Is(err, tea.ErrProgramKilled) }
