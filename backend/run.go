package backend

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// RunOptions says how [Run] paces itself. The zero value has all defaults.
type RunOptions struct {
	// Logger gets failures, services that cannot be programmed and repairs. At level -2 it gets one line for each Apply, and at level -4 one line for each
	// of the first 100 services of it. Default: nothing is logged.
	Logger *slog.Logger
	// VerifyPeriod is the time between two verifications. Default: 30 s.
	VerifyPeriod time.Duration
	// MinInterval is the least time between an Apply that succeeds and the next one. Changes of that time are merged. Default: none.
	MinInterval time.Duration
	// PartEntries is about how many entries one Apply adds, removes or replaces at most. Each frontend is one entry, and so is each endpoint
	// behind a frontend. Some changes take more:
	//   - removing a frontend that has more endpoints, or adding it after the first one of its port
	//   - a port with another affinity, masquerading or traffic policy
	//   - a service that failed
	//   - an update that is full or has another node
	//
	// Default: 1,000.
	PartEntries int
	// MinBackoff and MaxBackoff bound the pause after a failure. It starts at about the minimum and doubles with each
	// further failure of the same kind. Defaults: 10 ms and 5 s.
	MinBackoff, MaxBackoff time.Duration
	// MinDisturbedInterval is the least time between a verification and one that a disturbance asks for. Default: 100 ms.
	MinDisturbedInterval time.Duration
	// OnStatus is called before each Apply and after each Apply and Verify, by the goroutine of Run. It must return soon. It may be nil.
	OnStatus func(Status)
	// OnAttempt is called after each Apply and Verify, before OnStatus, by the same goroutine. It may be nil.
	OnAttempt func(Attempt)
}

// Attempt is one call of a backend.
type Attempt struct {
	// Update is the applied update, nil for a Verify. It must not be modified.
	Update *state.Update
	// Before has the records that the dataplane held before Update, of its services that existed. In a full update, it has all services. With
	// [state.ChangesOf] it tells what has changed. It must not be modified or kept after OnAttempt returns. It is nil for a Verify.
	Before map[state.ServiceName]*state.Service
	// Retry is set if the update holds only services that failed before.
	Retry bool
	// Began and Took say when the call was made and how long it took.
	Began time.Time
	Took  time.Duration
	Result
	Err error
}

// Run is [Reconciler.Run] of a new Reconciler. A program that runs one dataplane several times uses one Reconciler, which knows the last good records.
func Run(ctx context.Context, feed state.Feed, b Backend, o RunOptions) error {
	return NewReconciler(b).Run(ctx, feed, o)
}

// Run keeps the dataplane in step with feed until ctx ends, and then returns nil. Programmed state stays. Run returns an error only if the
// feed is closed.
//
// Run retries a failed change after a growing pause, merged with the changes of that time. It retries a single service that fails as a
// whole, in turn with others, and the service does not delay the rest. Failing services share one pause, so that a new one may wait through
// a long pause.
//
// One Apply changes a bounded number of entries. Namespaces take turns, and small changes come before large changes of the same namespace.
// A larger change is applied in parts, between which others come. After that, the service rests four times the duration of the change, for
// at most 5 s.
func (r *Reconciler) Run(ctx context.Context, feed state.Feed, o RunOptions) error {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.VerifyPeriod = cmp.Or(o.VerifyPeriod, 30*time.Second)
	o.MinBackoff = cmp.Or(o.MinBackoff, 10*time.Millisecond)
	o.MaxBackoff = cmp.Or(o.MaxBackoff, 5*time.Second)
	o.MinDisturbedInterval = cmp.Or(o.MinDisturbedInterval, 100*time.Millisecond)
	run := &runner{
		RunOptions: o,
		feed:       feed,
		Reconciler: r,
		failing:    make(map[state.ServiceName]failure),
		queue:      newQueue(cmp.Or(o.PartEntries, usualPart), r.held),
	}
	following, stop := context.WithCancel(ctx)
	var done sync.WaitGroup
	done.Go(func() { run.alarm.follow(following, r.backend.Disturbed()) })
	defer done.Wait()
	defer stop()
	return run.run(ctx)
}

// runner is one call of Run. Only one goroutine uses it, except for its alarm.
type runner struct {
	RunOptions
	*Reconciler
	feed   state.Feed
	alarm  alarm
	status Status
	queue  queue

	node     *state.Node // of the last applied update, nil before the first
	applying retry
	rested   time.Time // when MinInterval has passed since the last Apply

	failing    map[state.ServiceName]failure
	retrying   retry
	unrepaired map[state.ServiceName]error // what the last Verify could not repair

	verifying  retry
	verifyAt   time.Time // zero before the first Apply
	verifiedAt time.Time
}

func (r *runner) run(ctx context.Context) error {
	for ctx.Err() == nil {
		now, next := time.Now(), latest(r.applying.at, r.rested)
		switch {
		case isDue(r.verifyAt, now):
			r.verify(ctx)
		case next.After(now):
			r.pause(ctx, earliest(next, r.verifyAt))
		case isDue(r.retrying.at, now):
			r.retry(now)
		default:
			isReady := r.queue.isReady(r.status.Applied, r.node, now)
			u, err := r.next(ctx, isReady, earliest(earliest(r.retrying.at, r.verifyAt), r.queue.wakes()))
			switch {
			case err != nil:
				return fmt.Errorf("no further states: %w", err)
			case u != nil && u.Full:
				r.applyFull(ctx, u)
			default:
				if u != nil {
					r.queue.add(u, time.Now())
				}
				// The feed has had its turn, and the next one comes after a part: it may always have more.
				if ctx.Err() == nil && r.queue.isReady(r.status.Applied, r.node, time.Now()) {
					r.applyPart(ctx)
				}
			}
		}
	}
	return nil
}

// next waits for an update until something else is due, at the time until or because of a disturbance. It then returns nil. It does not
// wait if there already is something to apply.
func (r *runner) next(run context.Context, isReady bool, until time.Time) (*state.Update, error) {
	var ctx context.Context
	var cancel context.CancelFunc
	if until.IsZero() {
		ctx, cancel = context.WithCancel(run)
	} else {
		ctx, cancel = context.WithDeadline(run, until)
	}
	defer cancel()

	var u *state.Update
	var err error
	if r.alarm.set(cancel) {
		if isReady {
			cancel()
		}
		u, err = r.feed.Next(ctx, r.queue.got)
	}
	r.takeAlarm()
	// A feed may be closed because run has ended, and before ctx has.
	if err != nil && (ctx.Err() != nil || run.Err() != nil) {
		return nil, nil
	}
	return u, err
}

// pause waits until something is due.
func (r *runner) pause(ctx context.Context, until time.Time) {
	ctx, cancel := context.WithDeadline(ctx, until)
	defer cancel()
	if r.alarm.set(cancel) {
		<-ctx.Done()
	}
	r.takeAlarm()
}

// takeAlarm brings the next verification forward if there was a disturbance. If the last one failed, the pause after it is kept.
func (r *runner) takeAlarm() {
	if !r.alarm.take() || r.node == nil || r.verifying.failures > 0 {
		return
	}
	r.verifyAt = earliest(r.verifyAt, latest(time.Now(), r.verifiedAt.Add(r.MinDisturbedInterval)))
}

// applyFull applies a full update.
func (r *runner) applyFull(ctx context.Context, u *state.Update) {
	r.pending(time.Now())
	result, ok := r.apply(ctx, u, false)
	if !ok {
		return
	}
	r.queue.replace(u)
	r.applied(u, result, nil)
}

// applyPart applies what comes next.
func (r *runner) applyPart(ctx context.Context) {
	b := r.queue.take(r.node)
	if len(b.steps) == 0 && len(r.queue.wants) > 0 {
		return // all that there is waits for others
	}
	isRetry := b.isRetry()
	if !isRetry {
		r.pending(r.queue.since())
	}
	revision, triggers := r.queue.revision(b)
	u := b.update(revision, r.queue.node)
	u.Triggers = triggers
	began := time.Now()
	result, ok := r.apply(ctx, u, isRetry)
	if !ok {
		r.queue.keep(b)
		return
	}
	now := time.Now()
	r.queue.applied(b, result.Failed, now.Sub(began), now)
	targets := make(map[state.ServiceName]*state.Service, len(result.Failed))
	for _, s := range b.steps {
		if result.Failed[s.name] != nil {
			targets[s.name] = s.record
		}
	}
	r.applied(u, result, targets)
}

// pending reports since when something waits.
func (r *runner) pending(since time.Time) {
	if r.status.Pending.IsZero() {
		r.status.Pending = since
		if since.IsZero() { // it is about the node only
			r.status.Pending = time.Now()
		}
		r.report()
	}
}

// apply calls the backend, and reports whether it succeeded. Otherwise the same update comes again after a pause.
func (r *runner) apply(ctx context.Context, u *state.Update, isRetry bool) (Result, bool) {
	result, err := r.attempt(Attempt{Update: u, Before: r.before(u), Retry: isRetry}, func() (Result, error) { return r.Apply(ctx, u) })
	if err == nil {
		return result, true
	}
	if ctx.Err() == nil {
		pause := r.applying.failed(err, &r.RunOptions)
		r.Logger.Warn("cannot apply, trying again", "revision", u.Revision, "failures", r.applying.failures, "pause", pause, "error", err)
		r.report()
	}
	return result, false
}

// applied records that an update was applied. targets are the desired records of failed services. Without a target, the desired record of a
// failed service is in the update.
func (r *runner) applied(u *state.Update, result Result, targets map[state.ServiceName]*state.Service) {
	r.applying.reset()
	now := time.Now()
	if !r.queue.isReady(u.Revision, u.Node, now) {
		r.rested = now.Add(r.MinInterval)
	}
	r.status.Applied = u.Revision
	r.status.Pending = r.queue.since()
	if r.node == nil {
		r.verifyAt = now.Add(r.VerifyPeriod)
	}
	r.node = u.Node
	r.noteServices(u, result.Failed, targets)
	r.succeeded(result)
}

// attempt calls the backend and lets the observer know.
func (r *runner) attempt(a Attempt, call func() (Result, error)) (Result, error) {
	a.Began = time.Now()
	a.Result, a.Err = call()
	a.Took = time.Since(a.Began)
	if r.OnAttempt != nil {
		r.OnAttempt(a)
	}
	if a.Update != nil && a.Err == nil {
		r.logApplied(&a)
	}
	return a.Result, a.Err
}

func (r *runner) verify(ctx context.Context) {
	r.alarm.take() // what it is about is looked for now
	result, err := r.attempt(Attempt{}, func() (Result, error) { return r.backend.Verify(ctx) })
	r.verifiedAt = time.Now()
	if err != nil {
		if ctx.Err() == nil {
			pause := r.verifying.failed(err, &r.RunOptions)
			r.verifyAt = r.verifying.at
			r.Logger.Warn("cannot verify, trying again", "failures", r.verifying.failures, "pause", pause, "error", err)
			r.report()
		}
		return
	}
	r.status.Verified++
	r.verifyAt = r.verifiedAt.Add(r.VerifyPeriod)
	r.noteUnrepaired(result.Failed)
	r.succeeded(result)
}

// succeeded counts what a call did.
func (r *runner) succeeded(result Result) {
	r.status.LastSuccess = time.Now()
	r.status.Written += result.Written
	r.status.Repaired += result.Repaired
	if result.Repaired > 0 {
		r.Logger.Warn("repaired what something else had changed in the dataplane", "objects", result.Repaired)
	}
	r.report()
}
