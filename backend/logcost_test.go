package backend

import (
	"log/slog"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestUnwantedLinesCostNothing: below verbosity 2, no records are compared, so that nothing is allocated.
func TestUnwantedLinesCostNothing(t *testing.T) {
	r := &runner{RunOptions: RunOptions{Logger: slog.New(slog.DiscardHandler)}}
	a := &Attempt{Update: &state.Update{Full: true, Changed: []*state.Service{{}}}}
	if n := testing.AllocsPerRun(10, func() { r.logApplied(a) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
