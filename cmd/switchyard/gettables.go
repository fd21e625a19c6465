package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"

	adminv1 "github.com/switchyard-net/switchyard/internal/admin/v1"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
)

// getKind is a kind of rows that 'switchyard get' shows.
type getKind struct {
	name    string
	aliases []string
	what    string
	kind    adminv1.Kind
	// namespaced is set for rows of Services.
	namespaced bool
	// completedBy is the index of the kind whose names complete this kind's names.
	completedBy int
	// header has the columns, and wide those that -o wide adds.
	header, wide []string
	// cells returns the cells of a row, a pointer to one of the types of package view.
	cells func(row any, wide bool) []string
	// nameOf returns the name by which a row is asked for.
	nameOf func(row any) string
}

var getKinds = []getKind{
	{
		name: "services", aliases: []string{"service", "svc"}, what: "Services, and how they are served on this node",
		kind: adminv1.Kind_KIND_SERVICE, namespaced: true, completedBy: 0,
		header: []string{"NAMESPACE", "NAME", "TYPE", "CLUSTER-IP", "EXTERNAL-IP", "PORTS", "ENDPOINTS", "NOTE"}, wide: []string{"PROBLEMS"},
		cells: serviceCells, nameOf: func(row any) string { return row.(*view.Service).Name },
	},
	{
		name: "endpoints", aliases: []string{"endpoint", "ep"}, what: "the endpoints of Services, and why each gets connections or not",
		kind: adminv1.Kind_KIND_ENDPOINT, namespaced: true, completedBy: 0,
		header: []string{"NAMESPACE", "SERVICE", "PORT", "ADDRESS", "POD", "NODE", "INSIDE", "OUTSIDE", "WEIGHT", "SHARE", "STATE", "NOTE"}, wide: []string{"NOTE-OUTSIDE", "SLICE"},
		cells: endpointCells, nameOf: func(row any) string { return row.(*view.Endpoint).Service },
	},
	{
		name: "nodes", aliases: []string{"node", "no"}, what: "the Node of the process, as it knows it",
		kind: adminv1.Kind_KIND_NODE, completedBy: 2,
		header: []string{"NAME", "ZONE", "ADDRESSES", "POD-CIDRS", "SELF"},
		cells:  nodeCells,
		nameOf: func(row any) string { return row.(*view.Node).Name },
	},
}

func serviceCells(row any, wide bool) []string {
	s := row.(*view.Service)
	var ports []string
	for _, p := range s.Ports {
		text := fmt.Sprint(p.Port)
		if p.NodePort > 0 {
			text += fmt.Sprintf(":%d", p.NodePort)
		}
		ports = append(ports, text+"/"+p.Protocol)
	}
	numbers, reasons, _ := strings.Cut(s.Endpoints.String(), " ")
	var notes []string
	for _, note := range []string{string(s.NotRouted), reasons} {
		if note != "" {
			notes = append(notes, note)
		}
	}
	if !wide {
		notes = append(notes, problemNotes(s)...)
	}
	cells := []string{s.Namespace, s.Name, s.Type, orNone(joined(s.ClusterIPs)), orNone(joined(s.ExternalIPs)), orNone(strings.Join(ports, ",")), numbers, strings.Join(notes, ", ")}
	if wide {
		cells = append(cells, strings.Join(s.Problems, "; "))
	}
	return cells
}

// problemNotes are the reasons of a Service's faults and warnings, and how many problems there are beyond them.
func problemNotes(s *view.Service) (notes []string) {
	others := len(s.Problems)
	for _, f := range s.Findings {
		if f.Severity == diagnosis.Remark {
			continue
		}
		others--
		if !slices.Contains(notes, string(f.Reason)) {
			notes = append(notes, string(f.Reason))
		}
	}
	if others > 0 {
		notes = append(notes, diagnosis.Count(others, "problem"))
	}
	return notes
}

func endpointCells(row any, wide bool) []string {
	e := row.(*view.Endpoint)
	port := e.Protocol
	if e.Port != "" {
		port = e.Port + "/" + e.Protocol
	}
	weight, share := "-", "-"
	if e.Weight != nil {
		weight = fmt.Sprint(*e.Weight)
	}
	if e.Inside {
		share = fmt.Sprintf("%.1f%%", 100*e.Share)
	}
	cells := []string{
		e.Namespace, e.Service, port, e.Addr.String(), orNone(e.Pod), orNone(e.Node), yesNo(e.Inside), yesNo(e.Outside), weight, share, stateText(e, time.Now()), wordList(e.Reasons),
	}
	if wide {
		cells = append(cells, wordList(e.OutsideReasons), e.Slice)
	}
	return cells
}

// stateText is the state of an endpoint, and for how long its open connections stay.
func stateText(e *view.Endpoint, now time.Time) string {
	if e.DrainsUntil.IsZero() {
		return string(e.State)
	}
	return fmt.Sprintf("%s %v", e.State, max(0, e.DrainsUntil.Sub(now)).Round(time.Second))
}

func nodeCells(row any, _ bool) []string {
	n := row.(*view.Node)
	return []string{n.Name, orNone(n.Zone), orNone(joined(n.Addresses)), orNone(joined(n.PodCIDRs)), yesNo(n.Self)}
}

func yesNo(is bool) string { return map[bool]string{true: "yes", false: "no"}[is] }

func joined[T fmt.Stringer](list []T) string {
	var texts []string
	for _, x := range list {
		texts = append(texts, x.String())
	}
	return strings.Join(texts, ",")
}

func wordList[T ~string](list []T) string {
	var words []string
	for _, w := range list {
		words = append(words, string(w))
	}
	return strings.Join(words, ",")
}

// table prints rows in columns. Rows that are added after the first ones are printed keep the widths of these, if they fit.
type table struct {
	lines  [][]string
	notes  []string
	widths []int
	// skip is how many columns at the left are left out.
	skip int
}

// table returns the table of a kind, with its header.
func (o *getOptions) table(k getKind) *table {
	t := &table{}
	if k.namespaced && !o.all {
		t.skip = 1
	}
	header := k.header
	if o.output == "wide" {
		header = slices.Concat(header, k.wide)
	}
	t.add(header)
	return t
}

func (t *table) add(cells []string) { t.lines = append(t.lines, cells[t.skip:]) }

func (t *table) note(text string) { t.notes = append(t.notes, text) }

// write prints the rows that were added since the last call.
func (t *table) write(w io.Writer) error {
	for _, cells := range t.lines {
		for i, cell := range cells {
			if i == len(t.widths) {
				t.widths = append(t.widths, 0)
			}
			t.widths[i] = max(t.widths[i], utf8.RuneCountInString(cell))
		}
	}
	var b strings.Builder
	for _, cells := range t.lines {
		var line strings.Builder
		for i, cell := range cells {
			fmt.Fprintf(&line, "%-*s   ", t.widths[i], cell)
		}
		b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
	for _, note := range t.notes {
		b.WriteString(note + "\n")
	}
	t.lines, t.notes = nil, nil
	_, err := io.WriteString(w, b.String())
	return err
}

// unwell reports whether a process fails at its task.
func unwell(s *view.Status) bool {
	return !s.Healthy || slices.ContainsFunc(s.Problems, func(p view.Problem) bool { return p.Fault })
}

// writeStatus prints a status for a person.
func writeStatus(w io.Writer, s *view.Status) error {
	var b strings.Builder
	line := func(label, format string, args ...any) {
		fmt.Fprintf(&b, "%-11s %s\n", label, fmt.Sprintf(format, args...))
	}
	line("node", "%s", orNone(s.Node))
	line("process", "%s %s, since %s", s.Program, s.Version, s.Started.UTC().Format(time.RFC3339))
	switch {
	case s.Mode == "none":
		line("dataplane", "none: this process serves states")
	case s.Applied == 0:
		line("dataplane", "%s, which shows nothing yet", s.Mode)
	case s.PendingSince.IsZero():
		line("dataplane", "%s, which shows revision %d; last compared or written at %s", s.Mode, s.Applied, s.LastSuccess.UTC().Format(time.RFC3339))
	default:
		line("dataplane", "%s, which shows revision %d; an update has been waiting since %s", s.Mode, s.Applied, s.PendingSince.UTC().Format(time.RFC3339))
	}
	if s.Revision == 0 {
		line("state", "none yet: not all objects of the cluster are known")
	} else {
		line("state", "revision %d with %d services", s.Revision, s.Services)
	}
	if s.Failed > 0 {
		line("failed", "%d services cannot be programmed", s.Failed)
	}
	if e := s.Edge; e != nil {
		line("edge", "hands over new connections of %d ports; %d ports left to nftables, %d frontends draining; %d packets handed over, %d taken in", e.Ports, e.Left, e.Draining, e.HandedOver, e.TakenIn)
	}
	line("healthy", "%s", yesNo(!unwell(s)))
	for _, p := range s.Problems {
		line(map[bool]string{true: "fault", false: "problem"}[p.Fault], "%s: %s", p.Part, p.Message)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// asYAML writes a value as YAML, with the fields that it has as JSON, in their order.
func asYAML(v any) ([]byte, error) {
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var n yaml.Node
	if err := yaml.Unmarshal(text, &n); err != nil {
		return nil, err
	}
	inBlocks(&n)
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	err = e.Encode(&n)
	return b.Bytes(), err
}

// inBlocks takes the style of JSON away. Words stay quoted where YAML would read something else.
func inBlocks(n *yaml.Node) {
	n.Style = 0
	for _, c := range n.Content {
		inBlocks(c)
	}
}
