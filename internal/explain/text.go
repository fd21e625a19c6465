package explain

import (
	"fmt"
	"io"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// Style is how answers are printed.
type Style struct {
	// Colour uses ANSI escape sequences.
	Colour bool
	// All lists all endpoints, without a limit.
	All bool
}

// maxEndpoints is how many endpoints that get connections are listed, and how many that do not.
const maxEndpoints = 20

const (
	red, green, bold, plain = "\x1b[31m", "\x1b[32m", "\x1b[1m", "\x1b[0m"
)

// Write prints an answer for a person.
func (s Style) Write(w io.Writer, a *Answer) error {
	p := printer{style: s}
	p.answer(a)
	_, err := io.WriteString(w, p.b.String())
	return err
}

type printer struct {
	style Style
	b     strings.Builder
}

func (p *printer) colour(with, text string) string {
	if !p.style.Colour {
		return text
	}
	return with + text + plain
}

// labelWidth is how wide the labels of lines are.
const labelWidth = 11

// line prints a label and a text. The label is empty for what belongs to the line before.
func (p *printer) line(label, text string) {
	fmt.Fprintf(&p.b, "  %-*s%s\n", labelWidth, label, text)
}

func (p *printer) answer(a *Answer) {
	from := a.From
	if a.Client.Addr.IsValid() && !strings.Contains(from, a.Client.Addr.String()) {
		from += fmt.Sprintf(" (%v)", a.Client.Addr)
	}
	fmt.Fprintf(&p.b, "%s\n", p.colour(bold, fmt.Sprintf("%s -> %s, on node %s", from, a.To, a.Node)))
	mark, shade := "✗", red
	if a.Verdict == Forwarded {
		mark, shade = "✓", green
	}
	fmt.Fprintf(&p.b, "%s: %s\n", p.colour(shade, mark+" "+strings.ToUpper(string(a.Verdict))), a.Because)
	if hears := hears(a.Verdict); hears != "" {
		p.line("symptom", hears)
	}
	if a.Remedy != "" {
		p.line("try", a.Remedy)
	}
	if a.Place != "" {
		p.line("object", a.Place)
	}
	if a.Client.Class != "" {
		p.line("client", fmt.Sprintf("%s: %s", a.Client.Class, a.Client.Why))
	}
	if f := a.Frontend; f != nil {
		text := fmt.Sprintf("%s %v/%s of Service %s", kindText(f.Kind), f.Addr, f.Protocol, a.Service)
		if f.Port != "" {
			text += ", port " + f.Port
		}
		p.line("frontend", text)
	}
	for i, policy := range a.Policies {
		label := ""
		if i == 0 {
			label = "policy"
		}
		rule := policy.Name
		if !strings.Contains(rule, " ") { // a field of the Service
			rule += " " + policy.Value
		}
		p.line(label, rule+": "+policy.Text)
	}
	if a.Edge != nil {
		p.line("edge", a.Edge.text())
	}
	p.endpoints(a)
	if a.Source != "" {
		p.line("source", "the server sees "+a.Source)
		p.line("way back", a.WayBack)
	}
	p.kernel(a.Kernel)
	for i := range a.Findings {
		f := &a.Findings[i]
		text := f.String()
		if f.Place != "" {
			text = f.Place + ": " + text
		}
		p.line(string(f.Severity), text)
	}
	for _, note := range a.Notes {
		p.line("note", note)
	}
	if a.Verdict == Forwarded {
		p.line("unseen", "network policies, firewalls, routes, and whether the server listens")
	}
}

// hears returns the client's view of the result.
func hears(v Verdict) string {
	switch v {
	case Rejected:
		return "the client hears \"connection refused\" at once"
	case Dropped:
		return "the client hears nothing, until it times out"
	case NotServed:
		return "the connection goes on as if there were no Services"
	}
	return ""
}

func kindText(kind string) string {
	switch kind {
	case state.ClusterIP.String():
		return "cluster IP"
	case state.ExternalIP.String():
		return "externalIP"
	case state.LoadBalancer.String():
		return "load balancer IP"
	case state.NodePort.String():
		return "node port"
	}
	return kind
}

// endpoints lists those that get connections before those that do not.
func (p *printer) endpoints(a *Answer) {
	width := 0
	for _, e := range a.Endpoints {
		width = max(width, len(e.Addr.String()))
	}
	label := "endpoints"
	for _, gets := range []bool{true, false} {
		mark, shade := "✗", red
		if gets {
			mark, shade = "✓", green
		}
		n := 0
		for _, e := range a.Endpoints {
			if e.Gets != gets {
				continue
			}
			if n++; n > maxEndpoints && !p.style.All {
				continue
			}
			where := "on " + nodeText(e.Node)
			if e.Pod != "" {
				where = "pod " + e.Pod + " " + where
			}
			p.line(label, fmt.Sprintf("%s %-*v  %s: %s", p.colour(shade, mark), width, e.Addr, where, e.Text))
			label = ""
		}
		if n > maxEndpoints && !p.style.All {
			p.line("", fmt.Sprintf("%s and %d more (--all lists them)", p.colour(shade, mark), n-maxEndpoints))
		}
	}
	for i, s := range a.Slices {
		if i == maxNamed && !p.style.All {
			p.line("", fmt.Sprintf("and %d more slices without endpoints for this port", len(a.Slices)-maxNamed))
			break
		}
		if len(s.Name) > 0 && (len(a.Endpoints) == 0 || s.Reason != "OtherFamily") {
			p.line(label, fmt.Sprintf("  EndpointSlice %s: %s", s.Name, s.Text))
			label = ""
		}
	}
}
