package kube

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestNames also delivers Services that are not routed: headless services, services of another proxy, and services in
// namespaces that have opted out. The label of these namespaces causes no lists.
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

// TestNamesRouteNothingMore compares the states of two nodes with the same API server. One of them also watches
// Services that only have names.
func TestNamesRouteNothingMore(t *testing.T) {
	for _, proxy := range []string{"", "mesh"} {
		story(t, func(t *testing.T, a *apiServer) {
			a.put(service("a/web", 80), service("a/other", 81, proxyNameLabel+"=mesh"))
			for _, name := range []string{"web", "other"} {
				for addr, label := range map[string]string{
					"10.0.0.1": "", "10.0.0.2": proxyNameLabel + "=mesh", "10.0.0.3": proxyNameLabel, "10.0.0.4": corev1.IsHeadlessService,
				} {
					s := slice("a/"+name, addr, strings.Fields(label)...)
					s.Name, s.Ports = name+"-"+addr, []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(8080))}}
					a.put(s)
				}
			}
			routed := func(names bool) []*state.Service {
				s := store.New(store.Options{Brain: brain.Config{NodeName: "here", ServiceProxyName: proxy}})
				src, err := New(Options{Config: a.config(), NodeName: "here", Names: names, ServiceProxyName: proxy})
				if err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan error)
				go func() { done <- src.Run(ctx, s.Source("kube")) }()
				settle(time.Second)
				stop()
				if err := <-done; err != nil {
					t.Error(err)
				}
				return slices.Collect(s.Snapshot().Services())
			}
			without, with := routed(false), routed(true)
			if len(without) != 1 || !slices.EqualFunc(without, with, (*state.Service).Equal) {
				t.Errorf("proxy %q: without names %+v, with names %+v", proxy, without, with)
			}
		})
	}
}
