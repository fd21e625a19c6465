//go:build linux

package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/adminconv"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	nodeview "github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/internal/apirules"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/diagnosis/apifacts"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/lab/inputs"
	"github.com/switchyard-net/switchyard/lab/minicluster"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// looked is a cluster that is looked at in all ways in which findings are shown.
type looked struct {
	store *store.Store
	facts *diagnosis.Facts
	lab   []diagnosis.Finding
	// handed is the same cluster as 'switchyard explain --lab' has it, nil if no lab made it.
	handed *looked
}

// newLooked puts objects of a cluster into a store.
func newLooked(t *testing.T, objects []runtime.Object, facts *diagnosis.Facts) *looked {
	t.Helper()
	s := store.New(store.Options{Brain: brain.Config{NodeName: nodeName, NodePorts: state.NodePortAddresses{Primary: true}}})
	t.Cleanup(s.Close)
	var set []model.Object
	for _, o := range objects {
		m, ok, err := kubeconv.Object(o)
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			set = append(set, m)
		}
	}
	sink := s.Source("test")
	sink.Update(set, nil)
	sink.Complete()
	return &looked{store: s, facts: facts}
}

// inLab is what the lab makes of manifests.
func inLab(t *testing.T, path string) *looked {
	t.Helper()
	set, err := inputs.New(inputs.Options{Paths: []string{path}})
	if err != nil {
		t.Fatal(err)
	}
	in := set.Load()
	if len(in.Errs) > 0 {
		t.Fatal(in.Errs)
	}
	l := ofCluster(t, in)
	l.handed = l.throughJSON(t, in)
	return l
}

// ofCluster is the cluster that the lab makes of manifests, without the objects that it refuses.
func ofCluster(t *testing.T, in *inputs.Loaded) *looked {
	t.Helper()
	cluster, _ := clusterOf(in)
	var objects []runtime.Object
	for _, s := range cluster.Services {
		objects = append(objects, s)
	}
	for _, s := range cluster.Slices {
		objects = append(objects, s)
	}
	for _, n := range cluster.Nodes {
		objects = append(objects, n)
	}
	l := newLooked(t, objects, factsOf(in, cluster))
	l.lab = diagnose(in, cluster, l.store, l.facts)
	return l
}

// throughJSON is what 'switchyard explain --lab' makes of the objects that switchyard-lab prints for it.
func (l *looked) throughJSON(t *testing.T, in *inputs.Loaded) *looked {
	t.Helper()
	list, _ := Objects(in) // it prints the errors
	data, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "List", "items": list})
	if err != nil {
		t.Fatal(err)
	}
	facts, objects, errs := apifacts.FromLab(data)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	for _, o := range objects {
		apifacts.Add(facts, o)
	}
	return newLooked(t, objects, facts)
}

// TestLeftOut: a Service whose workload may be in a file that was left out has a remark instead of a fault, in the lab and in explain --lab.
func TestLeftOut(t *testing.T) {
	const others = `apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: c, image: c, ports: [{containerPort: 80}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: gate}
spec: {selector: {component: vtgate}, ports: [{port: 80}]}
`
	for name, file := range map[string]struct {
		text string
		want diagnosis.Severity
	}{
		"all is there": {"", diagnosis.Fault},
		"a template":   {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: gate}\nspec:\n  replicas: {{replicas}}\n", diagnosis.Remark},
		"a fault":      {"apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: gate}\nspec: {replicas: 1, replicas: 2}\n", diagnosis.Remark},
		"no manifest":  {"a: b\n", diagnosis.Fault},
	} {
		dir := t.TempDir()
		for path, text := range map[string]string{"others.yaml": others, "gate.yaml": file.text} {
			if err := os.WriteFile(filepath.Join(dir, path), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		set, err := inputs.New(inputs.Options{Paths: []string{dir}})
		if err != nil {
			t.Fatal(err)
		}
		in := set.Load()
		l := ofCluster(t, in)
		l.handed = l.throughJSON(t, in)
		gate := state.ServiceName{Namespace: "default", Name: "gate"}
		found := (&view{findings: l.lab}).byService()[gate]
		if len(found) != 1 || found[0].Severity != file.want {
			t.Errorf("%s: the lab finds %v, want a %s", name, found, file.want)
			continue
		}
		if d := cmp.Diff(sentences(found), l.handed.explained(t, gate)); d != "" {
			t.Errorf("%s: -lab +explain --lab:\n%s", name, d)
		}
	}
}

// inDump is what explain makes of the objects of a cluster.
func inDump(t *testing.T, path string) *looked {
	t.Helper()
	found, errs := manifest.Load(path)
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	facts := apifacts.New()
	var objects []runtime.Object
	for _, o := range found {
		if meta := o.Object.(metav1.Object); apifacts.ObjectOf(o.Object).Kind != "Node" && meta.GetNamespace() == "" {
			meta.SetNamespace("default")
		}
		if s, ok := o.Object.(*discoveryv1.EndpointSlice); ok {
			apirules.DefaultEndpointSlice(s)
		}
		apifacts.Add(facts, o.Object)
		objects = append(objects, o.Object)
	}
	l := newLooked(t, objects, facts)
	l.lab = diagnose(&inputs.Loaded{}, &minicluster.Cluster{}, l.store, l.facts)
	return l
}

// Status, View, Changes and Explain implement [ui.Source].
func (l *looked) Status() *nodeview.Status { return &nodeview.Status{Node: nodeName} }
func (l *looked) View() *nodeview.View     { return &nodeview.View{Store: l.store, Facts: l.facts} }
func (l *looked) Changes() *ui.Changes     { return &ui.Changes{} }
func (l *looked) Explain(ctx context.Context, from explain.From, to explain.To) ([]*explain.Answer, error) {
	return explain.New(explain.Options{Store: l.store, Facts: l.facts}).Ask(ctx, from, to)
}

func sentences(list []diagnosis.Finding) (texts []string) {
	for i := range list {
		texts = append(texts, fmt.Sprintf("%s: %v", list[i].Reason, &list[i]))
	}
	slices.Sort(texts)
	return slices.Compact(texts)
}

// explained are the findings in the answers to a question about a Service.
func (l *looked) explained(t *testing.T, name state.ServiceName) []string {
	t.Helper()
	from, _ := explain.ParseFrom("node")
	to, err := explain.ParseTo("svc/" + name.String())
	if err != nil {
		t.Fatal(err)
	}
	answers, err := l.Explain(t.Context(), from, to)
	if err != nil {
		t.Fatal(err)
	}
	var explained []diagnosis.Finding
	for _, a := range answers {
		if a.Reason != "" {
			explained = append(explained, diagnosis.Finding{Reason: a.Reason, Text: a.Because, Remedy: a.Remedy})
		}
		explained = append(explained, a.Findings...)
	}
	return sentences(explained)
}

// asked are the verdicts of a question, and why, as explain and the page have them.
func (l *looked) asked(t *testing.T, from, to string) (explained, page []string) {
	t.Helper()
	f, err := explain.ParseFrom(from)
	if err != nil {
		t.Fatal(err)
	}
	target, err := explain.ParseTo(to)
	if err != nil {
		t.Fatal(err)
	}
	answers, err := l.Explain(t.Context(), f, target)
	if err != nil {
		t.Fatal(err)
	}
	var body struct{ Answers []*explain.Answer }
	w := httptest.NewRecorder()
	ui.Handler(t.Context(), l).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/api/explain?"+url.Values{"from": {from}, "to": {to}}.Encode(), nil))
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Fatalf("page: %s: %v", w.Body, err)
	}
	texts := func(answers []*explain.Answer) (list []string) {
		for _, a := range answers {
			list = append(list, strings.TrimSuffix(fmt.Sprintf("%v: %s; %s", a.Verdict, a.Because, a.Remedy), "; "))
		}
		return list
	}
	return texts(answers), texts(body.Answers)
}

// questions are those about the dump whose answers depend on the client.
var questions = [][2]string{
	{"outside", "172.16.0.1:30080"}, {"pod/default/client-0", "svc/default/local"}, {"198.51.100.7", "203.0.113.9:80"}, {"10.1.2.3", "203.0.113.9:80"},
}

// ways returns the findings about a Service by each way to look at it.
func (l *looked) ways(t *testing.T, name state.ServiceName) map[string][]string {
	t.Helper()
	ways := map[string][]string{"lab": sentences((&view{findings: l.lab}).byService()[name]), "explain": l.explained(t, name)}
	if l.handed != nil {
		ways["explain --lab"] = l.handed.explained(t, name)
	}

	row, err := adminconv.ToService(adminconv.FromService(l.View().Service(name)).GetService())
	if err != nil {
		t.Fatal(err)
	}
	ways["get"] = sentences(row.Findings)

	var page struct {
		Service *nodeview.Service `json:"service"`
	}
	w := httptest.NewRecorder()
	ui.Handler(t.Context(), l).ServeHTTP(w, httptest.NewRequest("GET", "http://localhost/api/service?key="+url.QueryEscape(name.String()), nil))
	if err := json.Unmarshal(w.Body.Bytes(), &page); err != nil || page.Service == nil {
		t.Fatalf("%v: page: %s", name, w.Body)
	}
	ways["page"] = sentences(page.Service.Findings)
	return ways
}

// TestOneDiagnosis: the lab, explain, explain --lab, get and the page say the same of each Service. testdata/diagnosis.txt has it in one table.
func TestOneDiagnosis(t *testing.T) {
	var table strings.Builder
	for _, file := range []string{"twelve-broken", "handwritten-endpoints", "dump", "slices-fqdn", "broken-references", "elsewhere", "ranges-of-one-family", "selandep", "skipmirror", "leader"} {
		path := filepath.Join("testdata", "diagnosis", file+".yaml")
		look := inLab
		if file == "dump" || file == "slices-fqdn" {
			look = inDump
		}
		l := look(t, path)
		fmt.Fprintf(&table, "== %s\n", file)
		for _, name := range l.store.ServiceNames() {
			ways := l.ways(t, name)
			fmt.Fprintf(&table, "%v: lab, explain, get, page\n", name)
			for way, got := range ways {
				if d := cmp.Diff(ways["lab"], got); d != "" {
					t.Errorf("%s: Service %v: -lab +%s:\n%s", file, name, way, d)
				}
			}
			for _, f := range (&view{findings: l.lab}).byService()[name] {
				fmt.Fprintf(&table, "  %s %s: %v\n", f.Severity, f.Reason, &f)
			}
		}
		if file == "dump" {
			for _, q := range questions {
				explained, page := l.asked(t, q[0], q[1])
				if d := cmp.Diff(explained, page); d != "" {
					t.Errorf("%s to %s: -explain +page:\n%s", q[0], q[1], d)
				}
				fmt.Fprintf(&table, "%s to %s: explain, page\n  %s\n", q[0], q[1], strings.Join(explained, "\n  "))
			}
		}
		for _, f := range l.lab {
			if f.Object.Kind != "Service" {
				fmt.Fprintf(&table, "%v: lab\n  %s %s: %v\n", f.Object, f.Severity, f.Reason, &f)
			}
		}
	}
	golden := filepath.Join("testdata", "diagnosis.txt")
	if *update {
		if err := os.WriteFile(golden, []byte(table.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(strings.Split(string(want), "\n"), strings.Split(table.String(), "\n")); d != "" {
		t.Errorf("%s (-want +got); go test -run TestOneDiagnosis -update writes it:\n%s", golden, d)
	}
}

// TestDiagnosisOfAProxy: a proxy knows neither pods nor selectors, and still has the same reason and text for each port without endpoints.
func TestDiagnosisOfAProxy(t *testing.T) {
	for _, file := range []string{"twelve-broken", "handwritten-endpoints"} {
		l := inLab(t, filepath.Join("testdata", "diagnosis", file+".yaml"))
		for _, f := range l.lab {
			if f.Severity != diagnosis.Fault || f.Object.Kind != "Service" {
				continue
			}
			bare := &nodeview.View{Store: l.store}
			row := bare.Service(state.ServiceName{Namespace: f.Object.Namespace, Name: f.Object.Name})
			if !slices.ContainsFunc(row.Findings, func(g diagnosis.Finding) bool { return g.Reason == f.Reason && g.Text == f.Text }) {
				t.Errorf("%v: the proxy finds %v, want %s: %s", f.Object, row.Findings, f.Reason, f.Text)
			}
		}
	}
}

// TestNothingIsFoundInSamples: the sample manifests of this repository have no faults. The one warning is on purpose.
func TestNothingIsFoundInSamples(t *testing.T) {
	const newsletter = "NoEndpoints: the Service has no endpoints: its selector app=newsletter matches only Deployment shop/newsletter, which has 0 replicas; scale it to at least 1 replica"
	for path, want := range map[string][]string{
		"../examples/shop":          {newsletter},
		"../examples/canary":        nil,
		"../examples/zones":         nil,
		"../examples/hash":          nil,
		"../examples/black-hole":    nil,
		"../examples/slow-endpoint": nil,
		"../examples/rtp-range":     nil,
		"../examples/edge":          nil,
		"../deploy/kustomize/base":  nil,
		"../deploy/kustomize/relay": nil,
		inputsOfTestdata(t):         nil,
	} {
		set, err := inputs.New(inputs.Options{Paths: files(t, path)})
		if err != nil {
			t.Fatal(err)
		}
		found := slices.DeleteFunc(ofCluster(t, set.Load()).lab, func(f diagnosis.Finding) bool { return f.Severity == diagnosis.Remark })
		if d := cmp.Diff(want, sentences(found)); d != "" {
			t.Errorf("%s (-want +got):\n%s", path, d)
		}
	}
}

// files are the manifests below a directory, without what describes a Kustomize directory.
func files(t *testing.T, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".yaml" && !manifest.IsKustomization(path) {
			list = append(list, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// inputsOfTestdata puts the manifests of the stories about inputs into a directory.
func inputsOfTestdata(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	stories, err := filepath.Glob("inputs/testdata/*.txtar")
	if err != nil || len(stories) == 0 {
		t.Fatalf("%d stories: %v", len(stories), err)
	}
	for i, story := range stories {
		archive, err := txtar.ParseFile(story)
		if err != nil {
			t.Fatal(err)
		}
		for j, f := range archive.Files {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d-%d.yaml", i, j)), f.Data, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}
