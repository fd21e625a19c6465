package backend_test

import (
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// TestAttempts follows one update that takes its time and one that fails at first.
func TestAttempts(t *testing.T) {
	var attempts []backend.Attempt
	o := backend.RunOptions{OnAttempt: func(a backend.Attempt) { attempts = append(attempts, a) }, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		name := state.ServiceName{Namespace: "ns", Name: "a"}
		b.backend.SetLatency(time.Second)
		b.feed.Publish([]*state.Service{{Name: name}})
		began := time.Now()
		b.after(time.Second / 2)
		if pending := b.currentStatus().Pending; !pending.Equal(began) {
			t.Errorf("the update is pending since %v, want %v", pending, began)
		}
		b.after(time.Second)
		if pending := b.currentStatus().Pending; !pending.IsZero() {
			t.Errorf("after it was applied, an update is pending since %v", pending)
		}
		if len(attempts) != 1 || attempts[0].Took != time.Second || !attempts[0].Began.Equal(began) || attempts[0].Update == nil {
			t.Fatalf("got attempts %+v, want one of a second", attempts)
		}

		b.backend.SetFailureRate(1)
		b.feed.Publish([]*state.Service{{Name: name, HealthCheck: state.HealthCheck{Port: 1}}})
		began = time.Now()
		b.after(5 * time.Second)
		if s := b.currentStatus(); !s.Pending.Equal(began) || s.Failures == 0 {
			t.Errorf("after %d failures, the update is pending since %v, want %v", s.Failures, s.Pending, began)
		}
		if last := attempts[len(attempts)-1]; last.Err == nil {
			t.Errorf("the last attempt did not report its failure: %+v", last)
		}
		b.backend.SetFailureRate(0)
		b.after(time.Minute)
		if s := b.currentStatus(); !s.Pending.IsZero() {
			t.Errorf("after it was applied at last, an update is pending since %v", s.Pending)
		}
	})
}
