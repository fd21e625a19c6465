package test

import (
	"bytes"
	"errors"
	"io"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/chart/common/util"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/engine"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
)

// objects are Kubernetes objects by kind and name.
type objects map[string]*unstructured.Unstructured

// read reads YAML documents.
func read(t *testing.T, text []byte) objects {
	t.Helper()
	all := make(objects)
	for d := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096); ; {
		var o unstructured.Unstructured
		err := d.Decode(&o)
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatalf("%v in\n%s", err, text)
		}
		if len(o.Object) > 0 {
			all[o.GetKind()+" "+o.GetName()] = &o
		}
	}
}

// kustomize builds a directory of deploy/kustomize.
func kustomize(t *testing.T, dir string) objects {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join("..", "kustomize", dir))
	if err != nil {
		t.Fatal(err)
	}
	text, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}

// values are a chart's.
type values = map[string]any

// helm renders the chart as `helm install switchyard --namespace kube-system` does.
func helm(v values) ([]byte, error) { return helmAs("switchyard", "kube-system", v) }

// helmAs renders the chart as `helm install NAME --namespace NAMESPACE` does.
func helmAs(name, namespace string, v values) ([]byte, error) {
	chart, err := loader.LoadDir(filepath.Join("..", "helm", "switchyard"))
	if err != nil {
		return nil, err
	}
	release := common.ReleaseOptions{Name: name, Namespace: namespace, Revision: 1, IsInstall: true}
	all, err := util.ToRenderValues(chart, v, release, common.DefaultCapabilities)
	if err != nil {
		return nil, err
	}
	files, err := engine.Render(chart, all)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	for name, file := range files {
		if !strings.HasSuffix(name, ".txt") {
			text.WriteString("---\n" + file + "\n")
		}
	}
	return text.Bytes(), nil
}

// placeholders make the chart what the base is.
var placeholders = values{"apiServer": "https://api-server.example:6443", "image": values{"tag": "latest"}}

// rendered renders the chart with placeholders and more values, of the top level.
func rendered(t *testing.T, more values) objects {
	t.Helper()
	v := maps.Clone(placeholders)
	maps.Copy(v, more)
	text, err := helm(v)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}
