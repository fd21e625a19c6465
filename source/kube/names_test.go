package kube

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// TestNames delivers what is not routed, too: headless slices, services of another proxy, and namespaces that have opted out, whose label
// causes no lists.
func TestNames(t *testing.T) {
	story(t, func(t *testing.T, a *apiServer) {
		a.put(disabled("mesh"), service("mesh/x", 80), slice("mesh/x", "10.0.0.9"), service("a/x", 80, proxyNameLabel+"=theirs"),
			slice("a/x", "10.0.0.1", corev1.IsHeadlessService), namespace("a"))
		w := begin(a, func(o *Options) { o.Names = true })
		w.complete(true)
		w.holds("a/x:80", "a/x>10.0.0.1", "mesh/x:80", "mesh/x>10.0.0.9", "mesh:disabled=true", hereNode)
		w.sink.updates = nil
		a.put(disabled("a"))
		w.updates("a:disabled=true")
		a.put(service("a/x", 81, proxyNameLabel+"=theirs"), namespace("mesh"))
		settle(time.Minute)
		w.holds("a/x:81", "a/x>10.0.0.1", "mesh/x:80", "mesh/x>10.0.0.9", "a:disabled=true", hereNode)
		w.noProblems()
		w.logged()
	})
}
