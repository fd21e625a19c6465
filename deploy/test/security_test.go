package test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestSecurityNamesTests checks that the tests that SECURITY.md names are there.
func TestSecurityNamesTests(t *testing.T) {
	top := filepath.Join("..", "..")
	text, err := os.ReadFile(filepath.Join(top, "SECURITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z/]+): (Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
	if len(named) < 20 {
		t.Fatalf("SECURITY.md names %d tests", len(named))
	}
	for _, m := range named {
		files, err := filepath.Glob(filepath.Join(top, m[1], "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var found bool
		for _, f := range files {
			code, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			found = found || strings.Contains(string(code), "\nfunc "+m[2]+"(")
		}
		if !found {
			t.Errorf("there is no %s in %s", m[2], m[1])
		}
	}
	if count := strings.Count(string(text), ": Test"); count != len(named) {
		t.Errorf("%d tests are named in another way", count-len(named))
	}
}
