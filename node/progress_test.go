package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/ops/healthz"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/state"
)

// TestAppliesAreProgress: a node is healthy as long as the dataplane applies updates, in whatever mode, though something always waits.
func TestAppliesAreProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{health: healthz.New(healthz.Options{Timeout: time.Minute}), registry: metrics.New(metrics.Options{})}
		n.health.Status(backend.Status{Applied: 1, Pending: time.Now()})
		for range 10 {
			time.Sleep(59 * time.Second)
			if !n.health.Healthy() {
				t.Fatal("the node is unhealthy, though an update was applied less than a minute ago")
			}
			n.attempted(backend.Attempt{Update: &state.Update{Revision: 2}, Began: time.Now()})
		}
		n.attempted(backend.Attempt{Began: time.Now()})
		time.Sleep(time.Minute)
		if n.health.Healthy() {
			t.Error("the node is healthy, though nothing was applied for a minute")
		}
	})
}
