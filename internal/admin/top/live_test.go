package top

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"iter"
	"strings"
	"testing"

	tea "charm.land/bubbletea/v2"
	"github.com/charmbracelet/x/ansi"

	"github.com/switchyard-net/switchyard/internal/admin/top/toptest"
	"github.com/switchyard-net/switchyard/internal/admin/view"
)

var update = flag.Bool("update", false, "write the screens in testdata anew")

// manyPorts is a report with queues in addition to the ports of twoReadings.
func manyPorts() *Report {
	before, now := twoReadings()
	for i := range 30 {
		p := view.PortTraffic{Namespace: "tools", Service: fmt.Sprintf("queue-with-a-long-name-%02d", i), Port: "amqp", Endpoints: view.Endpoints{Used: 2, All: 2}}
		before.Ports = append(before.Ports, p)
		p.Connections = uint64(i)
		now.Ports = append(now.Ports, p)
	}
	return Between(before, now)
}

// onScreen is a table on a terminal of a size.
func onScreen(width, height int) *Live {
	l := &Live{Waiting: "switchyard top: counting for 2s", Namespaces: true, Order: ByConnections}
	l.Update(tea.WindowSizeMsg{Width: width, Height: height})
	return l
}

// TestScreens: testdata/screens.txtar has what is on terminals of 60, 80 and 140 columns, after some keys.
func TestScreens(t *testing.T) {
	toptest.Screens(t, *update, 16, []int{60, 80, 140}, [][2]string{
		{"waiting", "-"}, {"table", ""}, {"a page down", "pgdown"}, {"end", "end"}, {"filter", "/ c a r t"}, {"filter kept", "/ 2 9 enter"}, {"by rejects", "s"}, {"by name", "s s s"},
	}, func(width int, keys string) string {
		l := onScreen(width, 16)
		if keys != "-" {
			l.Update(manyPorts())
			toptest.Press(l, strings.Fields(keys)...)
		}
		return l.screen()
	}, func(line string) string { return strings.TrimRight(ansi.Strip(line), " ") })
}

func TestKeys(t *testing.T) {
	if l := onScreen(100, 16); toptest.Press(l, "down", "s", "/") || l.screen() == "" || !toptest.Press(l, "q") {
		t.Error("while there is nothing yet, a key but q ends it, or q does not")
	}
	for name, c := range map[string]struct {
		keys     string
		has, not string
	}{
		"filter":           {"/ P G enter", "db", "cart"},
		"filter, edited":   {"/ 0 x backspace 7", "name-07", "name-08"},
		"no filter":        {"/ 0 7 esc", "web", ""},
		"filter, left":     {"/ 0 7 enter esc", "web", ""},
		"q in a filter":    {"/ q u", "name-29", "web"},
		"nothing is there": {"/ x y z", "0 ports", "web"},
		"down":             {"down", "name-19", "name-29"},
		"up":               {"down up up", "name-29", ""},
		"page down":        {"pgdown", "name-18", "name-29"},
		"page up":          {"pgdown pgup", "name-29", ""},
		"end":              {"end", "newer", "name-29"},
		"home":             {"end home", "name-29", ""},
		"by drops":         {"end s s", "sorted by drops", "name-29"},
		"all orders":       {"s s s s", "sorted by connections", ""},
	} {
		l := onScreen(100, 16)
		l.Update(manyPorts())
		if toptest.Press(l, strings.Fields(c.keys)...) {
			t.Errorf("%s: it ended", name)
		}
		if screen := l.screen(); !strings.Contains(screen, c.has) || c.not != "" && strings.Contains(screen, c.not) {
			t.Errorf("%s: want %q and not %q in\n%s", name, c.has, c.not, screen)
		}
	}
	for _, key := range []string{"q", "ctrl+c"} {
		l := onScreen(100, 16)
		l.Update(manyPorts())
		if !toptest.Press(l, key) {
			t.Errorf("%s does not end it", key)
		}
	}
}

// TestNewReports: the next report is sorted as the one before, and the place in it stays, as far as it goes.
func TestNewReports(t *testing.T) {
	l := onScreen(100, 16)
	l.Update(manyPorts())
	toptest.Press(l, "s", "pgdown", "pgdown")
	l.Update(Between(twoReadings()))
	if screen := ansi.Strip(l.screen()); !strings.Contains(screen, "sorted by rejects") || !strings.Contains(screen, "\nshop        cart ") {
		t.Errorf("after a shorter report:\n%s", screen)
	}
}

// TestTinyTerminals: what a terminal has no room for is not shown, and nothing breaks.
func TestTinyTerminals(t *testing.T) {
	for height := range 8 {
		l := onScreen(9, height)
		l.Update(manyPorts())
		toptest.Press(l, "end", "pgup", "down")
		if n := strings.Count(l.screen(), "\n") + 1; n > max(height, 1) {
			t.Errorf("%d lines on %d", n, height)
		}
	}
}

// TestRun: the table ends with the reports, whose error it returns, and with the context, which is none.
func TestRun(t *testing.T) {
	broken := errors.New("the process is gone")
	for name, want := range map[string]error{"an error": broken, "the context": nil} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			l := &Live{Order: ByName}
			err := l.run(ctx, func(ctx context.Context) iter.Seq2[*Report, error] {
				return func(yield func(*Report, error) bool) {
					if !yield(manyPorts(), nil) {
						return
					}
					if want != nil {
						yield(nil, want)
						return
					}
					cancel()
					<-ctx.Done()
				}
			}, tea.WithOutput(io.Discard), tea.WithInput(nil), tea.WithWindowSize(80, 24))
			if !errors.Is(err, want) {
				t.Errorf("Run = %v, want %v", err, want)
			}
			if l.report == nil {
				t.Error("the report was not shown")
			}
		})
	}
}

// TestHostileNames: what objects say does not control the terminal.
func TestHostileNames(t *testing.T) {
	l := &Live{Waiting: "\x1b]52;c;aGk=\x07\u009b\u202e"}
	if got := l.View().Content; !strings.Contains(got, "�]52;c;aGk=���") {
		t.Errorf("the screen is %q", got)
	}
}
