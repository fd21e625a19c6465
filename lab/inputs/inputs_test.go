package inputs

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// The names under which this program is called to build a directory, and to wait until its standard input ends.
const builder, idler = "build", "idle"

func TestMain(m *testing.M) {
	var err error
	switch os.Args[0] {
	case builder:
		err = Build(os.Args[1], os.Stdout)
	case idler:
		_, err = io.Copy(io.Discard, os.Stdin)
	default:
		os.Exit(m.Run())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func buildCommand(dir string) *exec.Cmd {
	return &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{builder, dir}, Env: []string{"GORACE=atexit_sleep_ms=0"}, // the race detector sleeps for a second at exit
	}
}

// TestStories: each archive has the files of somebody, the arguments with which they are read, and what comes of it.
func TestStories(t *testing.T) {
	stories, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(stories) == 0 {
		t.Fatal("no stories", err)
	}
	for _, name := range stories {
		archive, err := txtar.ParseFile(name)
		if err != nil {
			t.Fatal(err)
		}
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txtar"), func(t *testing.T) {
			t.Chdir(t.TempDir())
			var args []string
			var stdin, want string
			for _, f := range archive.Files {
				switch f.Name {
				case "args":
					args = strings.Fields(string(f.Data))
				case "stdin":
					stdin = string(f.Data)
				case "want":
					want = string(f.Data)
				default:
					write(t, f.Name, f.Data)
				}
			}
			s, err := New(Options{Paths: args, Stdin: strings.NewReader(stdin), Command: buildCommand})
			if err != nil {
				t.Fatal(err)
			}
			here, err := filepath.EvalSymlinks(".")
			if err == nil {
				here, err = filepath.Abs(here)
			}
			if err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(describe(s.Load()), here+"/", "/HERE/")
			if diff := gocmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
				t.Errorf("want (-), got (+):\n%s", diff)
			}
		})
	}
}

func write(t *testing.T, name string, data []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
		t.Fatal(err)
	}
	if link, ok := strings.CutPrefix(string(data), "link to "); ok {
		if err := os.Symlink(strings.TrimSpace(link), name); err != nil {
			t.Fatal(err)
		}
		return
	}
	if err := os.WriteFile(name, data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// describe writes down what was loaded, a line for each object, note and error.
func describe(l *Loaded) string {
	var b strings.Builder
	for _, o := range l.Objects {
		m := o.(metav1.Object)
		b.WriteString(l.place(l.objects[o]) + ": " + o.GetObjectKind().GroupVersionKind().Kind + " " + cmp.Or(m.GetNamespace(), "-") + "/" + m.GetName() + "\n")
	}
	for _, n := range l.Notes {
		b.WriteString("note: " + n + "\n")
	}
	for _, err := range l.Errs {
		b.WriteString("error: " + err.Error() + "\n")
	}
	return b.String()
}

// TestKustomizeIsBuiltAgainAfterAChange: of any of the files that it is made of, and only then.
func TestKustomizeIsBuiltAgainAfterAChange(t *testing.T) {
	t.Chdir(t.TempDir())
	service := func(port string) []byte {
		return []byte("apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec: {ports: [{port: " + port + "}]}\n")
	}
	write(t, "base/kustomization.yaml", []byte("resources: [web.yaml]\n"))
	write(t, "base/web.yaml", service("80"))
	write(t, "test/kustomization.yaml", []byte("resources: [../base]\nnamespace: test\n"))
	s, err := New(Options{Paths: []string{"test"}, Command: buildCommand})
	if err != nil {
		t.Fatal(err)
	}
	first := s.Load()
	if got := describe(first); got != "test: Service test/web\n" {
		t.Fatal(got)
	}
	built := s.builds["test"]
	if s.Load(); s.builds["test"] != built {
		t.Error("it was built again without a change")
	}
	write(t, "base/web.yaml", service("many"))
	if err := os.Chtimes("base/web.yaml", time.Time{}, time.Now().Add(time.Second)); err != nil {
		t.Fatal(err)
	}
	if got := describe(s.Load()); !strings.HasPrefix(got, `error: test: Service test/web: spec.ports[0].port: must be a number`) {
		t.Errorf("after a change of the base: %s", got)
	}
	if err := os.Remove("base/web.yaml"); err != nil {
		t.Fatal(err)
	}
	if got := describe(s.Load()); !strings.Contains(got, "cannot be built by Kustomize") {
		t.Errorf("without the base's file: %s", got)
	}
	write(t, "base/web.yaml", service("81"))
	if got := describe(s.Load()); got != "test: Service test/web\n" {
		t.Errorf("with the file back: %s", got)
	}
}

// TestNames: a path given twice is read once, and - is named as what it is.
func TestNames(t *testing.T) {
	s, err := New(Options{Paths: []string{"a", "./a", "-"}, Stdin: strings.NewReader("")})
	if err != nil {
		t.Fatal(err)
	}
	if got := s.String(); got != "a, standard input" {
		t.Error(got)
	}
	if !s.Followed() {
		t.Error("a can be edited")
	}
	if only, _ := New(Options{Paths: []string{"-"}, Stdin: strings.NewReader("")}); only.Followed() {
		t.Error("standard input has ended")
	}
	if !slices.Equal(s.paths, []string{"a", "-"}) {
		t.Error(s.paths)
	}
}

// TestNamespace: objects that name no namespace get the given one, others keep theirs, and those that are in none stay so.
func TestNamespace(t *testing.T) {
	text := "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n---\napiVersion: v1\nkind: Service\nmetadata: {name: b, namespace: own}\n---\n" +
		"apiVersion: v1\nkind: Namespace\nmetadata: {name: own}\n"
	s, err := New(Options{Paths: []string{Stdin}, Stdin: strings.NewReader(text), Namespace: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range s.Load().Objects {
		m := o.(metav1.Object)
		got = append(got, m.GetNamespace()+"/"+m.GetName())
	}
	if want := []string{"shop/a", "own/b", "/own"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
