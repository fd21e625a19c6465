package kube

import (
	"testing"

	discoveryv1 "k8s.io/api/discovery/v1"
)

// TestSlicesWithoutServiceName: KEP-6116. A slice without the label kubernetes.io/service-name is not requested, and a
// slice that loses it is gone, regardless of its owner references and its name. kube-proxy also ignores an empty value
// (endpointSliceCacheKeys); the store does the same.
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
