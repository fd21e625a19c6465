package main

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/apifeed"
	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/apitest"
)

// TestAppliesItsMode runs the backend as its own apply: the file follows a real server, which hears what is shown and what is not.
func TestAppliesItsMode(t *testing.T) {
	manifests := filepath.Join(t.TempDir(), "web.yaml")
	statuses := make(chan server.Status, 100)
	target := apitest.Serve(t, apitest.Write(t, manifests, manifest), func(_ server.Client, s server.Status) { statuses <- s })
	path := filepath.Join(t.TempDir(), "services.conf")
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- apifeed.Program(ctx, apifeed.Options{Client: client.Options{Target: target, Name: "apply-file"}}, newDataplane(path), backend.RunOptions{})
	}()
	shown := func(revision state.Revision) server.Status {
		t.Helper()
		for {
			select {
			case s := <-statuses:
				if s.Applied >= revision {
					return s
				}
			case err := <-ended:
				t.Fatalf("it ends with %v", err)
			case <-time.After(time.Minute):
				t.Fatalf("the server does not hear that revision %d is shown", revision)
			}
		}
	}
	first := shown(1)
	web := state.ServiceName{Namespace: "shop", Name: "web"}
	if why := first.Failed[web]; len(first.Failed) != 1 || !strings.Contains(why, "not of TCP") {
		t.Errorf("the server hears of failures %v, want one of %v", first.Failed, web)
	}
	const before = "# Written by apply-file, which puts changes right.\nshop/web 10.96.0.10 80 inside 10.244.1.5:8080 outside 10.244.1.5:8080\n"
	if text, err := os.ReadFile(path); err != nil || string(text) != before {
		t.Errorf("the file is %q (%v), want %q", text, err, before)
	}
	apitest.Write(t, manifests, strings.ReplaceAll(manifest, "10.244.1.5", "10.244.1.6"))
	shown(first.Applied + 1)
	if text, err := os.ReadFile(path); err != nil || string(text) != strings.ReplaceAll(before, "1.5", "1.6") {
		t.Errorf("the file is %q (%v)", text, err)
	}
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Errorf("what is programmed is gone with the process: %v", err)
	}
}

// TestVerify puts right what somebody else has changed.
func TestVerify(t *testing.T) {
	d := newDataplane(filepath.Join(t.TempDir(), "services.conf"))
	if r, err := d.Verify(t.Context()); err != nil || r.Written != 0 {
		t.Errorf("before the first Apply: %+v, %v", r, err)
	}
	u := &state.Update{Full: true, Revision: 1, Node: &state.Node{}, Changed: []*state.Service{{Name: state.ServiceName{Namespace: "shop", Name: "web"}}}}
	if _, err := d.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(d.path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r, err := d.Verify(t.Context()); err != nil || r.Repaired != 1 {
		t.Errorf("after a change: %+v, %v", r, err)
	}
	if r, err := d.Verify(t.Context()); err != nil || r.Repaired != 0 {
		t.Errorf("again: %+v, %v", r, err)
	}
}

const manifest = `
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  clusterIP: 10.96.0.10
  ports: [{name: http, port: 80}, {name: dns, protocol: UDP, port: 53}]
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, protocol: TCP, port: 8080}]
endpoints:
- addresses: [10.244.1.5]
  nodeName: node-a
`
