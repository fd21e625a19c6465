package test

import (
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
)

// validatorOf compiles a policy as the API server does. An expression that it cannot compile is a fault.
func validatorOf(t *testing.T, p *admissionv1.ValidatingAdmissionPolicy) validating.Validator {
	t.Helper()
	compiler, err := cel.NewCompositedCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()))
	if err != nil {
		t.Fatal(err)
	}
	declared := cel.OptionalVariableDeclarations{HasAuthorizer: true}
	for _, v := range p.Spec.Variables {
		if r := compiler.CompileAndStoreVariable(&validating.Variable{Name: v.Name, Expression: v.Expression}, declared, environment.StoredExpressions); r.Error != nil {
			t.Fatalf("%s: %v", v.Expression, r.Error)
		}
	}
	compile := func(list []cel.ExpressionAccessor) cel.ConditionEvaluator {
		for _, a := range list {
			if a == nil {
				continue
			}
			if r := compiler.CompileCELExpression(a, declared, environment.StoredExpressions); r.Error != nil {
				t.Fatalf("%s: %v", a.GetExpression(), r.Error)
			}
		}
		return compiler.CompileCondition(list, declared, environment.StoredExpressions)
	}
	var conditions, rules []cel.ExpressionAccessor
	for i := range p.Spec.MatchConditions {
		conditions = append(conditions, (*matchconditions.MatchCondition)(&p.Spec.MatchConditions[i]))
	}
	for _, v := range p.Spec.Validations {
		rules = append(rules, &validating.ValidationCondition{Expression: v.Expression, Message: v.Message})
	}
	matcher := matchconditions.NewMatcher(compile(conditions), p.Spec.FailurePolicy, "policy", "validate", p.Name)
	messages := make([]cel.ExpressionAccessor, len(rules)) // none is an expression
	return validating.NewValidator(compile(rules), matcher, compile(nil), compile(messages), p.Spec.FailurePolicy, nil)
}

// TestNodePolicy asks the code of the API server what Switchyard may change with the policy: the annotation of its own Node, and nothing else. Other users
// are not concerned.
func TestNodePolicy(t *testing.T) {
	const (
		account = "system:serviceaccount:kube-system:switchyard"
		key     = "switchyard.net/edge"
		own     = "may only change the Node that its pod runs on"
		only    = "may only change the annotation " + key
	)
	announce := func(_, now *corev1.Node) { now.Annotations[key] = "v1,7635" }
	type changes = func(old, now *corev1.Node)
	tests := []struct {
		title, user, on string
		change          changes
		refused         string
	}{
		{"announce", account, "node-a", announce, ""},
		{"announce on a Node that has nothing", account, "node-a", func(old, now *corev1.Node) {
			for _, n := range []*corev1.Node{old, now} {
				n.Labels, n.Annotations, n.Spec = nil, nil, corev1.NodeSpec{}
			}
			now.Annotations = map[string]string{key: "v1,7635"}
		}, ""},
		{"another port", account, "node-a", func(old, now *corev1.Node) { old.Annotations[key], now.Annotations[key] = "v1,9", "v1,7635" }, ""},
		{"withdraw", account, "node-a", func(old, _ *corev1.Node) { old.Annotations[key] = "v1,7635" }, ""},
		{"withdraw the only annotation", account, "node-a", func(old, now *corev1.Node) {
			old.Annotations, now.Annotations = map[string]string{key: "v1,7635"}, nil
		}, ""},
		{"another Node", account, "node-b", announce, own},
		{"a token of no pod", account, "", announce, own},
		{"somebody else", "admin", "", func(_, now *corev1.Node) { now.Spec.Unschedulable = true }, ""},
		{"another account", "system:serviceaccount:default:switchyard", "node-b", announce, ""},
	}
	for title, change := range map[string]changes{
		"new annotation":     func(_, now *corev1.Node) { now.Annotations["x"] = "y" },
		"changed annotation": func(_, now *corev1.Node) { now.Annotations["a"] = "y" },
		"removed annotation": func(_, now *corev1.Node) { delete(now.Annotations, "a") },
		"new label":          func(_, now *corev1.Node) { now.Labels["x"] = "y" },
		"removed labels":     func(_, now *corev1.Node) { now.Labels = nil },
		"taint": func(_, now *corev1.Node) {
			now.Spec.Taints = []corev1.Taint{{Key: "x", Effect: corev1.TaintEffectNoExecute}}
		},
		"cordon":    func(_, now *corev1.Node) { now.Spec.Unschedulable = true },
		"provider":  func(_, now *corev1.Node) { now.Spec.ProviderID = "x" },
		"finalizer": func(_, now *corev1.Node) { now.Finalizers = []string{"example.org/x"} },
		"owner":     func(_, now *corev1.Node) { now.OwnerReferences = []metav1.OwnerReference{{Name: "x"}} },
	} {
		tests = append(tests, tests[0])
		last := &tests[len(tests)-1]
		last.title, last.change, last.refused = title, func(old, now *corev1.Node) { announce(old, now); change(old, now) }, only
	}
	for title, all := range map[string]objects{"helm": rendered(t, edged), "kustomize": kustomize(t, edgeDir)} {
		v := validatorOf(t, into[admissionv1.ValidatingAdmissionPolicy](t, all["ValidatingAdmissionPolicy switchyard"]))
		for _, tt := range tests {
			old := &corev1.Node{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"},
				ObjectMeta: metav1.ObjectMeta{
					Name: "node-a", Labels: map[string]string{"zone": "z"}, Annotations: map[string]string{"a": "b"},
				},
				Spec: corev1.NodeSpec{PodCIDR: "10.1.0.0/24"},
			}
			now := old.DeepCopy()
			tt.change(old, now)
			who := &user.DefaultInfo{Name: tt.user}
			if tt.on != "" {
				who.Extra = map[string][]string{"authentication.kubernetes.io/node-name": {tt.on}}
			}
			kind, nodes := corev1.SchemeGroupVersion.WithKind("Node"), corev1.SchemeGroupVersion.WithResource("nodes")
			request := &admission.VersionedAttributes{
				Attributes:    admission.NewAttributesRecord(now, old, kind, "", "node-a", nodes, "", admission.Update, &metav1.PatchOptions{}, false, who),
				VersionedKind: kind, VersionedObject: admission.NewLazyObject(now), VersionedOldObject: admission.NewLazyObject(old),
			}
			var refusals []string
			for _, d := range v.Validate(t.Context(), nodes, request, nil, nil, celconfig.RuntimeCELCostBudget, nil).Decisions {
				if d.Action != validating.ActionAdmit {
					refusals = append(refusals, d.Message)
				}
			}
			if refused := strings.Join(refusals, "; "); (refused == "") != (tt.refused == "") || !strings.Contains(refused, tt.refused) {
				t.Errorf("%s: %s: refused with %q, want %q", title, tt.title, refused, tt.refused)
			}
		}
	}
}
