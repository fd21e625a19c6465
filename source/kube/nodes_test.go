package kube

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-net/switchyard/model"
)

// unready is a Node that shuts down.
func unready(name string) *corev1.Node {
	n := node(name)
	n.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.9"}}
	n.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "KubeletNotReady", Message: "node is shutting down", LastTransitionTime: metav1.Now(),
	}}
	return n
}

// TestNodeHealth delivers all of this Node. Of each other Node, it delivers name and health. Another Node does not make this Node ineligible.
func TestNodeHealth(t *testing.T) {
	withHealth := func(o *Options) { o.NodeHealth = true }
	story(t, func(t *testing.T, a *apiServer) {
		shuts := unready("here")
		shuts.Labels[corev1.LabelTopologyZone] = "west"
		a.put(shuts, unready("other"))
		w := begin(a, withHealth, func(o *Options) { o.Await = Await{Addresses: true} })
		w.complete(true)
		w.holds("node:west[192.0.2.9][]2", "node:[][]2")

		a.put(node("other"))
		w.holds("node:west[192.0.2.9][]2", "node:[][]")
		gone := node("other")
		gone.DeletionTimestamp = new(metav1.Now())
		a.put(gone)
		w.holds("node:west[192.0.2.9][]2", "node:[][]")
		a.remove(gone)
		w.holds("node:west[192.0.2.9][]2")
		if !w.source.NodeEligible() {
			t.Error("the deletion of another Node makes this one ineligible")
		}
		a.put(node("other"))
		a.remove(node("here"))
		w.holds("node:[][]")
		if w.source.NodeEligible() {
			t.Error("this Node is gone, and still eligible")
		}
	})
	story(t, func(t *testing.T, a *apiServer) { // only others are there at first
		a.remove(node("here"))
		a.put(unready("other"))
		w := begin(a, withHealth, func(o *Options) { o.Await = Await{Addresses: true} })
		w.complete(false)
		settle(time.Second)
		if w.source.NodeEligible() {
			t.Error("this Node is not there, and eligible")
		}
		a.put(unready("here"))
		w.complete(true)
	})
	story(t, func(t *testing.T, a *apiServer) { // without the option
		a.put(unready("here"), unready("other"))
		w := begin(a)
		w.holds("node:z[192.0.2.9][]")
	})
	story(t, func(t *testing.T, a *apiServer) { // for a relay
		a.put(unready("here"), unready("other"))
		w := begin(a, withHealth, func(o *Options) { o.NodeName, o.AllNodes = "", true })
		w.holds("node:z[192.0.2.9][]2", "node:z[192.0.2.9][]2")
	})
}

// TestEdge delivers who takes part in the edge. Of each other Node, it delivers name, addresses, pod CIDRs and the annotation.
func TestEdge(t *testing.T) {
	withEdge := func(o *Options) { o.Edge = true }
	part := func(name, edge string) *corev1.Node {
		n := unready(name)
		n.Annotations = map[string]string{model.EdgeAnnotation: edge, "other": "x"}
		n.Spec.PodCIDRs = []string{"10.1.0.0/24"}
		return n
	}
	story(t, func(t *testing.T, a *apiServer) {
		a.put(part("here", "v1,7635"), part("other", "v1,7636"))
		w := begin(a, withEdge)
		w.complete(true)
		w.holds("node:z[192.0.2.9][10.1.0.0/24] v1,7635", "node:[192.0.2.9][10.1.0.0/24] v1,7636")
		a.put(part("other", ""))
		w.holds("node:z[192.0.2.9][10.1.0.0/24] v1,7635", "node:[192.0.2.9][10.1.0.0/24]")
		many, first := part("other", "v2"), "192.0.2.9"
		for i := range 100 {
			many.Status.Addresses = append(many.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeExternalIP, Address: fmt.Sprintf("192.0.3.%d", i)})
			if i < model.MostOfNode-1 {
				first += fmt.Sprintf(" 192.0.3.%d", i)
			}
		}
		a.put(many)
		w.holds("node:z[192.0.2.9][10.1.0.0/24] v1,7635", "node:["+first+"][10.1.0.0/24] v2")
		a.remove(many)
		w.holds("node:z[192.0.2.9][10.1.0.0/24] v1,7635")
		if !w.source.NodeEligible() {
			t.Error("the deletion of another Node makes this one ineligible")
		}
	})
	story(t, func(t *testing.T, a *apiServer) { // one watch has both
		a.put(part("here", "v1,7635"), part("other", "v1,7636"))
		w := begin(a, withEdge, func(o *Options) { o.NodeHealth = true })
		w.holds("node:z[192.0.2.9][10.1.0.0/24]2 v1,7635", "node:[192.0.2.9][10.1.0.0/24]2 v1,7636")
	})
	story(t, func(t *testing.T, a *apiServer) { // health alone
		a.put(part("here", "v1,7635"), part("other", "v1,7636"))
		w := begin(a, func(o *Options) { o.NodeHealth = true })
		w.holds("node:z[192.0.2.9][10.1.0.0/24]2", "node:[][]2")
	})
	story(t, func(t *testing.T, a *apiServer) { // without the option
		a.put(part("here", "v1,7635"), part("other", "v1,7636"))
		w := begin(a)
		w.holds("node:z[192.0.2.9][10.1.0.0/24]")
	})
	story(t, func(t *testing.T, a *apiServer) { // for a relay
		a.put(part("here", "v1,7635"), part("other", "v1,7636"))
		w := begin(a, withEdge, func(o *Options) { o.NodeName, o.AllNodes = "", true })
		w.holds("node:z[192.0.2.9][10.1.0.0/24] v1,7635", "node:z[192.0.2.9][10.1.0.0/24] v1,7636")
	})
}

// edgeText is the annotation of a Node, with a space before it.
func edgeText(n *model.Node) string {
	if n.Edge == "" {
		return ""
	}
	return " " + n.Edge
}

// healthText is the number of a Node's health, empty for a ready one.
func healthText(h model.NodeHealth) string {
	if h == model.NodeReady {
		return ""
	}
	return string(rune('0' + h))
}
