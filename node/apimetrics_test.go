package node

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// TestAudience: clients come, get updates, report what they have applied, and go.
func TestAudience(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, began := newAudience(), time.Now()
		slow, silent := server.Client{ID: 1}, server.Client{ID: 2}
		want := func(when string, want metrics.Followers) {
			t.Helper()
			if got := a.measured(); got != want {
				t.Errorf("%s: %+v, want %+v", when, got, want)
			}
		}
		at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
		a.opened(slow)
		a.opened(silent)
		gone := a.relayFollows()
		for revision := range state.Revision(4) { // at 0, 5, 10 and 15 seconds
			a.wasSent(slow, revision+1)
			a.wasSent(silent, revision+1)
			time.Sleep(5 * time.Second)
		}
		want("no status", metrics.Followers{Dataplanes: 2, Relays: 1})
		a.status(slow, server.Status{})
		want("nothing is applied", metrics.Followers{Dataplanes: 2, Relays: 1, OldestUnapplied: at(0)})
		a.status(slow, server.Status{Applied: 1})
		want("the first one is applied", metrics.Followers{Dataplanes: 2, Relays: 1, OldestUnapplied: at(5)})
		a.status(slow, server.Status{Applied: 3})
		want("another two are applied", metrics.Followers{Dataplanes: 2, Relays: 1, OldestUnapplied: at(15)})
		a.status(slow, server.Status{Applied: 4})
		gone()
		want("all are applied", metrics.Followers{Dataplanes: 2})
		a.gone(slow)
		a.wasSent(slow, 5)
		a.status(slow, server.Status{Applied: 2})
		want("it is gone", metrics.Followers{Dataplanes: 1})
	})
}

// TestAudienceIsBounded: a client that applies nothing costs the same memory after many updates, and the oldest one still counts.
func TestAudienceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, c, began := newAudience(), server.Client{ID: 1}, time.Now()
		a.opened(c)
		for revision := range state.Revision(1000) {
			a.wasSent(c, revision+1)
			time.Sleep(time.Second)
		}
		a.status(c, server.Status{})
		if n := len(a.clients[c.ID].unapplied); n > maxUnapplied {
			t.Errorf("it keeps %d points in time", n)
		}
		if got := a.measured().OldestUnapplied; !got.Equal(began) {
			t.Errorf("the oldest update was sent at %v, want %v", got, began)
		}
		a.status(c, server.Status{Applied: 999})
		if got := a.measured().OldestUnapplied; got.IsZero() {
			t.Error("no update waits, though one is not applied")
		}
		a.status(c, server.Status{Applied: 1000})
		if got := a.measured().OldestUnapplied; !got.IsZero() {
			t.Errorf("an update waits since %v, though all are applied", got)
		}
	})
}
