package top

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/switchyard-net/switchyard/internal/plaintext"
)

// Live is the table on a terminal: the newest report, what people have chosen to see of it, and where they are in it. It is a [tea.Model].
type Live struct {
	// Waiting is shown until there is a report.
	Waiting string
	// Namespaces has the table have a column for them.
	Namespaces bool
	Order      Order

	width, height int
	report        *Report
	top           int // first line of the body on the screen
	filter        Filter
}

// Run shows reports on the terminal that out is, until ctx ends, or somebody quits, or there are no more. It returns the error that ends them.
func (l *Live) Run(ctx context.Context, out io.Writer, reports func(context.Context) iter.Seq2[*Report, error]) error {
	return l.run(ctx, reports, tea.WithOutput(out))
}

func (l *Live) run(ctx context.Context, reports func(context.Context) iter.Seq2[*Report, error], terminal ...tea.ProgramOption) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	program := tea.NewProgram(l, append(terminal, tea.WithContext(ctx), tea.WithoutSignalHandler())...)
	ended := make(chan error, 1)
	go func() {
		var failed error
		for report, err := range reports(ctx) {
			if failed = err; err != nil {
				break
			}
			program.Send(report)
		}
		ended <- failed
		program.Quit()
	}()
	_, err := program.Run()
	stop()
	if failed := <-ended; failed != nil {
		return failed
	}
	if errors.Is(err, tea.ErrProgramKilled) {
		return nil // ctx has ended
	}
	return err
}

// Init implements [tea.Model].
func (l *Live) Init() tea.Cmd { return nil }

// Update implements [tea.Model].
func (l *Live) Update(message tea.Msg) (tea.Model, tea.Cmd) {
	switch m := message.(type) {
	case tea.WindowSizeMsg:
		l.width, l.height = m.Width, m.Height
	case *Report:
		l.report = m
		m.Sort(l.Order)
	case tea.KeyPressMsg:
		switch key := m.String(); {
		case key == "ctrl+c", key == "q" && !l.filter.Typing:
			return l, tea.Quit
		case l.filter.Typing:
			l.filter.Edit(key, m.Text)
			l.top = 0
		case l.report != nil:
			l.key(key)
		}
	}
	if l.report != nil {
		l.top = max(0, min(l.top, len(l.body())-l.room()))
	}
	return l, nil
}

func (l *Live) key(key string) {
	switch key {
	case "up", "k":
		l.top--
	case "down", "j":
		l.top++
	case "pgup":
		l.top -= l.room()
	case "pgdown", "space":
		l.top += l.room()
	case "home", "g":
		l.top = 0
	case "end", "G":
		l.top = len(l.body())
	case "/":
		l.filter.Typing = true
	case "esc":
		l.filter = Filter{}
	case "s":
		l.Order = l.Order.next()
		l.report.Sort(l.Order)
		l.top = 0
	}
}

// table has the rows with the filter in NAMESPACE/SERVICE:PORT.
func (l *Live) table() table {
	t := table{namespaces: l.Namespaces, paint: true}
	for _, row := range l.report.Ports {
		if l.filter.Matches(row.Namespace + "/" + row.Service + ":" + row.Port) {
			t.rows = append(t.rows, row)
		}
	}
	return t
}

var (
	bold = ansi.Style{}.Bold()
	dim  = ansi.Style{}.Faint()
)

// head stands above the body, foot below it.
func (l *Live) head() []string {
	t := l.table()
	var all Rates
	for i := range t.rows {
		rates := t.rows[i].rates()
		all.Connections += rates.Connections
		all.Rejects += rates.Rejects
		all.Drops += rates.Drops
	}
	header, _ := t.lines()
	ports := fmt.Sprintf("%d ports", len(t.rows))
	if len(t.rows) == 1 {
		ports = "1 port"
	}
	title := fmt.Sprintf("%s: %.1f connections/s, of them %.1f rejected, %.1f dropped", ports, all.Connections, all.Rejects, all.Drops)
	return append(l.wrapped(bold.Styled("switchyard top")+"  "+title), l.wrapped(dim.Styled(header))...)
}

// body is what scrolls.
func (l *Live) body() (lines []string) {
	_, rows := l.table().lines()
	for _, row := range rows {
		lines = append(lines, l.wrapped(row)...)
	}
	return lines
}

func (l *Live) foot() []string {
	state := fmt.Sprintf("in %.1fs; sorted by %s", l.report.Seconds, l.Order) + l.filter.State()
	if n := l.report.LeftOut; n > 0 {
		state += fmt.Sprintf("; %d ports with fewer connections are left out: name a namespace or fewer Services", n)
	}
	keys := l.filter.Keys("q quit  ↑↓ PgUp PgDn  s sort  / filter")
	return append(l.wrapped(dim.Styled(state)), l.wrapped(dim.Styled(keys))...)
}

// wrapped breaks a line that the terminal is too narrow for.
func (l *Live) wrapped(line string) []string {
	if ansi.StringWidth(line) <= l.width {
		return []string{line}
	}
	// Wrap leaves lines too long around single hyphens.
	return strings.Split(ansi.Hardwrap(ansi.Wrap(line, l.width, ""), l.width, false), "\n")
}

// room is how many lines the body has.
func (l *Live) room() int { return max(1, l.height-len(l.head())-len(l.foot())) }

// View implements [tea.Model].
func (l *Live) View() tea.View {
	v := tea.NewView(plaintext.Clean(l.screen()))
	v.AltScreen = true
	return v
}

// screen is the content of the terminal.
func (l *Live) screen() string {
	if l.report == nil || l.width == 0 {
		return dim.Styled(l.Waiting)
	}
	head, foot, body, room := l.head(), l.foot(), l.body(), l.room()
	body = body[min(l.top, len(body)):min(l.top+room, len(body))]
	for len(body) < room {
		body = append(body, "")
	}
	lines := slices.Concat(head, body, foot)
	return strings.Join(lines[:min(len(lines), max(l.height, 1))], "\n")
}
