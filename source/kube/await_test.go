package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestAwait makes the first state wait for required fields of the Node, and no longer than kube-proxy waits.
func TestAwait(t *testing.T) {
	whole := node("here")
	whole.Spec.PodCIDRs = []string{"10.244.1.0/24"}
	whole.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.0.2.1"}}
	for name, c := range map[string]struct {
		await Await
		field string
		most  time.Duration
	}{
		"addresses": {Await{Addresses: true}, "status.addresses", 30 * time.Second},
		"pod CIDRs": {Await{PodCIDRs: true}, "spec.podCIDRs", 5 * time.Minute},
		"both":      {Await{Addresses: true, PodCIDRs: true}, "spec.podCIDRs", 5 * time.Minute},
	} {
		options := func(o *Options) { o.Await = c.await }
		waiting := "the Node here lacks " + c.field + "; nothing is programmed before it has them, or before " +
			time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC).Add(c.most).Format(time.RFC3339) // when the bubble's clock begins
		t.Run(name+", in time", func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(service("a/x", 80), node("here"))
				w := begin(a, options)
				settle(c.most - time.Second)
				w.complete(false)
				w.problems(waiting)
				a.put(whole)
				w.complete(true)
				w.noProblems()
				w.logged("waiting for a field of the Node")
			})
		})
		t.Run(name+", never", func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(service("a/x", 80)) // not even a Node
				w := begin(a, options)
				settle(c.most - time.Second)
				w.complete(false)
				settle(time.Second)
				w.complete(true)
				w.noProblems() // of the source: package node reports what is missing
				w.logged("waiting for a field of the Node", "the Node still lacks a field")
			})
		})
		t.Run(name+", at once", func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(whole)
				w := begin(a, options)
				w.complete(true)
				w.logged()
			})
		})
	}
}
