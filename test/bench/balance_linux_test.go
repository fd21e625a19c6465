package bench

import (
	"bytes"
	"testing"

	"github.com/switchyard-net/switchyard/test/netnstest"
)

// TestBalance measures few packets: all figures that have targets are there.
func TestBalance(t *testing.T) {
	netnstest.Need(t)
	r := NewReporter(&bytes.Buffer{}, &bytes.Buffer{})
	if err := Balance(t.Context(), r, BalanceOptions{Rounds: 1, Packets: 50}); err != nil {
		t.Fatal(err)
	}
	checkTargets(t, r, "balance")
}
