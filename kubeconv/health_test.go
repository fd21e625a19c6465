package kubeconv_test

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/kubeconv"
	"github.com/switchyard-net/switchyard/model"
)

// TestNodeEdge passes the annotation of a Node on as it stands, and cuts a long one.
func TestNodeEdge(t *testing.T) {
	for value, want := range map[string]string{
		"": "", "v1,7635": "v1,7635", "anything": "anything", strings.Repeat("x", 300): strings.Repeat("x", 253) + "…",
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a", Annotations: map[string]string{model.EdgeAnnotation: value, "other": "x"}}}
		if got, err := kubeconv.Node(n); err != nil || got.Edge != want {
			t.Errorf("%q became %q, %v", value, got.Edge, err)
		}
	}
}

// TestNodeHealth reads what kubelets and the node lifecycle controller write into the condition Ready.
func TestNodeHealth(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for name, tt := range map[string]struct {
		status          corev1.ConditionStatus
		reason, message string
		want            model.NodeHealth
	}{
		"ready":                      {corev1.ConditionTrue, "KubeletReady", "kubelet is posting ready status", model.NodeReady},
		"ready, with a text":         {corev1.ConditionTrue, "KubeletReady", "node is shutting down", model.NodeReady},
		"network is down":            {corev1.ConditionFalse, "KubeletNotReady", "container runtime network not ready", model.NodeNotReady},
		"shutdown":                   {corev1.ConditionFalse, "KubeletNotReady", "node is shutting down", model.NodeShuttingDown},
		"shutdown and more":          {corev1.ConditionFalse, "KubeletNotReady", "[container runtime is down, node is shutting down]. WARNING: CPU hardcapping unsupported", model.NodeShuttingDown},
		"a text that is another's":   {corev1.ConditionFalse, "ByHand", "node is shutting down", model.NodeNotReady},
		"silent":                     {corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status.", model.NodeSilent},
		"a status that is none":      {"Maybe", "KubeletNotReady", "node is shutting down", model.NodeReady},
		"silent, with a text for no": {corev1.ConditionUnknown, "KubeletNotReady", "node is shutting down", model.NodeSilent},
	} {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
		n.Status.Conditions = []corev1.NodeCondition{
			{Type: corev1.NodeMemoryPressure, Status: corev1.ConditionUnknown},
			{Type: corev1.NodeReady, Status: tt.status, Reason: tt.reason, Message: tt.message, LastTransitionTime: metav1.NewTime(at.Add(time.Millisecond).Local())},
		}
		got, err := kubeconv.Node(n)
		if err != nil {
			t.Fatal(err)
		}
		since := at
		if tt.want == model.NodeReady {
			since = time.Time{}
		}
		if got.Health != tt.want || got.HealthSince != since {
			t.Errorf("%s: health %d since %v, want %d since %v", name, got.Health, got.HealthSince, tt.want, since)
		}
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "a"}}
	if got, err := kubeconv.Node(n); err != nil || got.Health != model.NodeReady {
		t.Errorf("a Node without conditions is %+v, %v", got, err)
	}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse}}
	if got, err := kubeconv.Node(n); err != nil || got.Health != model.NodeNotReady || !got.HealthSince.IsZero() {
		t.Errorf("a Node without a time of the transition is %+v, %v", got, err)
	}
}
