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
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/switchyard-net/switchyard/internal/protoconv"
)

// health knows which relays have failed since one could last be followed, and logs when that changes.
type health struct {
	log *slog.Logger

	mu       sync.Mutex
	failures map[string]*failure // by target
	// lacking is what the followed relay lacks of Nodes, although it is needed.
	lacking []lack
}

// lack is the problem that a relay does not deliver a part of Nodes, with the effect. A field of the relay's configuration turns the part on.
type lack struct{ target, part, effect, field string }

func (l lack) Error() string {
	return fmt.Sprintf("relay %s does not deliver %s, so %s: set %s there, or update it", l.target, l.part, l.effect, l.field)
}

// lackingOf returns what a relay lacks of Nodes, by its header, although the options need it.
func (o *Options) lackingOf(target string, header metadata.MD) (list []lack) {
	if o.NodeHealth && len(header.Get(protoconv.NodeHealthHeader)) == 0 {
		list = append(list, lack{target, "the health of Nodes", "no endpoint comes last because of its Node", "nodeHealth.enabled"})
	}
	if o.Edge && len(header.Get(protoconv.NodeEdgeHeader)) == 0 {
		list = append(list, lack{target, "which Nodes take part in the edge", "no connection is handed over to another node", "edge.enabled"})
	}
	return list
}

// setLacking notes what the relay that is followed lacks. Each part is logged once for each relay.
func (h *health) setLacking(list []lack) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range list {
		if !slices.Contains(h.lacking, l) {
			h.log.Warn("relay does not deliver a part of nodes", "error", l)
		}
	}
	h.lacking = list
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
	for _, l := range h.lacking {
		problems = append(problems, l)
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
