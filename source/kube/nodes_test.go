package kube

import (
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

// healthText is the number of a Node's health, empty for a ready one.
func healthText(h model.NodeHealth) string {
	if h == model.NodeReady {
		return ""
	}
	return string(rune('0' + h))
}
