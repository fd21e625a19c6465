package test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestRecipes renders the chart with the values in docs/recipes. Each value must be one that the chart has.
func TestRecipes(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "helm", "switchyard", "values.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var known values
	if err := yaml.Unmarshal(text, &known); err != nil {
		t.Fatal(err)
	}
	pages, err := filepath.Glob(filepath.Join("..", "..", "docs", "recipes", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(string(text), "\n"); lines > 60 {
			t.Errorf("%s has %d lines, want 60 at most", page, lines)
		}
		for _, block := range strings.Split(string(text), "```yaml\n")[1:] {
			block, _, _ = strings.Cut(block, "```")
			if _, chart, isChart := strings.Cut(block, "\n  valuesContent: |-\n"); isChart { // of k3s and RKE2
				block = strings.ReplaceAll("\n"+chart, "\n    ", "\n")
			} else if !strings.HasPrefix(block, "# values.yaml\n") {
				continue
			}
			found++
			var v values
			if err := yaml.Unmarshal([]byte(block), &v); err != nil {
				t.Fatalf("%s: %v", page, err)
			}
			for name, value := range v {
				if _, ok := known[name]; !ok {
					t.Errorf("%s: the chart has no value %s", page, name)
					continue
				}
				parts, isMap := value.(values)
				for part := range parts {
					if _, ok := known[name].(values)[part]; isMap && !ok && name != "config" {
						t.Errorf("%s: the chart has no value %s.%s", page, name, part)
					}
				}
			}
			if got := rendered(t, v)["DaemonSet switchyard"]; got == nil {
				t.Errorf("%s: no DaemonSet", page)
			}
			t.Logf("%s: the chart has these values, and is a DaemonSet with them:\n%s", page, block)
		}
	}
	if found < 7 {
		t.Errorf("%d blocks have values", found)
	}
}
