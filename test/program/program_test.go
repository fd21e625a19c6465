//go:build linux

package program

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTail checks that a long log is cut, but never what a program has crashed with.
func TestTail(t *testing.T) {
	for name, c := range map[string]struct {
		log     string
		has     []string
		without string
	}{
		"short":      {"a\nb\n", []string{"a\nb\n"}, "[...]"},
		"long":       {"first\n" + strings.Repeat("line\n", 2000) + "last\n", []string{"line\nlast\n"}, "first"},
		"crash":      {"first\nfatal error: x\n" + strings.Repeat("goroutine\n", 2000) + "last\n", []string{"fatal error: x\ngoroutine\n", "\n[...]\n", "\nlast\n"}, "first"},
		"not at all": {strings.Repeat("a fatal error: x\n", 2000), []string{"x\n"}, "[...]"},
	} {
		path := filepath.Join(t.TempDir(), "log")
		if err := os.WriteFile(path, []byte(c.log), 0o600); err != nil {
			t.Fatal(err)
		}
		got := Tail(path)
		for _, want := range c.has {
			if !strings.Contains(got, want) {
				t.Errorf("%s: %q is missing in %q", name, want, got)
			}
		}
		if strings.Contains(got, c.without) {
			t.Errorf("%s: there is %q in %q", name, c.without, got)
		}
	}
	if got := Tail(filepath.Join(t.TempDir(), "log")); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}
