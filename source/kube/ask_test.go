package kube

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// TestAskDistinguishesAnswers: an answer of an API server is distinguished from a refusal, and from a server that is no API server.
func TestAskDistinguishesAnswers(t *testing.T) {
	behind := -time.Hour
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.Header().Set("Date", time.Now().Add(behind).UTC().Format(http.TimeFormat))
		status := func(code int, reason string) {
			w.WriteHeader(code)
			_, _ = w.Write([]byte(`{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"` + reason + `","code":` + http.StatusText(code) + `}`))
		}
		switch r.URL.Path {
		case "/version":
			_, _ = w.Write([]byte(`{"gitVersion":"v1.36.0"}`))
		case "/api/v1/services", "/api/v1/nodes":
			if r.URL.Query().Get("limit") != "1" {
				t.Errorf("%s asks for all objects", r.URL)
			}
			_, _ = w.Write([]byte(`{"kind":"List","apiVersion":"v1","items":[]}`))
		case "/apis/discovery.k8s.io/v1/endpointslices":
			status(http.StatusForbidden, "Forbidden")
		case "/api/v1/nodes/node-a":
			_, _ = w.Write([]byte(`{"kind":"Node","apiVersion":"v1","metadata":{"name":"node-a"}}`))
		default:
			status(http.StatusNotFound, "NotFound")
		}
	}))
	defer server.Close()
	for node, exists := range map[string]bool{"node-a": true, "node-b": false} {
		a, err := Ask(t.Context(), &rest.Config{Host: server.URL}, node)
		if err != nil {
			t.Fatal(err)
		}
		if a.Version != "v1.36.0" || a.Ahead > behind+2*time.Second || a.Ahead < behind-2*time.Second || a.NodeExists != exists || !a.NodeKnown {
			t.Errorf("%s: got %+v", node, a)
		}
		err = errors.Join(a.Refused...)
		if len(a.Refused) != 1 || !strings.Contains(err.Error(), `resources: ["endpointslices"], verbs: ["list", "watch"]`) {
			t.Errorf("%s: refused %v", node, err)
		}
	}
}

func TestAskServerThatIsNoAPIServer(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("<html>")) }))
	defer server.Close()
	if _, err := Ask(t.Context(), &rest.Config{Host: server.URL}, "node-a"); err == nil || !strings.Contains(err.Error(), "no version of Kubernetes") {
		t.Errorf("a page passes for an API server: %v", err)
	}
	server.Close()
	if _, err := Ask(t.Context(), &rest.Config{Host: server.URL}, "node-a"); err == nil {
		t.Error("an API server that is down answers")
	}
}
