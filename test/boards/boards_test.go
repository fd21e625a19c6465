package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// scraped are the labels that Prometheus adds, with the ServiceMonitor's.
var scraped = []string{"job", "instance", "node"}

// shown are the metrics of a registry by name, with the labels of each, as Prometheus reads them from /metrics.
func shown(t *testing.T, r *metrics.Registry, into map[string][]string) {
	t.Helper()
	w := httptest.NewRecorder()
	r.Handler().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	p := expfmt.NewTextParser(model.UTF8Validation)
	families, err := p.TextToMetricFamilies(bytes.NewReader(w.Body.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	for name, f := range families {
		var names []string
		for _, m := range f.Metric {
			for _, l := range m.Label {
				names = append(names, l.GetName())
			}
		}
		names = append(names, scraped...)
		into[name] = names
		if f.GetType() == dto.MetricType_HISTOGRAM {
			into[name+"_bucket"] = append(slices.Clone(names), "le")
			into[name+"_sum"], into[name+"_count"] = names, names
		}
	}
}

// registry is the registry of a process, after a bit of work.
func registry(mode string, relay bool) *metrics.Registry {
	count := func() int { return 0 }
	o := metrics.Options{
		Mode: mode, Families: []state.Family{state.IPv4, state.IPv6}, SourceProblems: count, NodeProblems: count, LogLinesSuppressed: func() uint64 { return 0 },
		Connections:     map[string]metrics.Connections{"health": func() (int64, int64) { return 0, 0 }},
		LimitedServices: func() map[string]int { return map[string]int{"reason": 0} },
	}
	o.Role, o.Followers = "relay", func() metrics.Followers { return metrics.Followers{} }
	if !relay {
		o.PendingSince = func() time.Time { return time.Time{} }
		o.ConntrackEntries = func() (metrics.ConntrackEntries, bool) { return metrics.ConntrackEntries{}, true }
		o.Services, o.HealthCheckProblems = count, count
		o.SocketHooks = func() metrics.SocketHooks { return metrics.SocketHooks{State: "on"} }
		o.Traffic = func() *metrics.Traffic { return &metrics.Traffic{} }
		o.AffinityClients = func() []metrics.AffinityClients { return []metrics.AffinityClients{{Family: state.IPv4}} }
	}
	more := prometheus.NewRegistry()
	o.Others = more
	r := metrics.New(o)
	r.Resets(state.ServiceName{Namespace: "shop", Name: "db"}, 1)
	up := prometheus.NewGauge(prometheus.GaugeOpts{Name: "up", Help: "Prometheus itself sets it for each target."})
	more.MustRegister(up)
	if !relay {
		r.Attempt(backend.Attempt{Update: &state.Update{Revision: 1, Full: true}, Began: time.Now()})
		r.Status(backend.Status{Applied: 1})
	}
	requests, api := metrics.NewRESTClient(more), url.URL{Host: "api"}
	requests.RequestLatency.Observe(context.Background(), "GET", api, time.Millisecond)
	requests.RequestResult.Increment(context.Background(), "200", "GET", "api")
	return r
}

// everything is what nodes show in any mode.
func everything(t *testing.T) map[string][]string {
	all := map[string][]string{}
	for _, mode := range []string{metrics.ModeNFTables, metrics.ModeIPTables, metrics.ModeIPVS, metrics.ModeUserspace, metrics.ModeEBPF} {
		shown(t, registry(mode, false), all)
	}
	return all
}

var interpolated = strings.NewReplacer("$__rate_interval", "5m", "$node", "node-a", "$job", "kube-proxy", "$instance", ".*")

var groups = regexp.MustCompile(`\{\{ *\$?([a-zA-Z_.]+) *\}\}`)

// check parses a query, and reports metrics and labels in it that no process shows.
func check(t *testing.T, expr string, known map[string][]string) {
	t.Helper()
	if strings.Contains(interpolated.Replace(expr), "$") {
		t.Errorf("%s: an unknown variable", expr)
	}
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(interpolated.Replace(expr))
	if err != nil {
		t.Errorf("%s: %v", expr, err)
		return
	}
	var used []string // of all metrics in the query
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		s, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		names, ok := known[s.Name]
		if !ok {
			t.Errorf("%s: no process shows a metric %s", expr, s.Name)
			return nil
		}
		used = append(used, names...)
		for _, m := range s.LabelMatchers {
			if m.Name != labels.MetricName && !slices.Contains(names, m.Name) {
				t.Errorf("%s: metric %s has no label %s", expr, s.Name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if a, ok := n.(*parser.AggregateExpr); ok {
			for _, l := range a.Grouping {
				if !slices.Contains(used, l) {
					t.Errorf("%s: it is grouped by %s, which none of its metrics has", expr, l)
				}
			}
		}
		return nil
	})
}

func TestBoards(t *testing.T) {
	nodes, relays := everything(t), map[string][]string{}
	shown(t, registry("", true), relays)
	for _, b := range boards {
		known := nodes
		if b.file == "relay.json" {
			known = relays
		}
		for _, r := range b.rows {
			for _, p := range r.panels {
				for _, q := range p.queries {
					check(t, q.expr, known)
					for _, m := range groups.FindAllStringSubmatch(q.legend, -1) {
						if l := m[1]; !slices.Contains(scraped, l) && !strings.Contains(q.expr, l) && !labelOf(t, q.expr, l, known) {
							t.Errorf("%s: the legend names %s, which the result does not have", q.expr, l)
						}
					}
				}
			}
		}
		for _, v := range b.variables {
			inside, ok := strings.CutPrefix(v.query, "label_values(")
			expr, label, found := strings.Cut(strings.TrimSuffix(inside, ")"), ", ")
			if !ok || !found || !slices.Contains(scraped, label) {
				t.Errorf("variable %s: %s", v.name, v.query)
			}
			check(t, expr, known)
		}
	}
}

// labelOf reports whether a metric of a query has a label.
func labelOf(t *testing.T, expr, label string, known map[string][]string) (has bool) {
	t.Helper()
	parsed, err := parser.NewParser(parser.Options{}).ParseExpr(interpolated.Replace(expr))
	if err != nil {
		return false // reported before
	}
	parser.Inspect(parsed, func(n parser.Node, _ []parser.Node) error {
		if s, ok := n.(*parser.VectorSelector); ok {
			has = has || slices.Contains(known[s.Name], label)
		}
		return nil
	})
	return has
}

// TestFilesAreWritten: the files in deploy are those that this program writes.
func TestFilesAreWritten(t *testing.T) {
	files, err := written()
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range files {
		if got, err := os.ReadFile(path); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is not what this program writes (%v): go run . in test/boards", path, err)
		}
	}
}

// TestPanelsFit: no panel of a board lies on another one.
func TestPanelsFit(t *testing.T) {
	for _, b := range boards {
		encoded, err := b.encode()
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Panels []struct {
				ID      int `json:"id"`
				GridPos struct{ X, Y, W, H int }
			}
		}
		if err := json.Unmarshal(encoded, &read); err != nil {
			t.Fatal(err)
		}
		taken := map[[2]int]int{} // cells of the grid
		for _, p := range read.Panels {
			for x := range p.GridPos.W {
				for y := range p.GridPos.H {
					cell := [2]int{p.GridPos.X + x, p.GridPos.Y + y}
					if other := taken[cell]; other != 0 || cell[0] >= gridWidth {
						t.Fatalf("%s: panel %d lies on panel %d, or beyond the edge", b.file, p.ID, other)
					}
					taken[cell] = p.ID
				}
			}
		}
	}
}

// ruleFile is a rule file of Prometheus, as far as it counts here.
type ruleFile struct {
	Groups []struct {
		Rules []struct {
			Alert, Expr string
			Annotations map[string]string
		}
	}
}

// TestAlerts: each alert can be computed of what nodes show, and has a page on what to do; each page has an alert.
func TestAlerts(t *testing.T) {
	data, err := os.ReadFile(alerts)
	if err != nil {
		t.Fatal(err)
	}
	var r ruleFile
	if err := yaml.Unmarshal(data, &r); err != nil {
		t.Fatal(err)
	}
	known, found := everything(t), map[string]bool{}
	const pages = "https://github.com/switchyard-net/switchyard/blob/main/docs/runbooks/"
	for _, g := range r.Groups {
		for _, a := range g.Rules {
			found[a.Alert] = true
			check(t, a.Expr, known)
			if url := a.Annotations["runbook_url"]; url != pages+a.Alert+".md" {
				t.Errorf("%s: runbook_url is %q", a.Alert, url)
			}
			page, err := os.ReadFile(filepath.Join("..", "..", "docs", "runbooks", a.Alert+".md"))
			if err != nil {
				t.Error(err)
				continue
			}
			for _, part := range []string{"# " + a.Alert + "\n", "\n## Meaning\n", "\n## Look\n", "\n## Do\n"} {
				if !strings.Contains(string(page), part) {
					t.Errorf("the page of %s has no %q", a.Alert, strings.TrimSpace(part))
				}
			}
			for _, m := range groups.FindAllStringSubmatch(a.Annotations["summary"], -1) {
				if l, ok := strings.CutPrefix(m[1], "labels."); ok && !slices.Contains(scraped, l) && !labelOf(t, a.Expr, l, known) {
					t.Errorf("the summary of %s names %s, which the alert does not have", a.Alert, l)
				}
			}
		}
	}
	runbooks, err := filepath.Glob(filepath.Join("..", "..", "docs", "runbooks", "*.md"))
	if err != nil || len(found) == 0 {
		t.Fatalf("%d alerts, %v", len(found), err)
	}
	for _, path := range runbooks {
		if name := strings.TrimSuffix(filepath.Base(path), ".md"); !found[name] && name != "README" {
			t.Errorf("%s is about no alert", path)
		}
	}
}
