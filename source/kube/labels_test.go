package kube

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestSlicesWithoutServiceName: KEP-6116. A slice without the label kubernetes.io/service-name is not asked for, and one that loses it is
// gone, whatever its owner references or its name say. kube-proxy ignores an empty value likewise (endpointSliceCacheKeys); the store does.
func TestSlicesWithoutServiceName(t *testing.T) {
	without := func(addr string) *discoveryv1.EndpointSlice {
		s := slice("a/web", addr)
		delete(s.Labels, discoveryv1.LabelServiceName)
		return s
	}
	story(t, func(t *testing.T, a *apiServer) {
		a.put(service("a/web", 80), without("10.0.0.1"))
		w := begin(a)
		w.complete(true)
		w.holds("a/web:80", "node:z[][]")
		w.put(slice("a/web", "10.0.0.2"))
		w.holds("a/web:80", "a/web>10.0.0.2", "node:z[][]")
		w.put(without("10.0.0.3"))
		w.holds("a/web:80", "node:z[][]")
		w.put(without("10.0.0.4"))
		w.holds("a/web:80", "node:z[][]")
		w.noProblems()
	})
}
