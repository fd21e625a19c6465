package toptest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/charmbracelet/x/ansi"
	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// Screens compares what is on terminals of some widths with testdata/screens.txtar, or writes that file. Each screen has a name and the keys
// that are pressed before. text is what the file has of a line. No screen may have more lines than the terminal, and no line more columns.
func Screens(t *testing.T, write bool, height int, widths []int, named [][2]string, screen func(width int, keys string) string, text func(string) string) {
	t.Helper()
	path := filepath.Join("testdata", "screens.txtar")
	want, err := txtar.ParseFile(path)
	if err != nil && !write {
		t.Fatal(err)
	}
	got := &txtar.Archive{Comment: fmt.Appendf(nil, "Screens of terminals of %d lines. The test writes this file again with -run TestScreens -update.\n", height)}
	for _, width := range widths {
		for _, n := range named {
			lines := strings.Split(screen(width, n[1]), "\n")
			for i, line := range lines {
				if n := ansi.StringWidth(line); n > width {
					t.Errorf("%d columns: a line has %d: %s", width, n, line)
				}
				lines[i] = text(line)
			}
			if len(lines) > height {
				t.Errorf("%d columns, %s: %d lines", width, n[0], len(lines))
			}
			got.Files = append(got.Files, txtar.File{Name: fmt.Sprintf("%d columns: %s", width, n[0]), Data: []byte(strings.Join(lines, "\n") + "\n")})
		}
	}
	if write {
		if err := os.WriteFile(path, txtar.Format(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if d := cmp.Diff(strings.Split(string(txtar.Format(want)), "\n"), strings.Split(string(txtar.Format(got)), "\n")); d != "" {
		t.Errorf("screens (-want +got):\n%s", d)
	}
}
