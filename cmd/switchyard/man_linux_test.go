package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestManPages: each command has a man page that a formatter takes without a complaint, and its flags are in it.
func TestManPages(t *testing.T) {
	dir := t.TempDir()
	if out, err := exec.Command("switchyard", "manual", dir).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pages, err := filepath.Glob(filepath.Join(dir, "man1", "*.1"))
	if err != nil || len(pages) < 12 {
		t.Fatalf("%d pages, %v", len(pages), err)
	}
	read := func(name string) string {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	if page := read("man1/switchyard-explain.1"); !strings.Contains(page, `.B \-\-kubeconfig string`) || !strings.Contains(page, "switchyard(1)") {
		t.Errorf("the page of explain:\n%s", page)
	}
	if page := read("man1/switchyard-bench-dataplanes.1"); !strings.Contains(page, `.B \-\-services ints`) || !strings.Contains(page, "switchyard\\-bench(1)") {
		t.Errorf("the page of a command of switchyard-lab:\n%s", page)
	}
	for _, name := range []string{"switchyard.bash", "_switchyard", "switchyard.fish"} {
		if !strings.Contains(read("completions/"+name), "switchyard") {
			t.Errorf("completion %s is empty", name)
		}
	}
	if page := read("commands.md"); !strings.Contains(page, "\n## switchyard config convert\n") || !strings.Contains(page, "--dry-run") ||
		!strings.Contains(page, "\n## switchyard bench dataplanes\n") || !strings.Contains(page, "Usage:\n  switchyard lab [PATH...]") {
		t.Errorf("the page of all commands:\n%s", page)
	}
	groff, err := exec.LookPath("groff")
	if err != nil {
		t.Log("groff is not there: the pages were not formatted")
		return
	}
	for _, p := range pages {
		if out, err := exec.Command(groff, "-man", "-Tutf8", "-ww", "-z", p).CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", filepath.Base(p), err, out)
		}
	}
}
