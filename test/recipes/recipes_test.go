// Package recipes checks files in docs/recipes with the types of the tools that read them.
package recipes

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	helmv1 "github.com/k3s-io/helm-controller/pkg/apis/helm.cattle.io/v1"
	"github.com/siderolabs/talos/pkg/machinery/config/configloader"
	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/kind/pkg/apis/config/v1alpha4"
	"sigs.k8s.io/yaml"
)

// file returns a file that a page quotes, and logs it.
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
	t.Logf("docs/recipes/%s has %s:\n%s", page, name, content)
	return content
}

func TestKind(t *testing.T) {
	var c v1alpha4.Cluster
	d := yamlv3.NewDecoder(strings.NewReader(file(t, "kind.md", "kind.yaml")))
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

// TestRKE2 reads the HelmChart as the controller in k3s and RKE2 does.
func TestRKE2(t *testing.T) {
	var c helmv1.HelmChart
	if err := yaml.UnmarshalStrict([]byte(file(t, "rke2.md", "/var/lib/rancher/rke2/server/manifests/switchyard.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	if c.APIVersion != helmv1.SchemeGroupVersion.String() || c.Kind != "HelmChart" || !c.Spec.Bootstrap || c.Namespace != "kube-system" {
		t.Errorf("%+v", c)
	}
	var values map[string]any
	if err := yaml.Unmarshal([]byte(c.Spec.ValuesContent), &values); err != nil || values["apiServer"] == nil {
		t.Errorf("the values are %v, %v", values, err)
	}
}
