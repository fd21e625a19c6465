package test

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	sigsyaml "sigs.k8s.io/yaml"
)

// reachable has metrics that Prometheus can reach.
var reachable = values{"metricsBindAddress": "0.0.0.0:10249"}

// monitored makes the chart render what the component of Kustomize has.
var monitored = values{
	"config":         reachable,
	"serviceMonitor": values{"enabled": true},
	"prometheusRule": values{"enabled": true, "labels": values{"release": "prometheus"}},
	"dashboards":     values{"enabled": true},
}

// podMonitored are nodes in two containers and relays, with PodMonitors.
var podMonitored = values{
	"config":     reachable,
	"split":      values{"enabled": true, "metricsBindAddress": "0.0.0.0:10259"},
	"relay":      values{"enabled": true, "metricsBindAddress": "0.0.0.0:10269"},
	"podMonitor": values{"enabled": true, "labels": values{"release": "prometheus"}},
}

// TestMonitoringObjectsAreEqual compares the objects for Prometheus and Grafana.
func TestMonitoringObjectsAreEqual(t *testing.T) {
	h, k := rendered(t, monitored), kustomize(t, "example")
	for name, field := range map[string]string{
		"Service switchyard": "spec", "ServiceMonitor switchyard": "spec", "PrometheusRule switchyard": "spec", "ConfigMap switchyard-boards": "data",
	} {
		if h[name] == nil || k[name] == nil {
			t.Errorf("%s: Helm has %v, Kustomize %v", name, h[name] != nil, k[name] != nil)
			continue
		}
		if diff := cmp.Diff(k[name].Object[field], h[name].Object[field]); diff != "" {
			t.Errorf("%s: Kustomize (-) and Helm (+) differ:\n%s", name, diff)
		}
	}
	if labels := h["PrometheusRule switchyard"].GetLabels(); labels["release"] != "prometheus" {
		t.Errorf("the PrometheusRule has the labels %v", labels)
	}
}

// TestMonitoringIsOptional: without values for it, the chart renders nothing that takes the Prometheus operator or Grafana.
func TestMonitoringIsOptional(t *testing.T) {
	for name, o := range rendered(t, values{"relay": values{"enabled": true}}) {
		if o.GroupVersionKind().Group == monitoringv1.SchemeGroupVersion.Group || name == "ConfigMap switchyard-boards" {
			t.Errorf("the chart renders %s", name)
		}
	}
}

// TestRules: the chart has the alerts of the rule file.
func TestRules(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("..", "prometheus", "alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var want monitoringv1.PrometheusRuleSpec
	if err := sigsyaml.UnmarshalStrict(text, &want); err != nil {
		t.Fatal(err)
	}
	if got := into[monitoringv1.PrometheusRule](t, rendered(t, monitored)["PrometheusRule switchyard"]).Spec; !cmp.Equal(got, want) {
		t.Errorf("the file (-) and the PrometheusRule (+) differ:\n%s", cmp.Diff(want, got))
	}
}

// TestPodMonitors: each one selects pods of one workload and ports that these have. The alerts find the jobs that they expect, and the label
// node.
func TestPodMonitors(t *testing.T) {
	all := rendered(t, podMonitored)
	node := into[monitoringv1.ServiceMonitor](t, rendered(t, monitored)["ServiceMonitor switchyard"]).Spec.Endpoints[0].RelabelConfigs[1]
	templates := map[string]*corev1.PodTemplateSpec{
		"switchyard":       &into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template,
		"switchyard-relay": &into[appsv1.Deployment](t, all["Deployment switchyard-relay"]).Spec.Template,
	}
	for name, want := range map[string]struct {
		job   string
		ports []string
	}{"switchyard": {"kube-proxy", []string{"metrics", "serve-metrics"}}, "switchyard-relay": {"switchyard-relay", []string{"metrics"}}} {
		m := into[monitoringv1.PodMonitor](t, all["PodMonitor "+name])
		if m.Labels["release"] != "prometheus" {
			t.Errorf("%s has the labels %v", name, m.Labels)
		}
		for other, template := range templates {
			if selects := matches(m.Spec.Selector.MatchLabels, template.Labels); selects != (other == name) {
				t.Errorf("the PodMonitor %s selects pods of %s: %v", name, other, selects)
			}
		}
		var declared, ports []string
		for _, c := range templates[name].Spec.Containers {
			for _, p := range c.Ports {
				declared = append(declared, p.Name)
			}
		}
		for _, e := range m.Spec.PodMetricsEndpoints {
			ports = append(ports, *e.Port)
			if !slices.Contains(declared, *e.Port) {
				t.Errorf("%s: the pods declare the ports %v, and not %s", name, declared, *e.Port)
			}
			if !e.HonorLabels || len(e.RelabelConfigs) != 2 || e.RelabelConfigs[0].TargetLabel != "job" || *e.RelabelConfigs[0].Replacement != want.job ||
				!cmp.Equal(e.RelabelConfigs[1], node) {
				t.Errorf("%s: %+v", name, e)
			}
		}
		if !slices.Equal(ports, want.ports) {
			t.Errorf("%s has the ports %v, want %v", name, ports, want.ports)
		}
	}
	v := maps.Clone(podMonitored)
	delete(v, "split")
	delete(v, "relay")
	all = rendered(t, v)
	if m := into[monitoringv1.PodMonitor](t, all["PodMonitor switchyard"]); len(m.Spec.PodMetricsEndpoints) != 1 || all["PodMonitor switchyard-relay"] != nil {
		t.Errorf("without serve and relays, there are %d endpoints, and a PodMonitor of relays: %v", len(m.Spec.PodMetricsEndpoints), all["PodMonitor switchyard-relay"] != nil)
	}
}

// relayMonitoredDir is the relay with the component, as seen from deploy/kustomize.
const relayMonitoredDir = "../test/testdata/relaymonitored"

// TestRelayMonitoringSame: the component for relays has the PodMonitor of the chart, which finds a port of the relays.
func TestRelayMonitoringSame(t *testing.T) {
	h, k := rendered(t, podMonitored), kustomize(t, relayMonitoredDir)
	if k["PodMonitor switchyard-relay"] == nil {
		t.Fatal("there is no PodMonitor")
	}
	if diff := cmp.Diff(k["PodMonitor switchyard-relay"].Object["spec"], h["PodMonitor switchyard-relay"].Object["spec"]); diff != "" {
		t.Errorf("Kustomize (-) and Helm (+) differ:\n%s", diff)
	}
	if name, labels := "app.kubernetes.io/name", k["PodMonitor switchyard-relay"].GetLabels(); labels[name] != h["PodMonitor switchyard-relay"].GetLabels()[name] {
		t.Errorf("the labels are %v", labels)
	}
	for title, all := range map[string]objects{"kustomize": k, "helm": h} {
		template := into[appsv1.Deployment](t, all["Deployment switchyard-relay"]).Spec.Template
		c := template.Spec.Containers[0]
		port := slices.IndexFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name == "metrics" })
		if port < 0 || c.Ports[port].ContainerPort != 10269 || !slices.Contains(c.Args, "--metrics-bind-address=0.0.0.0:10269") {
			t.Errorf("%s: the relays have the ports %v and the arguments %q", title, c.Ports, c.Args)
		}
		if m := into[monitoringv1.PodMonitor](t, all["PodMonitor switchyard-relay"]); !matches(m.Spec.Selector.MatchLabels, template.Labels) {
			t.Errorf("%s: the PodMonitor selects %v, and not the labels %v", title, m.Spec.Selector.MatchLabels, template.Labels)
		}
	}
}

// matches reports whether a selector matches labels.
func matches(selector, labels map[string]string) bool {
	for key, value := range selector {
		if labels[key] != value {
			return false
		}
	}
	return len(selector) > 0
}

// TestBoards: Grafana's sidecar finds all dashboards, which are those that are checked.
func TestBoards(t *testing.T) {
	for title, all := range map[string]objects{"kustomize": kustomize(t, "example"), "helm": rendered(t, monitored)} {
		boards := all["ConfigMap switchyard-boards"]
		if boards == nil || boards.GetLabels()["grafana_dashboard"] != "1" {
			t.Fatalf("%s: the ConfigMap with the label for Grafana: %v", title, boards)
		}
		data, _, err := unstructured.NestedStringMap(boards.Object, "data")
		if err != nil {
			t.Fatal(err)
		}
		if files := slices.Sorted(maps.Keys(data)); !slices.Equal(files, []string{"cluster.json", "node.json", "relay.json"}) {
			t.Errorf("%s has %v", title, files)
		}
		for name, text := range data {
			file, err := os.ReadFile(filepath.Join("..", "kustomize", "monitoring", "boards", name))
			if err != nil || !bytes.Equal(bytes.TrimSpace(file), bytes.TrimSpace([]byte(text))) {
				t.Errorf("%s: %s is another one than in the file (%v)", title, name, err)
			}
		}
	}
}
