package manifest

import (
	"strings"
	"testing"
)

// TestGeneratedManifestSources: a file from which a tool generates manifests is one fault, with the command of the tool. Valid objects
// in such a file still count.
func TestGeneratedManifestSources(t *testing.T) {
	const template = `apiVersion: v1
kind: Service
metadata:
  name: {{ .Release.Name }}
  labels:
    {{- include "labels" . | nindent 4 }}
---
{{- if .Values.more }}
apiVersion: v1
kind: Service
{{- end }}
---
apiVersion: v1
kind: Service
metadata: {name: plain}
`
	for _, c := range []struct{ file, text, want string }{
		{"shop/Chart.yaml", "apiVersion: v2\nname: shop\n", "error: shop/Chart.yaml: describes a Helm chart: render it with: helm template my-release shop > manifests.yaml\n"},
		{"shop/kustomization.yml", "resources: [a.yaml]\n", "error: shop/kustomization.yml: is for Kustomize: build its directory with: kubectl kustomize shop > manifests.yaml\n"},
		{"shop/values-prod.yaml", "replicas: 3\n", "error: shop/values-prod.yaml:1:1: holds values for a Helm chart: render the chart with: " +
			"helm template my-release CHART --values shop/values-prod.yaml > manifests.yaml\n"},
		{"shop/templates/web.yaml", template, "shop/templates/web.yaml:13: Service plain\n" +
			"error: shop/templates/web.yaml:4: is a template, as {{ .Release.Name }} shows: render it first, such as with: helm template my-release shop > manifests.yaml\n"},
		// Braces that YAML takes for text are no template.
		{"web.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web, annotations: {text: '{{ no template }}'}}\nspec: {clusterIp: x}\n",
			"error: web.yaml:4:8: Service web: spec.clusterIp: there is no such field: did you mean clusterIP?\n"},
		// A values file that has a kind is a manifest.
		{"values.yaml", "apiVersion: v1\nkind: Service\nmetadata: {name: web}\n", "values.yaml:1: Service web\n"},
	} {
		if got := report(Decode(c.file, []byte(c.text))); got != c.want {
			t.Errorf("got:\n%s\nwant:\n%s", got, c.want)
		}
	}
}

// TestSkipped: objects of other kinds are named, also those in lists.
func TestSkipped(t *testing.T) {
	c := Read("app.yaml", []byte(`apiVersion: v1
kind: List
items:
- {apiVersion: batch/v1, kind: Job, metadata: {name: seed, namespace: shop}}
- {apiVersion: v1, kind: Service, metadata: {name: web}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: web}}
`))
	var got []string
	for _, s := range c.Skipped {
		got = append(got, s.APIVersion+" "+s.Kind+" "+s.Name)
	}
	if text := strings.Join(got, ", "); text != "batch/v1 Job shop/seed, v1 ConfigMap web" || len(c.Objects) != 1 || len(c.Errs) != 0 {
		t.Errorf("skipped %s; objects %v, errors %v", text, c.Objects, c.Errs)
	}
}
