//go:build linux

package lab

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/internal/plaintext"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// notRun is the reason of what this small cluster cannot run, and of objects without effect.
const notRun diagnosis.Reason = "NotRun"

// factsOf returns what package diagnosis wants to know of the manifests and of the cluster that was made of them.
func factsOf(in *inputs.Loaded, c *minicluster.Cluster) *diagnosis.Facts {
	f := apifacts.New()
	f.Whole, f.Partial = true, in.Partial()
	given := make(map[diagnosis.Object]runtime.Object)
	for _, o := range slices.Concat(in.Objects, in.References) {
		name := apifacts.ObjectOf(o)
		given[name] = o
		if name.Kind != "Pod" && name.Kind != "Service" {
			apifacts.Add(f, noted(o, c))
		}
	}
	for _, s := range in.Skipped {
		apifacts.AddSkipped(f, s)
	}
	for i := range c.Pods {
		apifacts.Add(f, c.Pods[i].Object())
	}
	for _, s := range c.Services {
		apifacts.Add(f, s)
	}
	f.Place = func(o diagnosis.Object, field string) string {
		if given[o] == nil {
			return ""
		}
		file, line, column := in.Place(given[o], field)
		switch {
		case line == 0:
			return file
		case column == 0:
			return fmt.Sprintf("%s:%d", file, line)
		}
		return fmt.Sprintf("%s:%d:%d", file, line, column)
	}
	return f
}

// diagnose returns the findings about the manifests, the worst first, in the order of the objects.
func diagnose(in *inputs.Loaded, c *minicluster.Cluster, s *store.Store, f *diagnosis.Facts) []diagnosis.Finding {
	var list []diagnosis.Finding
	for _, name := range s.ServiceNames() {
		list = append(list, diagnosis.Service(s.Explain(name), nodeName, f, nil)...)
	}
	others := apifacts.References(slices.Concat(in.Objects, in.References))
	for _, w := range c.Warnings {
		others = append(others, diagnosis.Finding{Reason: notRun, Severity: diagnosis.Remark, Object: apifacts.ObjectOf(w.Object), Field: w.Field, Text: w.Text})
	}
	for i := range others {
		others[i].Place = f.Place(others[i].Object, others[i].Field)
	}
	return append(list, others...)
}

// byService returns the findings by the Service that they are about.
func (v *view) byService() map[state.ServiceName][]diagnosis.Finding {
	of := make(map[state.ServiceName][]diagnosis.Finding)
	for _, f := range v.findings {
		if f.Object.Kind == "Service" {
			name := state.ServiceName{Namespace: f.Object.Namespace, Name: f.Object.Name}
			of[name] = append(of[name], f)
		}
	}
	return of
}

// elsewhere are the findings that are on no row of the table.
func (v *view) elsewhere() (list []diagnosis.Finding) {
	onRow := make(map[diagnosis.Object]bool)
	for i := range v.results {
		name := v.results[i].service.Name
		onRow[diagnosis.Object{Kind: "Service", Namespace: name.Namespace, Name: name.Name}] = true
	}
	for _, f := range v.findings {
		if !onRow[f.Object] {
			list = append(list, f)
		}
	}
	return list
}

// sentenceOf is a finding with its object and its place.
func sentenceOf(f *diagnosis.Finding) string {
	text := f.Object.String() + ": " + f.String()
	if f.Place != "" {
		text = f.Place + ": " + text
	}
	return text
}

// mark draws a finding in the colour of its severity.
func (p palette) mark(f *diagnosis.Finding) (paint func(string) string, mark string) {
	switch f.Severity {
	case diagnosis.Fault:
		return p.bad, "✗ "
	case diagnosis.Warning:
		return p.warn, "! "
	}
	return p.dim, "· "
}

// wrong counts the findings of each severity, worst first, as a text: "9 faults and 1 warning". Both results are empty if there are none.
func (v *view) wrong() (text string, worst diagnosis.Severity) {
	count := make(map[diagnosis.Severity]int)
	for _, f := range v.findings {
		count[f.Severity]++
	}
	var texts []string
	for _, s := range []diagnosis.Severity{diagnosis.Fault, diagnosis.Warning, diagnosis.Remark} {
		if n := count[s]; n > 0 {
			if len(texts) == 0 {
				worst = s
			}
			texts = append(texts, diagnosis.Count(n, string(s)))
		}
	}
	if n := len(texts); n > 1 {
		texts = []string{strings.Join(texts[:n-1], ", ") + " and " + texts[n-1]}
	}
	return strings.Join(texts, ""), worst
}

// wrongLine is the last line of the view, empty if nothing is wrong with the manifests.
func (v *view) wrongLine(p palette) []string {
	text, worst := v.wrong()
	if text == "" {
		return nil
	}
	paint, mark := p.mark(&diagnosis.Finding{Severity: worst})
	return []string{paint(mark + "the manifests have " + text)}
}

// FindingsError reports faults and warnings about the manifests, where [Options].Strict does not allow them.
type FindingsError struct{ text string }

func (e *FindingsError) Error() string { return "the manifests have " + e.text }

// github writes errors and findings as annotations, which GitHub shows at the lines of the files.
func (v *view) github(out io.Writer, errs []error) error {
	var b strings.Builder
	line := func(level, place, title, text string) {
		b.WriteString("::" + level)
		file, at, column := splitPlace(place)
		var properties []string
		for _, p := range [][2]string{{"file", file}, {"line", at}, {"col", column}, {"title", title}} {
			if p[1] != "" {
				properties = append(properties, p[0]+"="+githubEscapes.Replace(githubText.Replace(plaintext.Line(p[1]))))
			}
		}
		if len(properties) > 0 {
			b.WriteString(" " + strings.Join(properties, ","))
		}
		b.WriteString("::" + githubText.Replace(plaintext.Line(text)) + "\n")
	}
	for _, text := range texts(errs) {
		place, rest := cutPlace(text)
		line("error", place, "Manifest", rest)
	}
	for i := range v.findings {
		f := &v.findings[i]
		level := map[diagnosis.Severity]string{diagnosis.Fault: "error", diagnosis.Warning: "warning", diagnosis.Remark: "notice"}[f.Severity]
		line(level, f.Place, string(f.Reason), f.Object.String()+": "+f.String())
	}
	for _, text := range v.surprises() {
		line("error", "", "Path", text)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

// githubText escapes the text of an annotation, githubEscapes what its properties need in addition.
var (
	githubText    = strings.NewReplacer("%", "%25", "\r", "%0D", "\n", "%0A")
	githubEscapes = strings.NewReplacer(":", "%3A", ",", "%2C")
)

// cutPlace splits an error of a manifest into its place and the rest.
func cutPlace(text string) (place, rest string) {
	place, rest, ok := strings.Cut(text, ": ")
	if !ok || strings.Contains(place, " ") {
		return "", text
	}
	return place, rest
}

// splitPlace splits FILE:LINE:COLUMN. The numbers may be missing.
func splitPlace(place string) (file, line, column string) {
	parts := strings.Split(place, ":")
	number := func(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }
	n := len(parts)
	switch {
	case n > 2 && number(parts[n-1]) && number(parts[n-2]):
		return strings.Join(parts[:n-2], ":"), parts[n-2], parts[n-1]
	case n > 1 && number(parts[n-1]):
		return strings.Join(parts[:n-1], ":"), parts[n-1], ""
	}
	return place, "", ""
}
