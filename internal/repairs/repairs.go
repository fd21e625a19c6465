// Package repairs distinguishes a one-off change from a program that repeatedly overwrites a dataplane's state in the
// kernel.
package repairs

import (
	"fmt"
	"sync"
	"time"
)

const (
	// Threshold repairs within Window are a fault.
	Threshold = 3
	Window    = 5 * time.Minute
)

// History has the repairs of the last while. Its methods may be called concurrently.
type History struct {
	mu    sync.Mutex
	times []time.Time // the oldest first
}

// Note records a repair, and returns how many there were within Window.
func (h *History) Note() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.times = append(h.recent(), time.Now())
	return len(h.times)
}

// Fault returns a fault if repairs continue, and nil otherwise. object is the repaired object, and remedy is how to stop
// the repairs.
func (h *History) Fault(object string, remedy error) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	times := h.recent()
	if len(times) < Threshold {
		return nil
	}
	return fmt.Errorf("%s had to be repaired %d times within %v, last at %s: %w", object, len(times), Window,
		times[len(times)-1].UTC().Format(time.TimeOnly), remedy)
}

// recent returns the repairs that count. The caller holds mu.
func (h *History) recent() []time.Time {
	for len(h.times) > 0 && time.Since(h.times[0]) > Window {
		h.times = h.times[1:]
	}
	return h.times
}
