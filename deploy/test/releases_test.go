package test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	monitoringv1 "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// releaseOf renders one of several releases, with everything that the chart has.
func releaseOf(t *testing.T, name, namespace, pool string, more values) objects {
	t.Helper()
	v := maps.Clone(placeholders)
	maps.Copy(v, podMonitored)
	maps.Copy(v, values{"prometheusRule": values{"enabled": true}, "dashboards": values{"enabled": true}, "nodeSelector": values{"pool": pool}})
	maps.Copy(v, more)
	text, err := helmAs(name, namespace, v)
	if err != nil {
		t.Fatal(err)
	}
	return read(t, text)
}

// clusterWide are the kinds of the chart that have no namespace.
var clusterWide = []string{"ClusterRole", "ClusterRoleBinding"}

// TestReleases: several releases, such as one for each pool of nodes, have no object in common. Each one refers to its own objects, and selects its own
// pods.
func TestReleases(t *testing.T) {
	service := maps.Clone(monitored)
	service["podMonitor"] = values{"enabled": false}
	releases := map[string]objects{
		"the default":                     releaseOf(t, "switchyard", "kube-system", "a", nil),
		"another name":                    releaseOf(t, "b", "kube-system", "b", nil),
		"with a ServiceMonitor":           releaseOf(t, "c", "kube-system", "c", service),
		"the name of an object":           releaseOf(t, "relay", "kube-system", "d", nil),
		"an object's name, with its part": releaseOf(t, "switchyard-relay", "kube-system", "e", nil),
		"fullnameOverride":                releaseOf(t, "f", "kube-system", "f", values{"fullnameOverride": "gpu"}),
		"another namespace":               releaseOf(t, "switchyard", "network", "g", nil),
		"both":                            releaseOf(t, "b", "network", "h", nil),
	}
	seen := map[string]string{}
	for title, all := range releases {
		for _, o := range all {
			id := fmt.Sprint(o.GroupVersionKind().GroupKind(), " ", o.GetNamespace(), "/", o.GetName())
			if (o.GetNamespace() == "") != slices.Contains(clusterWide, o.GetKind()) {
				t.Errorf("%s: %s has the namespace %q", title, id, o.GetNamespace())
			}
			if other, is := seen[id]; is {
				t.Errorf("%s and %s both have %s", title, other, id)
			}
			seen[id] = title
		}
	}
	for title, all := range releases {
		t.Run(title, func(t *testing.T) { checkRelease(t, all, releases) })
	}
}

// checkRelease checks what the objects of a release refer to.
func checkRelease(t *testing.T, all objects, releases map[string]objects) {
	pods := map[*corev1.PodTemplateSpec]string{} // of all releases, with the workload and its namespace
	for _, others := range releases {
		for name, o := range others {
			switch o.GetKind() {
			case "DaemonSet":
				pods[&into[appsv1.DaemonSet](t, o).Spec.Template] = o.GetNamespace() + " " + name
			case "Deployment":
				pods[&into[appsv1.Deployment](t, o).Spec.Template] = o.GetNamespace() + " " + name
			}
		}
	}
	checks := 0
	// selects checks that a selector finds the pods of one workload of this release in its namespace.
	selects := func(what, namespace string, selector map[string]string) {
		t.Helper()
		checks++
		var found []string
		for template, of := range pods {
			if strings.HasPrefix(of, namespace+" ") && matches(selector, template.Labels) {
				found = append(found, strings.TrimPrefix(of, namespace+" "))
			}
		}
		if len(found) != 1 || all[found[0]] == nil {
			t.Errorf("%s selects pods of %q", what, found)
		}
	}
	exists := func(what, name string) {
		t.Helper()
		checks++
		if all[name] == nil {
			t.Errorf("%s refers to %s, which the release does not have", what, name)
		}
	}
	spec := func(what string, pod *corev1.PodSpec) {
		exists(what, "ServiceAccount "+pod.ServiceAccountName)
		for _, v := range pod.Volumes {
			if v.ConfigMap != nil {
				exists(what, "ConfigMap "+v.ConfigMap.Name)
			}
		}
	}
	for name, o := range all {
		namespace := o.GetNamespace()
		switch o.GetKind() {
		case "DaemonSet":
			d := into[appsv1.DaemonSet](t, o)
			selects(name, namespace, d.Spec.Selector.MatchLabels)
			spec(name, &d.Spec.Template.Spec)
			if s := d.Spec.Template.Spec.NodeSelector; len(s) != 2 || s["pool"] == "" || s["kubernetes.io/os"] != "linux" {
				t.Errorf("%s has the node selector %v", name, s)
			}
		case "Deployment":
			d := into[appsv1.Deployment](t, o)
			selects(name, namespace, d.Spec.Selector.MatchLabels)
			spec(name, &d.Spec.Template.Spec)
		case "PodDisruptionBudget":
			selects(name, namespace, into[policyv1.PodDisruptionBudget](t, o).Spec.Selector.MatchLabels)
		case "PodMonitor":
			selects(name, namespace, into[monitoringv1.PodMonitor](t, o).Spec.Selector.MatchLabels)
		case "Service":
			selects(name, namespace, into[corev1.Service](t, o).Spec.Selector)
		case "ServiceMonitor":
			selector := into[monitoringv1.ServiceMonitor](t, o).Spec.Selector.MatchLabels
			var found []string
			for _, others := range releases {
				for other, s := range others {
					if s.GetKind() == "Service" && s.GetNamespace() == namespace && matches(selector, s.GetLabels()) {
						found = append(found, other)
					}
				}
			}
			if len(found) != 1 || all[found[0]] == nil {
				t.Errorf("%s selects the Services %q", name, found)
			}
		case "ClusterRoleBinding":
			b := into[rbacv1.ClusterRoleBinding](t, o)
			exists(name, "ClusterRole "+b.RoleRef.Name)
			exists(name, "ServiceAccount "+b.Subjects[0].Name)
			if own := all["ServiceAccount "+b.Subjects[0].Name]; own != nil && b.Subjects[0].Namespace != own.GetNamespace() {
				t.Errorf("%s binds an account in namespace %s", name, b.Subjects[0].Namespace)
			}
		}
	}
	if checks == 0 {
		t.Error("nothing was checked")
	}
}

// TestReleaseNames: names keep within what Kubernetes allows, and the default is what Kustomize has.
func TestReleaseNames(t *testing.T) {
	if all := releaseOf(t, "switchyard", "kube-system", "a", nil); all["DaemonSet switchyard"] == nil || all["ClusterRole switchyard-relay"] == nil {
		t.Error("the release switchyard in kube-system has other names")
	}
	// Labels have the names too, with at most 63 characters.
	for name := range releaseOf(t, strings.Repeat("a", 45), "network", "a", nil) {
		if _, name, _ := strings.Cut(name, " "); len(strings.TrimPrefix(name, "network:")) > 63 {
			t.Errorf("%s has %d characters", name, len(name))
		}
	}
	for want, c := range map[string]struct {
		release string
		v       values
	}{
		"set fullnameOverride to a name of at most 56 characters": {strings.Repeat("a", 46), placeholders},
		"does not match pattern":                                  {"a", values{"apiServer": "https://a:6443", "fullnameOverride": "A_b"}},
	} {
		if _, err := helmAs(c.release, "kube-system", c.v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", c.release, err, want)
		}
	}
}
