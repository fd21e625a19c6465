package test

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// edgeDir is the base with the component, as seen from deploy/kustomize.
const edgeDir = "../test/testdata/edge"

// edged has the chart be what the component makes of the base, but for the configuration.
var edged = values{"config": values{"edge": values{"mode": "tcx"}}}

// TestEdge: with the edge, a node may annotate Nodes, and load programs. Without it, it may not.
func TestEdge(t *testing.T) {
	patch := permission{"", "nodes", "patch"}
	programs := []corev1.Capability{"BPF", "PERFMON"}
	for title, tt := range map[string]struct {
		all                         objects
		permitted, policed, loading bool
	}{
		"kustomize/base": {kustomize(t, "base"), false, false, false},
		"kustomize/edge": {kustomize(t, edgeDir), true, true, true},
		"helm":           {rendered(t, nil), false, false, false},
		"helm, none":     {rendered(t, values{"config": values{"edge": values{"mode": "none"}}}), false, false, false},
		"helm, null":     {rendered(t, values{"config": values{"edge": nil}}), false, false, false},
		"helm, tcx":      {rendered(t, edged), true, true, true},
		"helm, xdp":      {rendered(t, values{"config": values{"mode": "ebpf", "edge": values{"mode": "xdp"}}}), true, true, true},
		"helm, without a policy": {
			rendered(t, values{"config": edged["config"], "edge": values{"admissionPolicy": false}}), true, false, true,
		},
		"helm, turned off": {rendered(t, values{"edge": values{"keepPermission": true}}), true, true, false},
	} {
		want := requested(t, false)
		maps.Copy(want, reported)
		if tt.permitted {
			want[patch] = true
		}
		has := granted(into[rbacv1.ClusterRole](t, tt.all["ClusterRole switchyard"]))
		if missing, extra := less(want, has), less(has, want); len(missing)+len(extra) > 0 {
			t.Errorf("%s: the role lacks %v, and permits %v, which nobody asks for", title, missing, extra)
		}
		if policed := tt.all["ValidatingAdmissionPolicy switchyard"] != nil && tt.all["ValidatingAdmissionPolicyBinding switchyard"] != nil; policed != tt.policed {
			t.Errorf("%s: what is written to Nodes is checked: %v", title, policed)
		}
		caps := podOf(t, tt.all).Containers[0].SecurityContext.Capabilities.Add
		for _, c := range programs {
			if slices.Contains(caps, c) != tt.loading {
				t.Errorf("%s: the capabilities are %v", title, caps)
			}
		}
	}

	split := rendered(t, values{"split": values{"enabled": true}, "edge": values{"keepPermission": true}})
	if granted(into[rbacv1.ClusterRole](t, split["ClusterRole switchyard"]))[patch] || split["ValidatingAdmissionPolicy switchyard"] != nil {
		t.Error("helm, split: the container serve may annotate Nodes, and never does")
	}
}

// TestEdgeOfChart: the component makes what the chart makes. What the API server checks is about this release's account.
func TestEdgeOfChart(t *testing.T) {
	chart, base := rendered(t, edged), kustomize(t, edgeDir)
	for _, name := range []string{"ValidatingAdmissionPolicy switchyard", "ValidatingAdmissionPolicyBinding switchyard"} {
		if diff := cmp.Diff(base[name].Object["spec"], chart[name].Object["spec"]); diff != "" {
			t.Errorf("%s: Kustomize (-) and Helm (+) differ:\n%s", name, diff)
		}
	}
	if diff := cmp.Diff(into[rbacv1.ClusterRole](t, base["ClusterRole switchyard"]).Rules, into[rbacv1.ClusterRole](t, chart["ClusterRole switchyard"]).Rules); diff != "" {
		t.Errorf("Kustomize (-) and Helm (+) differ:\n%s", diff)
	}
	caps := func(all objects) []corev1.Capability {
		return into[appsv1.DaemonSet](t, all["DaemonSet switchyard"]).Spec.Template.Spec.Containers[0].SecurityContext.Capabilities.Add
	}
	if diff := cmp.Diff(caps(base), caps(chart)); diff != "" {
		t.Errorf("Kustomize (-) and Helm (+) differ:\n%s", diff)
	}

	v := maps.Clone(placeholders)
	maps.Copy(v, edged)
	text, err := helmAs("gpu", "network", v)
	if err != nil {
		t.Fatal(err)
	}
	other := read(t, text)
	policy := into[admissionv1.ValidatingAdmissionPolicy](t, other["ValidatingAdmissionPolicy network.gpu-switchyard"])
	binding := into[admissionv1.ValidatingAdmissionPolicyBinding](t, other["ValidatingAdmissionPolicyBinding network.gpu-switchyard"])
	if want := `request.userInfo.username == "system:serviceaccount:network:gpu-switchyard"`; policy.Spec.MatchConditions[0].Expression != want {
		t.Errorf("the policy is for %s, want %s", policy.Spec.MatchConditions[0].Expression, want)
	}
	if binding.Spec.PolicyName != policy.Name || !slices.Equal(binding.Spec.ValidationActions, []admissionv1.ValidationAction{admissionv1.Deny}) {
		t.Errorf("the binding is %+v", binding.Spec)
	}
}

// TestEdgeValues: the chart refuses what cannot work, and words that YAML takes for others.
func TestEdgeValues(t *testing.T) {
	with := func(config values) values { return values{"apiServer": "https://a:6443", "config": config} }
	split := with(values{"edge": values{"mode": "tcx"}})
	split["split"] = values{"enabled": true}
	unknown := with(nil)
	unknown["edge"] = values{"mode": "tcx"}
	for want, v := range map[string]values{
		"set split.enabled to false, or config.edge.mode to none": split,
		"config.edge.mode needs config.mode nftables or ebpf":     with(values{"mode": "ipvs", "edge": values{"mode": "tcx"}}),
		"/config/edge/mode":                        with(values{"edge": values{"mode": false}}),
		"additional properties 'mode' not allowed": unknown,
	} {
		if _, err := helm(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: got %v, want %q", v, err, want)
		}
	}
}
