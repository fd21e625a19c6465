package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// health knows which resources are in trouble, and logs when that changes.
type health struct {
	log *slog.Logger

	mu       sync.Mutex
	troubles map[string]*trouble // by name of the resource
	// denied has the optional resources that this user may not watch, by name. They are no trouble: clusters that do not use them need no permission.
	denied  map[string]bool
	waiting *waiting // nil if a first state waits for nothing of the Node
}

// trouble is why a resource cannot be listed or watched.
type trouble struct {
	resource *resource
	err      error
	since    time.Time
}

// fail notes that a resource cannot be listed or watched. Trouble of the same kind is logged once, and trouble with the way
// to the API server once for all resources.
func (h *health) fail(r *resource, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err // without the URL, which names every disabled namespace
	}
	before := h.troubles[r.name()]
	now := &trouble{resource: r, err: err, since: time.Now()}
	if before != nil {
		now.since = before.since
	}
	log := before == nil || statusOf(before.err) != statusOf(err)
	if statusOf(err) == 0 {
		log = !h.unreachable()
	}
	if h.troubles == nil {
		h.troubles = make(map[string]*trouble)
	}
	h.troubles[r.name()] = now
	switch {
	case !log:
	case statusOf(err) == 0:
		h.log.Warn("API server cannot be reached; keeping the last known objects", "error", err)
	default:
		h.log.Warn("resource cannot be watched", "error", now.Error())
	}
}

// wait notes the fields that the first state waits for, nil for none.
func (h *health) wait(w *waiting) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if w != nil && (h.waiting == nil || h.waiting.field != w.field) {
		h.log.Warn("waiting for a field of the Node", "node", w.node, "field", w.field, "atMost", w.most)
	}
	h.waiting = w
}

// markHealthy notes that a resource can be watched.
func (h *health) markHealthy(r *resource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.denied[r.name()] {
		delete(h.denied, r.name())
		h.log.Info("resource can be watched now", "resource", r.name())
	}
	before := h.end(r)
	if before != nil && statusOf(before.err) != 0 {
		h.log.Info("resource can be watched again", "resource", r.name(), "after", time.Since(before.since).Round(time.Second))
	}
}

// end ends the trouble of a resource, and returns it, nil for none.
func (h *health) end(r *resource) *trouble {
	before := h.troubles[r.name()]
	delete(h.troubles, r.name())
	if before != nil && statusOf(before.err) == 0 && !h.unreachable() {
		h.log.Info("API server can be reached again", "after", time.Since(before.since).Round(time.Second))
	}
	return before
}

// deny notes that this user may not watch an optional resource. That is logged once, however often the API server is asked again.
func (h *health) deny(r *resource, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.end(r)
	if h.denied[r.name()] {
		return
	}
	if h.denied == nil {
		h.denied = map[string]bool{}
	}
	h.denied[r.name()] = true
	h.log.Info("optional resource may not be watched", "resource", r.name(), "effect", r.without, "error", err,
		"remedy", "add the rule "+r.rule()+" to a ClusterRole of this user")
}

// forget notes that a resource is no longer wanted.
func (h *health) forget(r *resource) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.troubles, r.name())
}

// unreachable reports whether the API server cannot be reached for some resource.
func (h *health) unreachable() bool {
	for _, t := range h.troubles {
		if statusOf(t.err) == 0 {
			return true
		}
	}
	return false
}

// problems returns all troubles, sorted by resource.
func (h *health) problems() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var problems []error
	for _, name := range slices.Sorted(maps.Keys(h.troubles)) {
		problems = append(problems, h.troubles[name])
	}
	if h.waiting != nil {
		problems = append(problems, h.waiting)
	}
	return problems
}

// Error says what cannot be watched, since when, why, and what helps against it.
func (t *trouble) Error() string {
	text := fmt.Sprintf("cannot list and watch %s since %s: %v", t.resource.name(), t.since.UTC().Format(time.RFC3339), t.err)
	switch statusOf(t.err) {
	case http.StatusForbidden:
		text += "; add the rule " + t.resource.rule() + " to a ClusterRole of this user"
	case http.StatusUnauthorized:
		text += "; check the token or client certificate"
	}
	if t.resource.without != "" {
		text += "; until then " + t.resource.without
	}
	return text
}

func (t *trouble) Unwrap() error { return t.err }

// statusOf is the HTTP status that the API server answered with, 0 if it did not answer.
func statusOf(err error) int {
	if status, ok := errors.AsType[*apierrors.StatusError](err); ok {
		return int(status.ErrStatus.Code)
	}
	return 0
}
