package relay

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// health knows which relays have failed since one could last be followed, and logs when that changes.
type health struct {
	log *slog.Logger

	mu       sync.Mutex
	failures map[string]*failure // by target
	// nodeless is the followed relay if it lacks the health of Nodes, which is needed. It is empty otherwise.
	nodeless string
}

// lacksNodes notes whether the relay that is followed lacks the health of Nodes, which is needed. That is logged once for each relay.
func (h *health) lacksNodes(target string, lacks bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	before := h.nodeless
	if h.nodeless = ""; lacks {
		h.nodeless = target
	}
	if h.nodeless != "" && h.nodeless != before {
		h.log.Warn("relay does not deliver the health of nodes", "error", noNodeHealth(target))
	}
}

// noNodeHealth is the problem that a relay lacks the health of Nodes.
func noNodeHealth(target string) error {
	return fmt.Errorf("relay %s does not deliver the health of Nodes, so no endpoint comes last because of its Node: set nodeHealth.enabled there, or update it", target)
}

// failure is why a relay cannot be followed.
type failure struct {
	target string
	err    error
	since  time.Time
}

// fail notes that a relay cannot be followed. Failures of the same kind are logged once.
func (h *health) fail(target string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := &failure{target: target, err: err, since: time.Now()}
	before := h.failures[target]
	if before != nil {
		now.since = before.since
	}
	if h.failures == nil {
		h.failures = make(map[string]*failure)
	}
	h.failures[target] = now
	if before == nil || status.Code(before.err) != status.Code(err) {
		h.log.Warn("cannot follow relay; keeping last known good configuration", "error", now.Error())
	}
}

// broke reports whether a relay last broke the protocol: then only a whole update shows that it can be followed.
func (h *health) broke(target string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.failures[target]
	return t != nil && errors.Is(t.err, errProtocol)
}

// markHealthy notes that a relay can be followed: then it does not matter that others cannot.
func (h *health) markHealthy(target string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.failures) == 0 {
		return
	}
	since := time.Now()
	for _, t := range h.failures {
		if t.since.Before(since) {
			since = t.since
		}
	}
	h.failures = nil
	h.log.Info("following relay again", "relay", target, "after", time.Since(since).Round(time.Second))
}

// problems returns all failures, sorted by target.
func (h *health) problems() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var problems []error
	for _, target := range slices.Sorted(maps.Keys(h.failures)) {
		problems = append(problems, h.failures[target])
	}
	if h.nodeless != "" {
		problems = append(problems, noNodeHealth(h.nodeless))
	}
	return problems
}

// Error describes what cannot be followed, since when, why, and what helps against it.
func (t *failure) Error() string {
	text := fmt.Sprintf("cannot follow relay %s since %s: ", t.target, t.since.UTC().Format(time.RFC3339))
	s, ok := status.FromError(t.err)
	if !ok {
		return text + t.err.Error()
	}
	text += s.Message()
	switch s.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		text += "; check this client's certificate or token, and which clients the relay serves"
	case codes.Unimplemented:
		text += "; it is no relay: name a Switchyard that serves other nodes"
	}
	return text
}

func (t *failure) Unwrap() error { return t.err }
