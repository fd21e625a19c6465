package laws

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
)

// TestOneReleaseOfKubernetes: what is compared with upstream, and the feature gates, are of the release in test/e2e/upstream/go.mod.
func TestOneReleaseOfKubernetes(t *testing.T) {
	kubernetes := regexp.MustCompile(`(?m)^\tk8s\.io/kubernetes v(1\.\d+\.\d+)$`)
	replaced := regexp.MustCompile(`(?m)^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$`)
	read := func(path string) string {
		text, err := os.ReadFile(filepath.Join("..", "..", path))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	const source = "test/e2e/upstream/go.mod"
	found := kubernetes.FindStringSubmatch(read(source))
	if found == nil {
		t.Fatalf("%s does not require k8s.io/kubernetes", source)
	}
	want := found[1]
	const remedy = `
Law: one release of Kubernetes is compared with. Fix with: make kubernetes KUBERNETES=%s`
	for _, path := range []string{source, "test/windows/upstream/go.mod"} {
		text := read(path)
		if m := kubernetes.FindStringSubmatch(text); m == nil || m[1] != want {
			t.Errorf("%s: k8s.io/kubernetes is %q, want v%s."+remedy, path, m, want, want)
		}
		modules := replaced.FindAllStringSubmatch(text, -1)
		if len(modules) == 0 {
			t.Errorf("%s replaces none of Kubernetes' modules: the law is not looking at the file", path)
		}
		for _, m := range modules {
			if "1."+m[1] != want {
				t.Errorf("%s: %q is not of Kubernetes %s."+remedy, path, m[0], want, want)
			}
		}
	}
	if got := regexp.MustCompile(`^# Kubernetes v(\S+),`).FindStringSubmatch(read("config/featuregates.txt")); got == nil || got[1] != want {
		t.Errorf("config/featuregates.txt is of %q, want Kubernetes v%s."+remedy, got, want, want)
	}
}
