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
	troubles map[string]*trouble // by target
}

// trouble is why a relay cannot be followed.
type trouble struct {
	target string
	err    error
	since  time.Time
}

// fail notes that a relay cannot be followed. Trouble of the same kind is logged once.
func (h *health) fail(target string, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := &trouble{target: target, err: err, since: time.Now()}
	before := h.troubles[target]
	if before != nil {
		now.since = before.since
	}
	if h.troubles == nil {
		h.troubles = make(map[string]*trouble)
	}
	h.troubles[target] = now
	if before == nil || status.Code(before.err) != status.Code(err) {
		h.log.Warn("relay cannot be followed; what it said last stays in force", "error", now.Error())
	}
}

// broke says whether a relay last broke the protocol: then only a whole update shows that it can be followed.
func (h *health) broke(target string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.troubles[target]
	return t != nil && errors.Is(t.err, errProtocol)
}

// mend notes that a relay can be followed: then it does not matter that others cannot.
func (h *health) mend(target string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.troubles) == 0 {
		return
	}
	since := time.Now()
	for _, t := range h.troubles {
		if t.since.Before(since) {
			since = t.since
		}
	}
	h.troubles = nil
	h.log.Info("a relay can be followed again", "relay", target, "after", time.Since(since).Round(time.Second))
}

// problems returns all troubles, sorted by target.
func (h *health) problems() []error {
	h.mu.Lock()
	defer h.mu.Unlock()
	var problems []error
	for _, target := range slices.Sorted(maps.Keys(h.troubles)) {
		problems = append(problems, h.troubles[target])
	}
	return problems
}

// Error says what cannot be followed, since when, why, and what helps against it.
func (t *trouble) Error() string {
	text := fmt.Sprintf("cannot follow relay %s since %s: ", t.target, t.since.UTC().Format(time.RFC3339))
	s, ok := status.FromError(t.err)
	if !ok {
		return text + t.err.Error()
	}
	text += s.Message()
	switch s.Code() {
	case codes.Unauthenticated, codes.PermissionDenied:
		text += "; check this client's certificate or token, and whom the relay serves"
	case codes.Unimplemented:
		text += "; it is no relay: name a Switchyard that serves other nodes"
	}
	return text
}

func (t *trouble) Unwrap() error { return t.err }
