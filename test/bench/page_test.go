//go:build linux

package bench

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
)

// TestPages: pages read all rows and follow what changes, and one that is refused ends the measurement.
func TestPages(t *testing.T) {
	s, _ := newStore(brain.Config{}, Cluster(1500, 1)...)
	defer s.Close()
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
		for _, want := range []string{"/api/events?", "/api/services?after=&limit=1000", "/api/services?after=namespace%2Fservice-"} {
			if got := <-asked; !strings.HasPrefix(got, want) { // a slow part ends before its limit
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
