package main

import (
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/view"
)

// TestStateOfEndpoint: an endpoint has its state, and for how long open connections stay.
func TestStateOfEndpoint(t *testing.T) {
	now := time.Now()
	for want, e := range map[string]view.Endpoint{
		"ejected":      {State: view.Ejected},
		"draining":     {State: view.Draining},
		"draining 41s": {State: view.Draining, DrainsUntil: now.Add(40_800 * time.Millisecond)},
		"draining 0s":  {State: view.Draining, DrainsUntil: now.Add(-time.Minute)}, // while the row was on its way
	} {
		if got := stateText(&e, now); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}
