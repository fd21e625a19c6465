package backend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/state"
)

// bench is a feed, a dataplane and a Run between them, in a synctest bubble.
type bench struct {
	*testing.T
	feed    *backendtest.Feed
	backend *backendtest.Backend
	cancel  context.CancelFunc
	done    chan error

	mu     sync.Mutex
	status backend.Status
}

// start runs test in a bubble. The backend never fails unless the test says so.
func start(t *testing.T, o backend.RunOptions, test func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		b := &bench{T: t, feed: &backendtest.Feed{}, backend: backendtest.New(1), cancel: cancel, done: make(chan error, 1)}
		b.backend.SetFailureRate(0)
		o.OnStatus = func(s backend.Status) {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.status = s
		}
		go func() { b.done <- backend.Run(ctx, b.feed, b.backend, o) }()
		test(b)
		cancel()
		synctest.Wait()
		select {
		case err := <-b.done:
			if err != nil {
				t.Errorf("Run returned %v after its context ended, want nil", err)
			}
		default:
			t.Error("Run did not return when its context ended")
		}
		if err := b.backend.Breaches(); err != nil {
			t.Errorf("the backend was used against its contract: %v", err)
		}
	})
}

// after lets virtual time pass until everything waits.
func (b *bench) after(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (b *bench) currentStatus() backend.Status {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.status
}

// inStep fails the test unless the dataplane shows the feed's state.
func (b *bench) inStep() {
	b.Helper()
	if d := cmp.Diff(b.feed.Services(), b.backend.Shown()); d != "" {
		b.Errorf("the dataplane does not show the feed's state (-want +got):\n%s", d)
	}
}

// calls returns what the backend was asked to do since the last time: for each Apply its revision, for each Verify "verify".
func (b *bench) calls() (did []string, starts []time.Time) {
	for _, c := range b.backend.Calls() {
		what := "verify"
		if c.Update != nil {
			what = fmt.Sprintf("apply %d", c.Update.Revision)
			if c.Update.Full {
				what += " full"
			}
			for _, s := range c.Update.Changed {
				what += " " + s.Name.Name
			}
			for _, n := range c.Update.Removed {
				what += " -" + n.Name
			}
		}
		if c.Err != nil {
			what += " failed"
		}
		did = append(did, what)
		starts = append(starts, c.Start)
	}
	return did, starts
}

func (b *bench) wantCalls(want ...string) []time.Time {
	b.Helper()
	got, starts := b.calls()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		b.Fatalf("the backend was asked for %q, want %q", got, want)
	}
	return starts
}

func name(n string) state.ServiceName { return state.ServiceName{Namespace: "default", Name: n} }

// service returns a record that is different for each version.
func service(n string, version int) *state.Service {
	return &state.Service{Name: name(n), HealthCheck: state.HealthCheck{LocalIPv4: version}}
}

func (b *bench) publish(services ...*state.Service) { b.feed.Publish(services) }

func TestConvergesUnderFailures(t *testing.T) {
	for seed := range uint64(20) {
		start(t, backend.RunOptions{VerifyPeriod: time.Second}, func(b *bench) {
			rng := rand.New(rand.NewPCG(seed, 7))
			b.backend.SetFailureRate(0.1)
			b.backend.SetLatency(time.Millisecond)
			for i := range 2000 {
				n := fmt.Sprintf("s%d", rng.IntN(30))
				switch rng.IntN(20) {
				case 0, 1, 2, 3:
					b.feed.Publish(nil, name(n))
				case 4:
					b.backend.Break(name(n))
				case 5, 6:
					b.backend.Fix(name(n))
				case 7:
					if b.backend.Drift(2) > 0 && rng.IntN(2) == 0 {
						b.backend.Disturb()
					}
				case 8:
					b.feed.Forget()
				default:
					b.publish(service(n, i), service("other", i))
				}
				if rng.IntN(2) == 0 {
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
			}
			for i := range 30 {
				b.backend.Fix(name(fmt.Sprintf("s%d", i)))
			}
			b.after(time.Minute)
			b.inStep()
			s := b.currentStatus()
			if s.Applied != b.feed.Revision() || len(s.Failed) > 0 || s.Verified == 0 || s.Repaired == 0 {
				b.Errorf("status is %+v, want revision %d, no failures, and repairs", s, b.feed.Revision())
			}
		})
	}
}

func TestFirstApplyIsFull(t *testing.T) {
	start(t, backend.RunOptions{}, func(b *bench) {
		b.after(time.Hour)
		b.backend.Disturb()
		b.after(time.Hour)
		b.wantCalls() // nothing is verified before there is something
		b.publish(service("a", 1))
		b.after(0)
		b.publish(service("b", 1))
		b.after(0)
		b.feed.Publish(nil, name("a"))
		b.after(0)
		b.wantCalls("apply 1 full a", "apply 2 b", "apply 3 -a")
		b.inStep()
	})
}

// TestBackoff wants each pause to be between half of the nominal one and all of it.
func TestBackoff(t *testing.T) {
	o := backend.RunOptions{MinBackoff: 10 * time.Millisecond, MaxBackoff: 100 * time.Millisecond, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		b.backend.SetFailureRate(1)
		b.publish(service("a", 1))
		b.after(400 * time.Millisecond)
		b.publish(service("b", 1))
		b.after(200 * time.Millisecond)
		status := b.currentStatus()
		b.backend.SetFailureRate(0)
		b.after(100 * time.Millisecond)
		did, starts := b.calls()
		if len(did) < 8 || did[0] != "apply 1 full a failed" || did[len(did)-2] != "apply 2 full a b failed" || did[len(did)-1] != "apply 2 full a b" {
			b.Fatalf("the backend was asked for %q", did)
		}
		nominal := 10 * time.Millisecond
		jittered := false
		for i := range starts[1:] {
			pause := starts[i+1].Sub(starts[i])
			if pause < nominal/2 || pause > nominal {
				b.Errorf("pause %d is %v, want %v to %v", i, pause, nominal/2, nominal)
			}
			jittered = jittered || pause != nominal
			nominal = min(2*nominal, 100*time.Millisecond)
		}
		if !jittered {
			b.Error("the pauses are not spread")
		}
		if status.Failures != len(did)-1 || !errors.Is(status.Err, backendtest.ErrInjected) || status.Applied != 0 {
			b.Errorf("status while failing is %+v, want %d failures", status, len(did)-1)
		}
		if s := b.currentStatus(); s.Failures != 0 || s.Err != nil || s.Applied != 2 || s.Written != 2 || !s.LastSuccess.Equal(starts[len(starts)-1]) {
			b.Errorf("status after success is %+v", s)
		}

		b.backend.SetFailureRate(1) // a success resets the pause
		b.publish(service("c", 1))
		b.after(0)
		b.backend.SetFailureRate(0)
		b.after(10 * time.Millisecond)
		b.wantCalls("apply 3 c failed", "apply 3 c")
	})
}

func TestCoalescesOnlyWhileBusy(t *testing.T) {
	start(t, backend.RunOptions{}, func(b *bench) {
		b.backend.SetLatency(50 * time.Millisecond)
		b.publish(service("a", 1))
		b.after(10 * time.Millisecond)
		b.publish(service("a", 2))
		b.publish(service("b", 1))
		b.feed.Publish(nil, name("a"))
		b.after(100 * time.Millisecond)
		starts := b.wantCalls("apply 1 full a", "apply 4 b -a")
		if gap := starts[1].Sub(starts[0]); gap != 50*time.Millisecond {
			b.Errorf("the merged update was applied %v after the first, want at once when that was done", gap)
		}
		b.publish(service("c", 1))
		published := time.Now()
		b.after(60 * time.Millisecond)
		if starts := b.wantCalls("apply 5 c"); !starts[0].Equal(published) {
			b.Errorf("an update waited %v for an idle backend", starts[0].Sub(published))
		}
	})
}

func TestFailingServiceHealsAlone(t *testing.T) {
	o := backend.RunOptions{MinBackoff: 10 * time.Millisecond, MaxBackoff: 40 * time.Millisecond, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		b.publish(service("a", 1), service("b", 1), service("c", 1))
		b.after(0)
		b.backend.Break(name("a"))
		b.backend.Break(name("c"))
		b.publish(service("a", 2), service("b", 2))
		b.after(0)
		b.feed.Publish(nil, name("c"))
		b.after(0)
		b.wantCalls("apply 1 full a b c", "apply 2 a b", "apply 3 -c")
		if s := b.currentStatus(); s.Applied != 3 || len(s.Failed) != 2 || s.Failed[name("a")] == nil || s.Failures != 0 {
			b.Errorf("status is %+v, want a and c to have failed", s)
		}
		if shown := b.backend.Shown(); !shown[name("b")].Equal(service("b", 2)) || !shown[name("a")].Equal(service("a", 1)) {
			b.Errorf("the dataplane shows %v, want the new b and the old a", shown)
		}
		b.after(10 * time.Millisecond)
		b.publish(service("b", 3))
		b.after(0)
		b.wantCalls("apply 3 a -c", "apply 4 b")
		b.backend.Fix(name("a"))
		b.after(20 * time.Millisecond)
		b.wantCalls("apply 4 a -c")
		b.backend.Fix(name("c"))
		b.after(time.Second)
		b.wantCalls("apply 4 -c")
		b.inStep()
		if s := b.currentStatus(); len(s.Failed) != 0 {
			b.Errorf("status is %+v, want no failed services", s)
		}
	})
}

// TestFailingServiceIsSuperseded is about failing services whose newer records do not fail, or that are gone.
func TestFailingServiceIsSuperseded(t *testing.T) {
	start(t, backend.RunOptions{MinBackoff: time.Second, VerifyPeriod: time.Hour}, func(b *bench) {
		for _, n := range []string{"a", "b", "c"} {
			b.backend.Break(name(n))
		}
		b.publish(service("a", 1), service("b", 1), service("c", 1), service("d", 1))
		b.after(0)
		for _, n := range []string{"a", "b", "c"} {
			b.backend.Fix(name(n))
		}
		b.publish(service("a", 2))
		b.after(0)
		b.feed.Publish(nil, name("b"))
		b.after(0)
		if s := b.currentStatus(); len(s.Failed) != 1 || s.Failed[name("c")] == nil {
			b.Errorf("failed services are %v, want c", s.Failed)
		}
		b.feed.Forget()
		b.feed.Publish(nil, name("c"))
		b.after(time.Minute)
		b.wantCalls("apply 1 full a b c d", "apply 2 a", "apply 3 -b", "apply 4 full a d")
		b.inStep()
		if s := b.currentStatus(); len(s.Failed) != 0 {
			b.Errorf("failed services are %v, want none", s.Failed)
		}
	})
}

func TestVerifies(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Minute, MinBackoff: time.Second, MaxBackoff: time.Second}, func(b *bench) {
		b.publish(service("a", 1), service("b", 1))
		began := time.Now()
		b.after(0)
		b.backend.Drift(1)
		b.after(2*time.Minute + time.Second)
		starts := b.wantCalls("apply 1 full a b", "verify", "verify")
		for i, at := range starts {
			if got := at.Sub(began); got != time.Duration(i)*time.Minute {
				b.Errorf("call %d was at %v, want %d minutes", i, got, i)
			}
		}
		b.inStep()
		if s := b.currentStatus(); s.Repaired != 1 || s.Verified != 2 || s.Written != 3 {
			b.Errorf("status is %+v, want one repair in two verifications", s)
		}

		b.backend.SetFailureRate(1) // what fails is tried again soon
		b.after(59 * time.Second)
		if s := b.currentStatus(); s.Failures != 1 || s.Err == nil {
			b.Errorf("status is %+v, want a failure", s)
		}
		b.backend.SetFailureRate(0)
		b.after(time.Second)
		b.wantCalls("verify failed", "verify")
		if s := b.currentStatus(); s.Failures != 0 || s.Err != nil {
			b.Errorf("status is %+v, want no failure", s)
		}
	})
}

// TestVerifyAndApplyFailApart wants updates to be applied while verification fails, and the other way round.
func TestVerifyAndApplyFailApart(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Minute, MinBackoff: 10 * time.Second, MaxBackoff: 10 * time.Second}, func(b *bench) {
		b.publish(service("a", 1))
		b.after(0)
		b.backend.SetFailureRate(1)
		b.after(time.Minute)
		b.backend.SetFailureRate(0)
		b.publish(service("a", 2))
		b.after(0)
		b.wantCalls("apply 1 full a", "verify failed", "apply 2 a")
		b.after(10 * time.Second)
		b.wantCalls("verify")

		b.backend.SetFailureRate(1)
		b.publish(service("a", 3))
		b.after(0)
		b.backend.SetFailureRate(0)
		b.backend.Disturb()
		b.after(time.Second)
		b.wantCalls("apply 3 a failed", "verify")
		b.after(10 * time.Second)
		b.wantCalls("apply 3 a")
	})
}

// TestUnrepairedServices is about services that a verification cannot repair: a newer record heals b, a fix heals a.
func TestUnrepairedServices(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Hour, MinBackoff: time.Second, MaxBackoff: 2 * time.Second}, func(b *bench) {
		wantFailed := func(want ...string) {
			b.Helper()
			s := b.currentStatus()
			for _, n := range want {
				if s.Failed[name(n)] == nil {
					b.Errorf("%s is not among the failed services %v", n, s.Failed)
				}
			}
			if len(s.Failed) != len(want) || s.Failures != 0 {
				b.Errorf("status is %+v, want %v to have failed", s, want)
			}
		}
		b.publish(service("a", 1), service("b", 1), service("c", 1))
		b.after(0)
		b.backend.Drift(3)
		b.backend.Break(name("a"))
		b.backend.Break(name("b"))
		b.backend.Disturb()
		b.after(0)
		b.wantCalls("apply 1 full a b c", "verify")
		wantFailed("a", "b")
		b.backend.Fix(name("b"))
		b.publish(service("b", 2))
		b.after(0)
		b.wantCalls("apply 2 b")
		wantFailed("a")
		b.backend.Fix(name("a"))
		b.after(time.Minute)
		b.wantCalls("verify")
		wantFailed()
		b.inStep()
	})
}

// TestVerifyLeavesFailingServicesAlone is about a service that fails to apply and has drifted too: it is tried again by
// itself, and verification keeps its period.
func TestVerifyLeavesFailingServicesAlone(t *testing.T) {
	o := backend.RunOptions{VerifyPeriod: time.Minute, MinBackoff: time.Hour, MaxBackoff: time.Hour}
	start(t, o, func(b *bench) {
		b.publish(service("a", 1))
		b.after(0)
		b.backend.Drift(1)
		b.backend.Break(name("a"))
		b.publish(service("a", 2))
		b.after(time.Minute)
		b.backend.Disturb()
		b.after(time.Second)
		b.wantCalls("apply 1 full a", "apply 2 a", "verify", "verify")
		if s := b.currentStatus(); len(s.Failed) != 1 {
			b.Errorf("failed services are %v, want a", s.Failed)
		}
	})
}

func TestDisturbancesAreRateLimited(t *testing.T) {
	start(t, backend.RunOptions{MinDisturbedInterval: 100 * time.Millisecond}, func(b *bench) {
		b.publish(service("a", 1))
		b.after(time.Second)
		began := time.Now()
		for range 250 {
			b.backend.Disturb()
			b.after(time.Millisecond)
		}
		b.after(time.Second)
		starts := b.wantCalls("apply 1 full a", "verify", "verify", "verify", "verify")
		for i, at := range starts[1:] {
			if got := at.Sub(began); got != time.Duration(i)*100*time.Millisecond {
				b.Errorf("verification %d was %v after the first disturbance, want %v", i, got, time.Duration(i)*100*time.Millisecond)
			}
		}
	})
}

// TestDisturbedDuringSteadyUpdates keeps the feed from ever being idle, and wants a disturbance to be noticed all the same.
func TestDisturbedDuringSteadyUpdates(t *testing.T) {
	start(t, backend.RunOptions{}, func(b *bench) {
		b.backend.SetLatency(time.Millisecond)
		for i := range 100 {
			b.publish(service("a", i))
			if i == 50 {
				b.backend.Drift(1)
				b.backend.Disturb()
			}
			b.after(time.Millisecond / 2)
		}
		did, _ := b.calls()
		verifies := 0
		for _, what := range did {
			if what == "verify" {
				verifies++
			}
		}
		if verifies != 1 {
			b.Errorf("there were %d verifications in %q, want one for the disturbance", verifies, did)
		}
	})
}

// TestDisturbedDuringApply: a disturbance comes while the backend is at work, and nothing changes after that.
func TestDisturbedDuringApply(t *testing.T) {
	start(t, backend.RunOptions{VerifyPeriod: time.Hour}, func(b *bench) {
		b.publish(service("a", 1))
		b.after(time.Second)
		b.backend.SetLatency(10 * time.Millisecond)
		b.publish(service("a", 2))
		b.after(5 * time.Millisecond)
		b.backend.Disturb()
		b.after(time.Second)
		b.wantCalls("apply 1 full a", "apply 2 a", "verify")
	})
}

// TestCancellation ends the context at every moment of a busy second.
func TestCancellation(t *testing.T) {
	for at := range 200 {
		start(t, backend.RunOptions{VerifyPeriod: 30 * time.Millisecond}, func(b *bench) {
			b.backend.SetFailureRate(0.3)
			b.backend.SetLatency(3 * time.Millisecond)
			b.backend.Break(name("s3"))
			go func() {
				for i := range 10 {
					b.publish(service(fmt.Sprintf("s%d", i%5), i))
					time.Sleep(15 * time.Millisecond)
				}
			}()
			time.Sleep(time.Duration(at) * time.Millisecond)
			b.cancel()
			synctest.Wait()
			b.backend.Calls()
			shown := b.backend.Shown()
			b.after(time.Minute)
			b.wantCalls()
			if len(b.backend.Shown()) != len(shown) {
				b.Error("what is programmed did not stay")
			}
		})
	}
}

func TestClosedFeed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := &backendtest.Feed{}
		feed.Publish([]*state.Service{service("a", 1)})
		done := make(chan error, 1)
		go func() { done <- backend.Run(t.Context(), feed, backendtest.New(1), backend.RunOptions{}) }()
		synctest.Wait()
		feed.Close()
		if err := <-done; !errors.Is(err, backendtest.ErrClosed) {
			t.Errorf("Run returned %v, want that the feed is closed", err)
		}
	})
}

// endedContext has ended, but those that derive from it do not know yet.
type endedContext struct {
	context.Context
	ended atomic.Bool
}

func (c *endedContext) Err() error {
	if c.ended.Load() {
		return context.Canceled
	}
	return nil
}

// TestClosedFeedAtTheEnd: a feed that is closed because all ends is no failure.
func TestClosedFeedAtTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		feed := &backendtest.Feed{}
		feed.Publish([]*state.Service{service("a", 1)})
		ctx := &endedContext{Context: t.Context()}
		done := make(chan error, 1)
		go func() { done <- backend.Run(ctx, feed, backendtest.New(1), backend.RunOptions{}) }()
		synctest.Wait()
		ctx.ended.Store(true)
		feed.Close()
		if err := <-done; err != nil {
			t.Errorf("Run returned %v", err)
		}
	})
}

// TestMinInterval: after a commit the next one waits, with all that has changed by then; verifications do not.
func TestMinInterval(t *testing.T) {
	start(t, backend.RunOptions{MinInterval: 10 * time.Second, VerifyPeriod: 4 * time.Second, MinBackoff: time.Second, MaxBackoff: time.Second}, func(b *bench) {
		began := time.Now()
		b.publish(service("a", 1))
		b.after(time.Second)
		b.publish(service("b", 1))
		b.after(time.Second)
		b.publish(service("a", 2))
		b.after(7 * time.Second)
		b.wantCalls("apply 1 full a", "verify", "verify")
		b.after(2 * time.Second)
		starts := b.wantCalls("apply 3 a b")
		if at := starts[0].Sub(began); at != 10*time.Second {
			t.Errorf("the second commit came after %v, want 10 s", at)
		}
		b.after(time.Minute)
		b.calls()
		began = time.Now()
		b.publish(service("a", 3))
		b.after(0)
		if starts := b.wantCalls("apply 4 a"); starts[0] != began {
			t.Errorf("after a long time, a commit waited for %v", starts[0].Sub(began))
		}
		b.inStep()
	})
}
