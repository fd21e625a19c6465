package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func namespace(name string) string {
	return "apiVersion: v1\nkind: Namespace\nmetadata: {name: " + name + "}\n"
}

// TestLoad checks which files of a directory are read, and in which order.
func TestLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dir")
	for name, text := range map[string]string{
		"b.yaml": namespace("b"), "a.yml": namespace("a"), "sub/c.json": `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"c"}}`,
		"sub.yaml/d.yaml": namespace("d"), ".hidden.yaml": namespace("hidden"), ".git/e.yaml": namespace("hidden"), "notes.txt": "x: [",
		"..data_1/f.yaml": namespace("f"), "broken.yaml": "kind: Namespace\n", "../outside.yaml": namespace("outside"),
	} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for link, target := range map[string]string{
		"..data": "..data_1", "f.yaml": "..data/f.yaml", "linked.yaml": "sub", "loop": ".", "out.yaml": "../outside.yaml", "nowhere.yaml": "x",
	} {
		if err := os.Symlink(target, filepath.Join(dir, link)); err != nil {
			t.Fatal(err)
		}
	}
	for path, want := range map[string]string{
		dir: `a.yml:1: Namespace a
b.yaml:1: Namespace b
f.yaml:1: Namespace f
sub.yaml/d.yaml:1: Namespace d
sub/c.json:1: Namespace c
error: broken.yaml:1:1: Namespace: apiVersion: is missing: every document needs apiVersion and kind
error: nowhere.yaml: cannot be read: it is a link to a file that does not exist
error: out.yaml: cannot be read: path escapes from parent
`,
		dir + "/../outside.yaml": "../outside.yaml:1: Namespace outside\n",
		dir + "/b.yaml":          "b.yaml:1: Namespace b\n",
		dir + "/none":            "error: none: cannot be read: no such file or directory\n",
		dir + "/.git/none":       "error: .git/none: cannot be read: no such file or directory\n",
		"/dev/null":              "error: /dev/null: cannot be read: it is a device: put a regular file in its place\n",
	} {
		got := strings.ReplaceAll(report(Load(path)), dir+"/", "")
		got = strings.ReplaceAll(got, filepath.Dir(dir)+"/outside", "../outside")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: want (-), got (+):\n%s", path, diff)
		}
	}
	empty := t.TempDir()
	if got := report(Load(empty)); !strings.Contains(got, empty+": there is no manifest in this directory") {
		t.Errorf("empty directory: %s", got)
	}
}
