package health

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"
)

func TestAnswers(t *testing.T) {
	var problems []error
	var h Health
	h.Add("source", func() []error { return problems })
	h.Add("dataplane", func() []error { return nil })

	get := func(path string) (int, string) {
		w := httptest.NewRecorder()
		h.Handler().ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		return w.Code, w.Body.String()
	}
	steps := []struct {
		name     string
		problems []error
		path     string
		status   int
		body     string
	}{
		{"well", nil, "/healthz", 200, `{"healthy":true,"problems":[]}` + "\n"},
		{"trouble", []error{errors.New("web.yaml:3: bad port")}, "/healthz", 503,
			`{"healthy":false,"problems":[{"part":"source","message":"web.yaml:3: bad port"}]}` + "\n"},
		{"alive in trouble", []error{errors.New("x")}, "/livez", 200, `{"alive":true}` + "\n"},
		{"mended", nil, "/healthz", 200, `{"healthy":true,"problems":[]}` + "\n"},
	}
	for _, s := range steps {
		problems = s.problems
		if status, body := get(s.path); status != s.status || body != s.body {
			t.Errorf("%s: GET %s = %d %s, want %d %s", s.name, s.path, status, body, s.status, s.body)
		}
	}
	if status, _ := get("/elsewhere"); status != http.StatusNotFound {
		t.Errorf("GET /elsewhere = %d", status)
	}
}

func TestServeStopsWithItsContext(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var h Health
	done := make(chan error, 1)
	go func() { done <- h.Serve(ctx, l) }()
	resp, err := http.Get("http://" + l.Addr().String() + "/livez")
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, resp.Body)
	resp.Body.Close()
	cancel()
	select {
	case err := <-done:
		if err != nil {
			t.Errorf("Serve = %v, want nil after cancellation", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve did not return")
	}
}
