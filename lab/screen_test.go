//go:build linux

package lab

import (
	"strings"
	"testing"
)

// TestTheLastColumnIsKept: on a terminal, a row is as wide as the table, so nothing may be cleared behind it. The summary stays when
// the table goes, and long remarks are wrapped.
func TestTheLastColumnIsKept(t *testing.T) {
	var out strings.Builder
	s := newScreen(Options{Out: &out, Size: func() (int, int) { return 100, 40 }})
	v := &view{inputs: "app", results: testResults(), warnings: []string{strings.Repeat("long remark ", 20)}}
	s.progress("starting")
	s.show(v, true)
	if n := strings.Count(out.String(), "\x1b[K"); n > 0 {
		t.Errorf("%d lines are cleared to the right of what they show", n)
	}
	for line := range strings.SplitSeq(out.String(), "\r\n") {
		if plain := strings.TrimPrefix(line, "\x1b[2K"); strings.HasSuffix(plain, "remark") && len(plain) > 100 {
			t.Errorf("a remark is cut: %q", plain)
		}
	}
	out.Reset()
	s.close()
	if _, after, ok := strings.Cut(out.String(), "\x1b[?1049l"); !ok || !strings.Contains(after, "switchyard lab  app") || !strings.Contains(after, "paths are") {
		t.Errorf("what stays is %q", out.String())
	}
}
