package bench

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/store"
)

// TestPages: pages read all rows and follow what changes, and one that is refused ends the measurement.
func TestPages(t *testing.T) {
	s := store.New(store.Options{Brain: brain.Config{NodeName: NodeName}})
	defer s.Close()
	sink := s.Source("test")
	sink.Update(Cluster(1500, 1), nil)
	sink.Complete()
	ctx, stop := context.WithCancel(t.Context())
	page, asked := ui.Handler(ctx, &shownStore{store: s}), make(chan string, 100)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.URL.Path + "?" + r.URL.RawQuery
		page.ServeHTTP(w, r)
	}))
	defer server.Close()
	defer stop()
	changed := false
	err := usePages(t.Context(), server.URL, 1, 1, func(int) {
		changed = true
		for _, want := range []string{"/api/events?", "/api/services?after=&limit=1000", "/api/services?after=namespace-13%2Fservice-000493&limit=1000"} {
			if got := <-asked; got != want {
				t.Errorf("a page asks for %s, want %s", got, want)
			}
		}
	})
	if err != nil || !changed {
		t.Errorf("pages end with %v; something has changed: %v", err, changed)
	}
	refusing := httptest.NewServer(http.NotFoundHandler())
	defer refusing.Close()
	if err := usePages(t.Context(), refusing.URL, 2, 100, func(int) {}); err == nil || errors.Is(err, context.Canceled) {
		t.Errorf("pages that are refused end with %v", err)
	}
}
