package file

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/internal/manifest"
	"github.com/switchyard-net/switchyard/model"
	vocabulary "github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/await"
)

// service renders a Service; ports tell its versions apart.
func service(name string, port int) string {
	return fmt.Sprintf("---\napiVersion: v1\nkind: Service\nmetadata: {name: %s}\nspec: {clusterIP: 10.0.0.1, ports: [{port: %d}]}\n", name, port)
}

// files are real files in a directory.
type files struct {
	t   *testing.T
	dir string
}

// lab is a source that runs on real files, and its output.
type lab struct {
	*files
	grace   time.Duration
	source  *Source
	updates chan update
	logs    chan string
}

type update struct {
	set, deleted []string
	complete     bool
}

func (l *lab) Update(set []model.Object, deleted []model.Ref) {
	var u update
	for _, o := range set {
		text := o.Ref().String()
		if s, ok := o.(*model.Service); ok {
			text = fmt.Sprintf("%s:%d", s.Name.Name, s.Ports[0].Port)
		}
		u.set = append(u.set, text)
	}
	for _, ref := range deleted {
		u.deleted = append(u.deleted, ref.Name)
	}
	slices.Sort(u.set)
	slices.Sort(u.deleted)
	l.updates <- u
}

func (l *lab) Complete() { l.updates <- update{complete: true} }

// handler sends the log to a channel.
type handler struct {
	slog.Handler
	logs chan string
}

func (h handler) Enabled(context.Context, slog.Level) bool { return true }

func (h handler) Handle(_ context.Context, r slog.Record) error {
	text := r.Level.String() + " " + r.Message
	r.Attrs(func(a slog.Attr) bool { text += " " + a.String(); return true })
	h.logs <- text
	return nil
}

func newLab(t *testing.T) *lab {
	dir := filepath.Join(t.TempDir(), "manifests")
	l := &lab{files: &files{t, dir}, updates: make(chan update, 100), logs: make(chan string, 1000)}
	l.check(os.Mkdir(dir, 0o755))
	return l
}

// run starts the source on path below the directory and expects its first full set.
func (l *lab) run(path string, want ...string) {
	l.t.Helper()
	var err error
	l.source, err = New(Options{Path: filepath.Join(l.dir, path), Grace: l.grace, Logger: slog.New(handler{slog.DiscardHandler, l.logs})})
	l.check(err)
	ctx, cancel := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := l.source.Run(ctx, l); err != nil {
			l.t.Error(err)
		}
	})
	l.t.Cleanup(func() { cancel(); done.Wait() })
	if len(want) > 0 {
		l.expect(want, nil)
	}
	if u := l.next(); !u.complete {
		l.t.Fatalf("want completion, got %+v", u)
	}
}

func (f *files) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *files) path(name string) string { return filepath.Join(f.dir, name) }

func (f *files) write(name string, text ...string) {
	f.t.Helper()
	f.check(os.MkdirAll(filepath.Dir(f.path(name)), 0o755))
	f.check(os.WriteFile(f.path(name), []byte(strings.Join(text, "")), 0o644))
}

// replace writes a temporary file and renames it over name, as editors do.
func (f *files) replace(name string, text ...string) {
	f.t.Helper()
	f.write(name+".tmp~", text...)
	f.check(os.Rename(f.path(name+".tmp~"), f.path(name)))
}

func (f *files) remove(name string) {
	f.t.Helper()
	f.check(os.RemoveAll(f.path(name)))
}

func (l *lab) next() update {
	l.t.Helper()
	return await.Receive(l.t, "an update comes", l.updates, func() any { return l.source.Problems() })
}

func (l *lab) expect(set, deleted []string) {
	l.t.Helper()
	want, got := update{set: set, deleted: deleted}, l.next()
	if diff := gocmp.Diff(want, got, gocmp.AllowUnexported(update{})); diff != "" {
		l.t.Fatalf("want (-), got (+):\n%s", diff)
	}
}

// expectLog waits for a message that contains text.
func (l *lab) expectLog(text string) {
	l.t.Helper()
	for !strings.Contains(await.Receive(l.t, "the log has "+text, l.logs), text) {
	}
}

// expectProblems checks the current problems. Paths are relative to the directory.
func (l *lab) expectProblems(want ...string) {
	l.t.Helper()
	var got []string
	for _, p := range l.source.Problems() {
		got = append(got, strings.ReplaceAll(p.Error(), l.dir+"/", ""))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		l.t.Fatalf("want (-), got (+):\n%s", diff)
	}
}

func TestFollowsFiles(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", service("a", 1), service("b", 1))
	l.write("sub/c.json", `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}`)
	l.write("sub/.hidden/d.yaml", service("hidden", 1))
	l.write(".hidden.yaml", service("hidden", 1))
	l.write("readme.txt", "not a manifest")
	l.run("", "Node n", "a:1", "b:1")

	l.write("a.yaml", service("a", 2), service("b", 1))
	l.expect([]string{"a:2"}, nil)
	l.replace("a.yaml", service("a", 3))
	l.expect([]string{"a:3"}, []string{"b"})
	l.write("new.yml", service("c", 1))
	l.expect([]string{"c:1"}, nil)
	l.check(os.Rename(l.path("new.yml"), l.path("moved.yml")))
	l.write("deep/down/below/e.yaml", service("e", 1)) // all that changes at once comes at once
	l.expect([]string{"e:1"}, nil)
	l.write("deep/down/below/e.yaml", service("e", 2))
	l.expect([]string{"e:2"}, nil)
	l.remove("sub")
	l.expect(nil, []string{"n"})
	l.remove("deep")
	l.expect(nil, []string{"e"})
	l.write("deep/down/below/e.yaml", service("e", 3)) // perhaps under the inodes of before
	l.expect([]string{"e:3"}, nil)
	l.write("deep/down/below/e.yaml", service("e", 4))
	l.expect([]string{"e:4"}, nil)
	// A directory that vanishes only briefly is watched again when it is back.
	l.check(os.Rename(l.path("deep"), l.path("../away")))
	l.check(os.Rename(l.path("../away"), l.path("deep")))
	l.write("a.yaml", service("a", 4))
	l.expect([]string{"a:4"}, nil)
	l.write("deep/down/below/e.yaml", service("e", 5))
	l.expect([]string{"e:5"}, nil)
	l.write("deep/f.yaml", service("f", 1))
	l.expect([]string{"f:1"}, nil)
	l.replace("a.yaml", "")
	l.expect(nil, []string{"a"})
	l.expectProblems()
}

// TestConfigMap takes the steps of kubelet's AtomicWriter: files are links through ..data, which is swapped by a rename.
func TestConfigMap(t *testing.T) {
	for title, path := range map[string]string{"directory": "", "file": "app.yaml"} {
		t.Run(title, func(t *testing.T) {
			l := newLab(t)
			l.write("..2026_01_01_00_00_00.1/app.yaml", service("a", 1))
			l.check(os.Symlink("..2026_01_01_00_00_00.1", l.path("..data")))
			l.check(os.Symlink("..data/app.yaml", l.path("app.yaml")))
			l.run(path, "a:1")
			for i := 2; i < 5; i++ {
				dir := fmt.Sprintf("..2026_01_01_00_00_00.%d", i)
				l.write(dir+"/app.yaml", service("a", i))
				l.check(os.Symlink(dir, l.path("..data_tmp")))
				l.check(os.Rename(l.path("..data_tmp"), l.path("..data")))
				l.remove(fmt.Sprintf("..2026_01_01_00_00_00.%d", i-1))
				l.expect([]string{fmt.Sprintf("a:%d", i)}, nil)
			}
			l.expectProblems()
		})
	}
}

func TestBrokenEdit(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", service("a", 1), service("b", 1))
	l.write("z.yaml", service("z", 1))
	l.run("", "a:1", "b:1", "z:1")

	l.write("a.yaml", service("a", 2), service("b", 70000), service("c", 1), "  x: {\n")
	l.expectLog("ERROR invalid manifest")
	l.expectProblems(
		"a.yaml:10:44: Service b: spec.ports[0].port: must be a number from 1 to 65535, got 70000",
		"a.yaml:16: not valid YAML: did not find expected key",
	)
	// Others go on, and the broken file reports nothing new about it.
	l.write("z.yaml", service("z", 2))
	l.expect([]string{"z:2"}, nil)
	l.write("a.yaml", service("a", 2), service("b", 2))
	l.expect([]string{"a:2", "b:2"}, nil)
	l.expectLog("INFO manifest is valid again file=" + l.path("a.yaml"))
	l.expectProblems()
	// To fix a file by taking the edit back changes no object.
	l.write("a.yaml", "nonsense")
	l.expectLog("ERROR")
	l.write("a.yaml", service("a", 2), service("b", 2))
	l.expectLog("INFO manifest is valid again")
	// The objects of a broken file that vanishes are still withdrawn.
	l.write("a.yaml", "nonsense")
	l.expectLog("ERROR")
	l.remove("a.yaml")
	l.expect(nil, []string{"a", "b"})
	l.expectProblems()
}

func TestBrokenFromTheStart(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", service("a", 1), service("b", 0))
	l.run("", "a:1")
	l.expectProblems("a.yaml:10:44: Service b: spec.ports[0].port: must be a number from 1 to 65535, got 0")
	// It has said something now, which another broken edit does not change.
	l.write("a.yaml", service("a", 2), service("b", -1))
	l.expectLog("got -1")
	l.write("a.yaml", service("a", 3), service("b", 3))
	l.expect([]string{"a:3", "b:3"}, nil)
}

// TestLogsOnce checks that a problem is logged when it appears and not each time the files are read.
func TestLogsOnce(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", "nonsense")
	l.write("b.yaml", service("b", 1), strings.ReplaceAll(service("c", 1), "clusterIP: 10.0.0.1, ", ""))
	l.run("", "b:1", "c:1")
	l.write("b.yaml", service("b", 2), strings.ReplaceAll(service("c", 2), "clusterIP: 10.0.0.1, ", ""))
	l.expect([]string{"b:2", "c:2"}, nil)
	var got []string
	for len(l.logs) > 0 {
		got = append(got, strings.ReplaceAll(<-l.logs, l.dir+"/", ""))
	}
	slices.Sort(got)
	want := []string{
		`ERROR invalid manifest error=a.yaml:1:1: is no manifest: it has "nonsense" in place of an object with apiVersion and kind`,
		`WARN service has no spec.clusterIP: it gets no address outside a cluster; add one or use switchyard lab service=default/c file=b.yaml line=7`,
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestEndpointsAreNoticed: Endpoints that only a cluster would make EndpointSlices of are logged, once, and are no fault.
func TestEndpointsAreNoticed(t *testing.T) {
	object := func(meta string) string {
		return "---\napiVersion: v1\nkind: Endpoints\nmetadata: {" + meta + "}\nsubsets: [{addresses: [{ip: 192.0.2.7}], ports: [{port: 80}]}]\n"
	}
	l := newLab(t)
	rest := object("name: a") + object("name: b, labels: {endpointslice.kubernetes.io/skip-mirror: 'true'}") +
		object("name: c, annotations: {control-plane.alpha.kubernetes.io/leader: '{}'}") + object("name: d") +
		"---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: d-1, labels: {kubernetes.io/service-name: d}}\naddressType: IPv4\n"
	l.write("a.yaml", service("a", 1), rest)
	l.run("", "EndpointSlice default/d-1", "a:1")
	l.expectProblems()
	l.write("a.yaml", service("a", 2), rest)
	l.expect([]string{"a:2"}, nil)
	var got []string
	for len(l.logs) > 0 {
		got = append(got, strings.ReplaceAll(<-l.logs, l.dir+"/", ""))
	}
	if len(got) != 1 || !strings.HasPrefix(got[0], "WARN Endpoints have no effect outside a cluster") || !strings.HasSuffix(got[0], "service=default/a file=a.yaml line=7") {
		t.Errorf("logged %q", got)
	}
}

func TestSameObjectTwice(t *testing.T) {
	l := newLab(t)
	l.write("b.yaml", service("x", 2))
	l.run("", "x:2")
	l.write("c.yaml", service("x", 3))
	l.expectLog("ERROR")
	l.expectProblems("c.yaml:2: Service default/x: is also at b.yaml:2, which takes precedence: remove one of the two")
	l.write("a.yaml", service("x", 1), service("x", 9))
	l.expect([]string{"x:1"}, nil)
	l.expectProblems(
		"a.yaml:7: Service default/x: is also at a.yaml:2, which takes precedence: remove one of the two",
		"b.yaml:2: Service default/x: is also at a.yaml:2, which takes precedence: remove one of the two",
		"c.yaml:2: Service default/x: is also at a.yaml:2, which takes precedence: remove one of the two",
	)
	l.remove("a.yaml")
	l.expect([]string{"x:2"}, nil)
	l.remove("b.yaml")
	l.expect([]string{"x:3"}, nil)
	l.expectProblems()
	l.remove("c.yaml")
	l.expect(nil, []string{"x"})
}

func TestPathVanishes(t *testing.T) {
	for title, path := range map[string]string{"directory": "", "file": "a.yaml"} {
		t.Run(title, func(t *testing.T) {
			l := newLab(t)
			l.write("a.yaml", service("a", 1), service("b", 1))
			l.run(path, "a:1", "b:1")
			for i := 2; i < 4; i++ {
				l.check(os.RemoveAll(l.path(path)))
				l.expectLog("keeping last known good configuration")
				if n := len(l.source.Problems()); n != 1 {
					t.Fatalf("%d problems", n)
				}
				l.write("a.yaml.new", service("a", i))
				l.check(os.Rename(l.path("a.yaml.new"), l.path("a.yaml")))
				if i == 2 {
					l.expect([]string{"a:2"}, []string{"b"})
				} else {
					l.expect([]string{"a:3"}, nil)
				}
				l.expectLog("valid again")
				l.expectProblems()
			}
		})
	}
}

// TestUnreadable checks that an existing file that cannot be read keeps its objects.
func TestUnreadable(t *testing.T) {
	l := newLab(t)
	l.write("a.yaml", service("a", 1))
	l.run("", "a:1")
	l.check(os.Symlink("nowhere", l.path("link")))
	l.check(os.Rename(l.path("link"), l.path("a.yaml")))
	l.expectLog("ERROR")
	l.expectProblems("a.yaml: cannot be read: it is a link to a file that does not exist")
	l.write("nowhere", service("a", 2))
	l.expect([]string{"a:2"}, nil)
	l.check(os.WriteFile(filepath.Join(l.dir, "../outside.yaml"), []byte(service("a", 3)), 0o644))
	l.check(os.Symlink("../outside.yaml", l.path("link")))
	l.check(os.Rename(l.path("link"), l.path("a.yaml")))
	l.expectLog("ERROR")
	l.expectProblems("a.yaml: cannot be read: path escapes from parent")
	// The fault is fixed even if the content is the same as before.
	l.replace("a.yaml", service("a", 2))
	l.expectLog("valid again")
	l.expectProblems()
}

// TestUnreadableDirectory checks that files keep their objects while the directory above them cannot be listed.
func TestUnreadableDirectory(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"sub/a.yaml", "subway.yaml"} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(service("s", 1)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	tree, err := manifest.OpenTree(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer tree.Close()
	s := newState(slog.New(slog.DiscardHandler), 0)
	s.update(tree, time.Now())
	s.update(&manifest.Tree{Unreadable: map[string]error{filepath.Join(dir, "sub"): os.ErrPermission}}, time.Now())
	if got := slices.Collect(maps.Keys(s.files)); len(got) != 1 || got[0] != filepath.Join(dir, "sub/a.yaml") {
		t.Errorf("only the file in the directory should be left, got %v", got)
	}
	if got := s.problems(); len(got) != 1 || got[0] != os.ErrPermission {
		t.Errorf("want the directory's error, got %v", got)
	}
}

// TestDefaults checks the defaults that the API server would have filled in.
func TestDefaults(t *testing.T) {
	claims, _, problems := read("f.yaml", []byte(`
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: s}
addressType: IPv4
ports: [{port: 80}]
`))
	if len(claims) != 1 || len(problems) > 0 {
		t.Fatal(claims, problems)
	}
	want := &model.EndpointSlice{
		Namespace: "default", Name: "s", Family: vocabulary.IPv4, Ports: []model.EndpointPort{{Port: 80, Protocol: vocabulary.TCP}},
	}
	if diff := gocmp.Diff(want, claims[0].object); diff != "" {
		t.Errorf("want (-), got (+):\n%s", diff)
	}
}

// TestRelativePath checks that events are understood however the path is written.
func TestRelativePath(t *testing.T) {
	for _, path := range []string{".", "./", "../manifests", "a.yaml", "./a.yaml"} {
		t.Run(path, func(t *testing.T) {
			l := newLab(t)
			t.Chdir(l.dir)
			l.write("a.yaml", service("a", 1))
			l.dir = ""
			l.run(path, "a:1")
			l.replace("a.yaml", service("a", 2))
			l.expect([]string{"a:2"}, nil)
		})
	}
}

func TestNewErrors(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"empty", "dangling"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("nowhere", filepath.Join(dir, "dangling/a.yaml")); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"":          "no path: name a manifest or a directory of manifests",
		"/missing":  "/missing: cannot be read: no such file or directory",
		"/empty":    "/empty: there is no manifest in this directory: put files named *.yaml, *.yml or *.json there",
		"/dangling": "/dangling/a.yaml: cannot be read: it is a link to a file that does not exist",
	} {
		if path != "" {
			path = dir + path
		}
		_, err := New(Options{Path: path})
		if got := strings.TrimPrefix(fmt.Sprint(err), dir); got != want {
			t.Errorf("%s: want %s, got %s", path, want, got)
		}
	}
}

// TestSettle checks how long events are waited for: until they pause, and not for ever.
func TestSettle(t *testing.T) {
	for title, c := range map[string]struct{ every, want time.Duration }{
		"pause":   {time.Hour, quiet},
		"no end":  {quiet / 2, longest},
		"at last": {quiet + 1, quiet},
	} {
		synctest.Test(t, func(t *testing.T) {
			w := &watcher{changed: make(chan struct{}, 1)}
			stop := make(chan struct{})
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(c.every):
						select {
						case w.changed <- struct{}{}:
						default:
						}
					}
				}
			}()
			start := time.Now()
			if !w.awaitQuiet(t.Context()) {
				t.Errorf("%s: did not settle", title)
			}
			if took := time.Since(start); took != c.want {
				t.Errorf("%s: want %v, took %v", title, c.want, took)
			}
			close(stop)
		})
	}
}
