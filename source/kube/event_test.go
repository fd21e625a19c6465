package kube_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/client-go/rest"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source/kube"
)

// TestReport checks the events that the API server receives.
func TestReport(t *testing.T) {
	var path string
	var got eventsv1.Event
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path, got = r.URL.Path, eventsv1.Event{}
		if err := json.NewDecoder(r.Body).Decode(&got); err != nil {
			t.Error(err)
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		_ = json.NewEncoder(w).Encode(&got)
	}))
	defer server.Close()
	config := &rest.Config{Host: server.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
	reporter, err := kube.New(kube.Options{Config: config, NodeName: "node-a"})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		event                model.Event
		namespace, uid, kind string // kind is Normal or Warning
	}{
		{model.Event{Kind: "Node", Name: "node-a", Reason: "Starting", Action: "Start"}, "default", "node-a", "Normal"},
		{model.Event{Kind: "Service", Namespace: "shop", Name: "web", Reason: "Broken", Action: "Listen", Note: "n", Warning: true}, "shop", "", "Warning"},
	} {
		if err := reporter.Report(t.Context(), c.event); err != nil {
			t.Fatal(err)
		}
		if want := "/apis/events.k8s.io/v1/namespaces/" + c.namespace + "/events"; path != want {
			t.Errorf("%s: sent to %s, want %s", c.event.Reason, path, want)
		}
		r := got.Regarding
		if r.Kind != c.event.Kind || r.Namespace != c.event.Namespace || r.Name != c.event.Name || string(r.UID) != c.uid {
			t.Errorf("%s: it is about %+v", c.event.Reason, r)
		}
		if got.Type != c.kind || got.Reason != c.event.Reason || got.Note != c.event.Note || got.ReportingController != "kube-proxy" {
			t.Errorf("%s: the event is %+v", c.event.Reason, got)
		}
	}
}
