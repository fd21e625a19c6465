package cli

import "testing"

func TestRoff(t *testing.T) {
	for text, want := range map[string]string{
		"a-b": `a\-b`, `C:\x`: `C:\ex`, ".hidden": `\&.hidden`, "a\n'quoted'": "a\n\\&'quoted'", "1.5": "1.5",
	} {
		if got := roff(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
}
