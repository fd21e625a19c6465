//go:build linux

package lab

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/switchyard-net/switchyard/internal/admin/top/toptest"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

var update = flag.Bool("update", false, "write the screens in testdata anew")

// testView has Services in two namespaces; the one in shop has a path that is not as it must be.
func testView() *view {
	results := testResults()
	for i := range 12 {
		r := results[0]
		r.service = &model.Service{Name: state.ServiceName{Namespace: "tools", Name: fmt.Sprintf("queue-%02d", i)}, Type: model.TypeClusterIP}
		r.p50 = time.Duration(i) * time.Millisecond
		results = append(results, r)
	}
	return &view{
		inputs: "my-app", followed: true, results: results, services: 13, pods: 2, revision: 7, calls: 40, took: 1200 * time.Millisecond, wrapped: true,
		findings: []diagnosis.Finding{
			{Reason: diagnosis.NoEndpoints, Severity: diagnosis.Fault, Object: diagnosis.Object{Kind: "Service", Namespace: "shop", Name: "web"}, Place: "my-app/web.yaml:3:7",
				Text: "the Service has no endpoints", Cause: "no pod matches its selector app=wbe; Deployment shop/web has app=web", Remedy: "make the labels the same"},
			{Reason: "NoSuchService", Severity: diagnosis.Remark, Object: diagnosis.Object{Kind: "Ingress", Namespace: "shop", Name: "site"}, Text: "the Ingress leads to Service webb"},
		},
	}
}

// onScreen is a table on a terminal of a size.
func onScreen(width, height int) *live {
	l := &live{started: "switchyard lab: reading my-app"}
	l.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return l
}

// TestScreens: testdata/screens.txtar has what is on terminals of 80 and 140 columns, after some keys.
func TestScreens(t *testing.T) {
	toptest.Screens(t, *update, 24, []int{80, 140}, [][2]string{
		{"progress", "-"}, {"table", ""}, {"below", "end"}, {"filter", "/ 1 1"}, {"namespace, slowest first", "n n s s"}, {"faults first, paused", "s p down"}, {"explained", "e"},
	}, func(width int, keys string) string {
		l := onScreen(width, 24)
		if keys != "-" {
			l.Update(explainMsg(func(r *result, c probe.Client) (string, error) {
				return fmt.Sprintf("%v -> %v\n✓ FORWARDED: %s\n", c, r.packet.Dst, strings.Repeat("because ", 15)), nil
			}))
			l.Update(viewMsg{testView()})
			toptest.Press(l, strings.Fields(keys)...)
		}
		return l.screen()
	}, func(line string) string { return line })
}

// TestTheLastColumnIsKept: a terminal that does what it is sent shows what the table is, to the mark in the last column.
func TestTheLastColumnIsKept(t *testing.T) {
	for _, width := range []int{80, 140} {
		var out bytes.Buffer
		l := onScreen(width, 40)
		p := tea.NewProgram(l, tea.WithOutput(&out), tea.WithInput(nil), tea.WithWindowSize(width, 40), tea.WithoutSignalHandler(), tea.WithContext(t.Context()),
			tea.WithEnvironment([]string{"TERM=xterm"}))
		go func() {
			p.Send(viewMsg{testView()})
			time.Sleep(200 * time.Millisecond) // the renderer has a clock of its own
			p.Send(tea.KeyPressMsg{Code: tea.KeyDown})
			time.Sleep(200 * time.Millisecond)
			p.Quit()
		}()
		if _, err := p.Run(); err != nil {
			t.Fatal(err)
		}
		shown, _, _ := strings.Cut(out.String(), "\x1b[?1049l") // what comes then is about the other screen
		term := newTerminal(width, 40)
		if err := term.write(shown); err != nil {
			t.Fatal(err)
		}
		for i, want := range strings.Split(ansi.Strip(l.screen()), "\n") {
			if got := strings.TrimRight(string(term.cells[i]), " "); got != strings.TrimRight(want, " ") {
				t.Errorf("%d columns: line %d is\n%s, want\n%s", width, i, got, want)
			}
		}
	}
}

// terminal understands what the renderer sends to one of type xterm.
type terminal struct {
	cells         [][]rune
	width, height int
	x, y          int
	last          rune
}

func newTerminal(width, height int) *terminal {
	t := &terminal{width: width, height: height}
	for range height {
		t.cells = append(t.cells, []rune(strings.Repeat(" ", width)))
	}
	return t
}

func (t *terminal) print(r rune) {
	if t.x >= t.width { // a character after the last column begins the next line
		t.x, t.y = 0, t.y+1
	}
	t.cells[t.y][t.x] = r
	t.x, t.last = t.x+1, r
}

func (t *terminal) write(text string) error {
	for text != "" {
		r, size := utf8.DecodeRuneInString(text)
		switch {
		case strings.HasPrefix(text, "\x1b["):
			end := strings.IndexFunc(text[2:], func(r rune) bool { return r >= '@' && r <= '~' })
			if end < 0 {
				return fmt.Errorf("unfinished: %q", text)
			}
			if err := t.control(text[2:2+end], text[2+end]); err != nil {
				return err
			}
			size = end + 3
		case strings.HasPrefix(text, "\x1b]"), strings.HasPrefix(text, "\x1bP"):
			end := strings.IndexAny(text, "\x07")
			if st := strings.Index(text, "\x1b\\"); st >= 0 && (end < 0 || st < end) {
				end = st + 1
			}
			size = end + 1
		case r == '\x1b':
			size = 2
			if text[1] == 'M' {
				t.y--
			}
		case r == '\r':
			t.x = 0
		case r == '\n':
			t.x, t.y = 0, min(t.y+1, t.height-1) // what is no terminal gets no carriage returns
		case r == '\b':
			t.x--
		case r == '\t':
			t.x = min((t.x/8+1)*8, t.width-1)
		default:
			t.print(r)
		}
		text = text[size:]
	}
	return nil
}

// control is a control sequence with its parameters.
func (t *terminal) control(parameters string, final byte) error {
	n := [2]int{}
	fmt.Sscanf(strings.ReplaceAll(parameters, ";", " "), "%d %d", &n[0], &n[1])
	count := max(n[0], 1)
	at := min(t.x, t.width-1) // after the last column, the cursor is on it
	clear := func(y, from, to int) {
		for x := from; x < to; x++ {
			t.cells[y][x] = ' '
		}
	}
	switch final {
	case 'm', 'h', 'l', 'q', 'u', 'p', 'n', 'c', 't', 'r':
	case 'H', 'f':
		t.y, t.x = count-1, max(n[1], 1)-1
	case 'A':
		t.y -= count
	case 'B':
		t.y += count
	case 'C':
		t.x = at + count
	case 'D':
		t.x = at - count
	case 'G', '`':
		t.x = count - 1
	case 'd':
		t.y = count - 1
	case 'K':
		switch n[0] {
		case 0:
			clear(t.y, at, t.width)
		case 1:
			clear(t.y, 0, at+1)
		case 2:
			clear(t.y, 0, t.width)
		}
	case 'J':
		if n[0] != 2 {
			clear(t.y, at, t.width)
		}
		for y := range t.height {
			if n[0] == 2 || n[0] == 0 && y > t.y {
				clear(y, 0, t.width)
			}
		}
	case 'X':
		clear(t.y, at, min(at+count, t.width))
	case 'b':
		for range count {
			t.print(t.last)
		}
	default:
		return fmt.Errorf("unknown control sequence %q %c", parameters, final)
	}
	return nil
}

func TestKeys(t *testing.T) {
	l := onScreen(100, 24)
	if !toptest.Press(l, "q") {
		t.Error("q does not end it while it starts")
	}
	l.Update(viewMsg{testView()})
	for name, c := range map[string]struct {
		keys     string
		has, not string
	}{
		"filter":         {"/ 0 3 enter", "tools/queue-03", "tools/queue-04"},
		"filter by pod":  {"/ w e b - 2", "shop/web", ""},
		"filter, edited": {"/ 0 x backspace 3", "tools/queue-03", "tools/queue-04"},
		"no filter":      {"/ 0 3 esc", "tools/queue-04", ""},
		"q in a filter":  {"/ q u e u e - 0 1", "tools/queue-01", "node port"},
		"namespace":      {"n", "node port", "tools/queue"},
		"the next":       {"n n", "tools/queue", "node port"},
		"all again":      {"n n n", "shop/web", ""},
		"slowest":        {"s s", "tools/queue-11", "tools/queue-00"},
		"nothing":        {"/ x y z", "! no Service here has this text: Esc shows all", "tools/queue"},
		"findings":       {"f", "the Service has no endpoints", "tools/queue"},
		"no findings":    {"n n f", "! no Service here has findings: Esc shows all", "tools/queue"},
		"page down":      {"pgdown", "tools/queue-06", "tools/queue-00"},
		"page up":        {"pgdown pgup", "shop/web", ""},
		"end":            {"end", "the Ingress leads to", "tools/queue-00"},
	} {
		l := onScreen(100, 24)
		l.Update(viewMsg{testView()})
		if toptest.Press(l, strings.Fields(c.keys)...) {
			t.Errorf("%s: it ended", name)
		}
		if screen := l.screen(); !strings.Contains(screen, c.has) || c.not != "" && strings.Contains(screen, c.not) {
			t.Errorf("%s: want %q and not %q in\n%s", name, c.has, c.not, screen)
		}
	}
	for _, key := range []string{"q", "ctrl+c"} {
		if !toptest.Press(l, key) {
			t.Errorf("%s does not end it", key)
		}
	}
}

// TestPause: while the table is paused, newer views wait; afterwards the newest is shown.
func TestPause(t *testing.T) {
	l := onScreen(100, 24)
	l.Update(viewMsg{testView()})
	toptest.Press(l, "p")
	later := testView()
	later.revision = 8
	l.Update(viewMsg{later})
	if screen := l.screen(); !strings.Contains(screen, "revision 7") || !strings.Contains(screen, "PAUSED") {
		t.Errorf("paused:\n%s", screen)
	}
	toptest.Press(l, "p")
	if screen := l.screen(); !strings.Contains(screen, "revision 8") || strings.Contains(screen, "PAUSED") {
		t.Errorf("going on:\n%s", screen)
	}
}

// TestEveryRowIsReached: down goes through all rows, each of them on the screen when it is selected, and to the notes below.
func TestEveryRowIsReached(t *testing.T) {
	l := onScreen(100, 16)
	l.Update(viewMsg{testView()})
	_, rows := l.body()
	for i := range rows {
		if l.selected != i || !strings.Contains(l.screen(), "\n>") {
			t.Fatalf("row %d: %d is selected:\n%s", i, l.selected, l.screen())
		}
		toptest.Press(l, "down")
	}
	toptest.Press(l, "down", "down")
	if !strings.Contains(l.screen(), "the Ingress leads to") {
		t.Errorf("the notes are not reached:\n%s", l.screen())
	}
}

// TestRowsAreWithTheirService: wherever the table is scrolled to, the first row on the screen has its Service and its frontend.
func TestRowsAreWithTheirService(t *testing.T) {
	for _, width := range []int{80, 140} {
		for _, key := range []string{"down", "pgdown"} {
			l := onScreen(width, 16)
			l.Update(viewMsg{testView()})
			for i := range 40 {
				screen := strings.Split(l.screen(), "\n")
				shown := screen[len(l.head()) : len(l.head())+l.room()]
				row := slices.IndexFunc(shown, func(line string) bool { return strings.HasSuffix(line, "✓") || strings.HasSuffix(line, "✗") })
				if row >= 0 {
					service := slices.IndexFunc(shown[:row+1], func(line string) bool { return strings.HasPrefix(line, "shop/") || strings.HasPrefix(line, "tools/") })
					if service < 0 || !strings.Contains(strings.Join(shown[service:row+1], "\n"), "TCP") {
						t.Fatalf("%d columns, %d times %s:\n%s", width, i, key, strings.Join(screen, "\n"))
					}
				}
				if len(screen) != 16 {
					t.Fatalf("%d columns, %d times %s: %d lines", width, i, key, len(screen))
				}
				toptest.Press(l, key)
			}
		}
	}
}

// TestExplainRow: e asks about the selected row and its first client, c about the next one.
func TestExplainRow(t *testing.T) {
	l := onScreen(100, 24)
	l.Update(viewMsg{testView()})
	l.Update(explainMsg(func(r *result, c probe.Client) (string, error) {
		if c == probe.FromOutside {
			return "", errors.New("no answer")
		}
		return fmt.Sprintf("%v to %v", c, r.packet.Dst), nil
	}))
	toptest.Press(l, "down", "e")
	if !strings.Contains(l.screen(), "node to 10.96.0.5:80") {
		t.Errorf("explained:\n%s", l.screen())
	}
	toptest.Press(l, "c")
	if !strings.Contains(l.screen(), "no answer") {
		t.Errorf("the next client:\n%s", l.screen())
	}
	l.Update(tea.WindowSizeMsg{Width: 100, Height: 8})
	l.explain = func(*result, probe.Client) (string, error) { return strings.Repeat("reason\n", 20) + "the last", nil }
	toptest.Press(l, "c", "pgdown", "pgdown", "pgdown", "pgdown")
	if screen := l.screen(); strings.Count(screen, "\n") >= 8 || !strings.Contains(screen, "the last") {
		t.Errorf("the end of long reasons:\n%s", screen)
	}
	if toptest.Press(l, "q") || !strings.Contains(l.screen(), "FRONTEND") {
		t.Errorf("q does not lead back to the table:\n%s", l.screen())
	}
}

// TestSummaryStays: what stays on the screen is the title and what it comes to, of the newest view.
func TestSummaryStays(t *testing.T) {
	l := onScreen(100, 24)
	if l.last() != nil {
		t.Errorf("before the first view: %q", l.last())
	}
	l.Update(viewMsg{testView()})
	text := strings.Join(l.last(), "\n")
	if !strings.Contains(text, "switchyard lab  my-app") || !strings.Contains(text, "✗ 1 of 18 paths are not as they must be") {
		t.Errorf("what stays is\n%s", text)
	}
}

// TestHostileManifests: what manifests say does not control the terminal, and makes no lines of its own.
func TestHostileManifests(t *testing.T) {
	l := &live{started: "\x1b]52;c;aGk=\x07\u009b\u202e"}
	if got := l.View().Content; got != "�]52;c;aGk=���" {
		t.Errorf("the screen is %q", got)
	}
	v := &view{inputs: "app", skipped: []string{"kind \x1b[2J\n✓ all paths are as they must be"}}
	for _, line := range v.lines(palette{}, defaultWidth) {
		if strings.ContainsAny(line, "\x1b\n") {
			t.Errorf("the line is %q", line)
		}
	}
}
