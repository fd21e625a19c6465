// Package health answers /livez and /healthz for one process.
//
// Each part of the process that can be in trouble registers a check; the answer lists what all of them say. Nothing is
// remembered between requests, so a problem that has been mended is gone from the next answer.
package health

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"
)

// Check returns the current problems of one part of the process, none if all is well. It is called concurrently and must
// not block.
type Check func() []error

// Health knows the checks of a process. The zero value is ready to use and healthy.
type Health struct {
	mu     sync.Mutex
	checks []namedCheck
}

type namedCheck struct {
	part  string
	check Check
}

// Add registers a check. part names the part of the process in the answer.
func (h *Health) Add(part string, check Check) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.checks = append(h.checks, namedCheck{part, check})
}

// Problem is one thing that is not as it should be.
type Problem struct {
	// Part is where it is: the name given to [Health.Add].
	Part string `json:"part"`
	// Message says what it is and, where there is one, names the remedy.
	Message string `json:"message"`
}

// Problems returns what all checks say now, in the order in which they were added.
func (h *Health) Problems() []Problem {
	h.mu.Lock()
	checks := h.checks
	h.mu.Unlock()
	problems := []Problem{}
	for _, c := range checks {
		for _, err := range c.check() {
			problems = append(problems, Problem{c.part, err.Error()})
		}
	}
	return problems
}

// Handler serves /livez, which is 200 as long as the process can answer at all, and /healthz, which is 200 without problems
// and 503 with some: {"healthy":false,"problems":[{"part":"source","message":"..."}]}.
func (h *Health) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) {
		answer(w, http.StatusOK, map[string]bool{"alive": true})
	})
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		problems := h.Problems()
		status := http.StatusOK
		if len(problems) > 0 {
			status = http.StatusServiceUnavailable
		}
		answer(w, status, struct {
			Healthy  bool      `json:"healthy"`
			Problems []Problem `json:"problems"`
		}{len(problems) == 0, problems})
	})
	return mux
}

func answer(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(status)
	// The only possible error is that the client has gone.
	_ = json.NewEncoder(w).Encode(body)
}

// Serve answers on l until ctx ends, and then returns nil. It closes l.
func (h *Health) Serve(ctx context.Context, l net.Listener) error {
	srv := &http.Server{Handler: h.Handler(), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve health on %v: %w", l.Addr(), err)
	}
	return nil
}
