// Package doctor finds the causes on a node that keep a service proxy from working, and suggests remedies.
//
// Each check is a function of [Node] and reads nothing else. A Node has the files below /proc and /sys, and functions
// that read the kernel or ask other programs. No check changes anything.
package doctor

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
)

// Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Info    Level = "info"    // neither well nor a problem: it is not in use, or nobody has asked
	Warning Level = "warning" // some connections may fail, or will under load
	Fault   Level = "fault"   // the proxy cannot work
)

// Finding is what a check found.
type Finding struct {
	// Check is the name of the check, such as "conntrack".
	Check   string `json:"check"`
	Level   Level  `json:"level"`
	Summary string `json:"summary"`
	// Meaning is what follows from it, and Remedy what to do. Both are empty if all is well.
	Meaning string `json:"meaning,omitempty"`
	Remedy  string `json:"remedy,omitempty"`
}

// Report is what all checks found.
type Report struct {
	Findings []Finding `json:"findings"`
	Warnings int       `json:"warnings"`
	Faults   int       `json:"faults"`
}

// check looks at one thing.
type check struct {
	name string
	run  func(context.Context, *Node) []Finding
}

// checks are in the order in which a person would look.
var checks = []check{
	{"permissions", permissions},
	{"dataplane", dataplanes},
	{"edge", edge},
	{"proxy", proxy},
	{"leftovers", leftBehind},
	{"other proxies", otherProxies},
	{"forwarding", forwarding},
	{"firewall", firewall},
	{"reverse path", reversePath},
	{"bridges", bridges},
	{"conntrack", connectionTracking},
	{"ports", ports},
	{"routes", routes},
	{"endpoints", endpoints},
	{"API server", apiServer},
	{"clock", clock},
	{"relay", relay},
}

// Examine runs all checks.
func Examine(ctx context.Context, n *Node) *Report {
	r := &Report{}
	for _, c := range checks {
		for _, f := range c.run(ctx, n) {
			f.Check = c.name
			switch f.Level {
			case Warning:
				r.Warnings++
			case Fault:
				r.Faults++
			}
			r.Findings = append(r.Findings, f)
		}
	}
	return r
}

func fine(format string, args ...any) []Finding {
	return []Finding{{Level: OK, Summary: fmt.Sprintf(format, args...)}}
}

func info(format string, args ...any) []Finding {
	return []Finding{{Level: Info, Summary: fmt.Sprintf(format, args...)}}
}

// unknown is for what cannot be read. It is no fault of the node by itself.
func unknown(err error, remedy string) []Finding {
	return []Finding{{Level: Warning, Summary: err.Error(), Meaning: "this could not be checked", Remedy: remedy}}
}

// Style is how a report is written.
type Style struct {
	Colour bool
	// Problems leaves out all but warnings and faults.
	Problems bool
}

var marks = map[Level]struct{ sign, colour string }{
	OK: {"✓", "32"}, Info: {"-", "2"}, Warning: {"!", "33"}, Fault: {"✗", "31"},
}

// Write writes a report for people.
func (s Style) Write(w io.Writer, r *Report) error {
	var b strings.Builder
	width := len(slices.MaxFunc(checks, func(a, b check) int { return cmp.Compare(len(a.name), len(b.name)) }).name)
	for _, f := range r.Findings {
		if s.Problems && (f.Level == OK || f.Level == Info) {
			continue
		}
		m := marks[f.Level]
		if s.Colour {
			m.sign = "\x1b[" + m.colour + "m" + m.sign + "\x1b[0m"
		}
		indent := strings.Repeat(" ", width+4)
		fmt.Fprintf(&b, "%s %-*s  %s\n", m.sign, width, f.Check, indented(f.Summary, indent))
		if f.Meaning != "" {
			fmt.Fprintf(&b, "%s%s\n", indent, indented(f.Meaning, indent))
		}
		if f.Remedy != "" {
			fmt.Fprintf(&b, "%sremedy: %s\n", indent, indented(f.Remedy, indent))
		}
	}
	fmt.Fprintf(&b, "%s, %s\n", count(r.Faults, "fault"), count(r.Warnings, "warning"))
	_, err := io.WriteString(w, b.String())
	return err
}

// indented keeps the lines of an error below each other.
func indented(text, indent string) string { return strings.ReplaceAll(text, "\n", "\n"+indent) }

func count(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// maxListed is how many names a finding lists.
const maxListed = 8

func listed(names []string) string {
	if more := len(names) - maxListed; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxListed], ", "), more)
	}
	return strings.Join(names, ", ")
}
