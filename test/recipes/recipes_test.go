// Package recipes checks files in docs/recipes with the types of the tools that read them.
package recipes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	"go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
)

// file returns a file that a page quotes.
func file(t *testing.T, page, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "recipes", page))
	if err != nil {
		t.Fatal(err)
	}
	_, content, ok := strings.Cut(string(text), "```yaml\n# "+name+"\n")
	content, _, closed := strings.Cut(content, "```")
	if !ok || !closed {
		t.Fatalf("%s has no file %s", page, name)
	}
	return content
}

func TestKind(t *testing.T) {
	var c v1alpha4.Cluster
	d := yaml.NewDecoder(strings.NewReader(file(t, "kind.md", "kind.yaml")))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil {
		t.Fatal(err)
	}
	if c.APIVersion != "kind.x-k8s.io/v1alpha4" || c.Kind != "Cluster" || c.Networking.KubeProxyMode != "none" || len(c.Nodes) != 2 {
		t.Errorf("%+v", c)
	}
}

func TestTalos(t *testing.T) {
	c, err := configloader.NewFromBytes([]byte(file(t, "talos.md", "patch.yaml")))
	if err != nil {
		t.Fatal(err)
	}
	if c.Cluster().Proxy().Enabled() {
		t.Error("kube-proxy is enabled")
	}
	if prism := c.Machine().Features().KubePrism(); !prism.Enabled() || prism.Port() != 7445 {
		t.Errorf("KubePrism is %t at port %d", prism.Enabled(), prism.Port())
	}
}
