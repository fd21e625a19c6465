package kube

import (
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestDelivers goes through the life of objects in each encoding that they can have.
func TestDelivers(t *testing.T) {
	for title, json := range map[string]bool{"protobuf": false, "json": true} {
		t.Run(title, func(t *testing.T) {
			story(t, func(t *testing.T, a *apiServer) {
				a.put(service("a/x", 80), slice("a/x", "10.0.0.1"), slice("b/y", "10.0.0.2"), serviceCIDR("10.96.0.0/16"), node("other"), namespace("a"))
				w := begin(a, func(o *Options) {
					if json {
						o.Config.ContentType = "application/json"
					}
				})
				w.complete(true)
				w.holds("a/x:80", "a/x>10.0.0.1", "b/y>10.0.0.2", "[10.96.0.0/16]", hereNode)
				for _, r := range w.takeRequests() {
					if want := map[bool]string{false: protobuf + ",application/json", true: "application/json"}[json]; r.accept != want && r.accept != want+", */*" {
						t.Errorf("%v accepts %q, want %q", r, r.accept, want)
					}
				}
				w.sink.updates = nil

				a.put(service("b/y", 1))
				w.updates("b/y:1")
				a.put(service("b/y", 2))
				w.updates("b/y:2")
				a.remove(service("b/y", 0), slice("b/y", ""))
				w.holds("a/x:80", "a/x>10.0.0.1", "[10.96.0.0/16]", hereNode)
				a.put(serviceCIDR("10.96.0.0/12"))
				w.holds("a/x:80", "a/x>10.0.0.1", "[10.96.0.0/12]", hereNode)
				w.sink.updates = nil

				// A watch ends from time to time. It is resumed where it ended, without a list.
				w.takeRequests()
				settle(11 * time.Minute)
				for _, r := range w.takeRequests() {
					if r.verb != "watch" {
						t.Errorf("unexpected %v", r)
					}
				}
				w.updates()
				a.put(service("a/x", 81))
				w.updates("a/x:81")
				w.noProblems()
				w.logged()
			})
		})
	}
}

func TestNewErrors(t *testing.T) {
	config := &rest.Config{Host: "https://192.0.2.1"}
	for want, o := range map[string]Options{
		"no Config: say how to reach the API server":  {NodeName: "here"},
		"no NodeName: say which Node this is":         {Config: config},
		`NodeName "a,b" cannot be the name of a Node`: {Config: config, NodeName: "a,b"},
		"ListSpread is -1s: choose a time":            {Config: config, NodeName: "here", ListSpread: -time.Second},
		`ServiceProxyName "a,b" cannot be the value`:  {Config: config, NodeName: "here", ServiceProxyName: "a,b"},
		"no/such/file": {NodeName: "here", Config: &rest.Config{
			Host: "https://192.0.2.1", TLSClientConfig: rest.TLSClientConfig{CAFile: "no/such/file"},
		}},
	} {
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
}
