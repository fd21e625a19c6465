// Package backendtest provides a dataplane and a feed in memory, for tests of what reconciles the one with the other.
package backendtest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// ErrInjected is the failure of one operation in ten.
var ErrInjected = errors.New("injected failure")

// Call is a call of Apply or Verify that a [Backend] got.
type Call struct {
	Start  time.Time
	Update *state.Update // nil for Verify
	Result backend.Result
	Err    error
}

// Backend is a dataplane in memory. Its operations fail 10% of the time. It is safe for concurrent use.
type Backend struct {
	mu        sync.Mutex
	failRate  float64
	latency   func(u *state.Update, shown map[state.ServiceName]*state.Service) time.Duration
	rng       *rand.Rand
	busy      bool
	wanted    map[state.ServiceName]*state.Service // last applied; nil before the first Apply
	shown     map[state.ServiceName]*state.Service
	broken    map[state.ServiceName]error
	refuse    func(*state.Service) error
	calls     []Call
	breaches  []error
	disturbed chan struct{}
}

// New returns an empty dataplane whose failures depend on seed only.
func New(seed uint64) *Backend {
	return &Backend{
		failRate:  0.1,
		rng:       rand.New(rand.NewPCG(seed, 0)),
		shown:     make(map[state.ServiceName]*state.Service),
		broken:    make(map[state.ServiceName]error),
		disturbed: make(chan struct{}, 1),
	}
}

var _ backend.Backend = (*Backend)(nil)

// Apply implements [backend.Backend].
func (b *Backend) Apply(ctx context.Context, u *state.Update) (backend.Result, error) {
	return b.operate(ctx, u, func() (result backend.Result) {
		if b.wanted == nil {
			b.wanted = make(map[state.ServiceName]*state.Service)
			if !u.Full {
				b.breach("the first update is not full")
			}
		}
		set := make(map[state.ServiceName]*state.Service)
		if u.Full {
			for name := range b.shown {
				set[name] = nil
			}
			for name := range b.wanted {
				set[name] = nil
			}
		}
		for _, name := range u.Removed {
			set[name] = nil
		}
		for _, s := range u.Changed {
			set[s.Name] = s
		}
		for name, s := range set {
			put(b.wanted, name, s)
			if err := b.broken[name]; err != nil {
				b.fail(&result, name, err)
			} else if put(b.shown, name, s) {
				result.Written++
			}
		}
		b.checkOwners()
		return result
	})
}

// refused returns the services of u that cannot be programmed, nil if there are none.
func (b *Backend) refused(u *state.Update) error {
	if u == nil || b.refuse == nil {
		return nil
	}
	services := map[state.ServiceName]error{}
	for _, s := range u.Changed {
		if err := b.refuse(s); err != nil {
			services[s.Name] = err
		}
	}
	if len(services) == 0 {
		return nil
	}
	return &backend.RefusedError{Services: services}
}

// checkOwners looks for frontends that two services are to have.
func (b *Backend) checkOwners() {
	owners := map[state.FrontendKey]state.ServiceName{}
	for name, s := range b.wanted {
		for p, f := range s.Frontends() {
			if owner, ok := owners[p.Key(f)]; ok && owner != name {
				b.breach(fmt.Sprintf("%v is to be of %v and %v", p.Key(f), name, owner))
			}
			owners[p.Key(f)] = name
		}
	}
}

// Verify implements [backend.Backend].
func (b *Backend) Verify(ctx context.Context) (backend.Result, error) {
	return b.operate(ctx, nil, func() (result backend.Result) {
		if b.wanted == nil {
			b.breach("Verify before the first Apply")
		}
		names := maps.Clone(b.shown)
		maps.Copy(names, b.wanted)
		for name := range names {
			if same(b.shown[name], b.wanted[name]) {
				continue
			}
			if err := b.broken[name]; err != nil {
				b.fail(&result, name, err)
				continue
			}
			put(b.shown, name, b.wanted[name])
			result.Written++
			result.Repaired++
		}
		return result
	})
}

// Disturbed implements [backend.Backend].
func (b *Backend) Disturbed() <-chan struct{} { return b.disturbed }

// Disturb signals that something outside changed the dataplane.
func (b *Backend) Disturb() {
	select {
	case b.disturbed <- struct{}{}:
	default:
	}
}

// SetFailureRate sets the part of the operations that fail. It is 0.1 at first.
func (b *Backend) SetFailureRate(rate float64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failRate = rate
}

// SetLatency sets how long an operation takes. It is 0 at first.
func (b *Backend) SetLatency(d time.Duration) {
	b.SetLatencyOf(func(*state.Update, map[state.ServiceName]*state.Service) time.Duration { return d })
}

// SetLatencyOf sets how long an operation takes, by its update (nil for Verify) and the state that is shown before it.
func (b *Backend) SetLatencyOf(f func(u *state.Update, shown map[state.ServiceName]*state.Service) time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.latency = f
}

// SetRefusal makes Apply refuse the records for which f returns an error. None is refused at first.
func (b *Backend) SetRefusal(f func(*state.Service) error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.refuse = f
}

// Break makes a service fail until Fix: it is taken over, and not shown.
func (b *Backend) Break(name state.ServiceName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.broken[name] = fmt.Errorf("%v is broken", name)
}

// Fix undoes Break.
func (b *Backend) Fix(name state.ServiceName) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.broken, name)
}

// Drift deletes or alters up to n services behind the reconciler's back, and returns how many.
func (b *Backend) Drift(n int) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	names := slices.SortedFunc(maps.Keys(b.shown), state.ServiceName.Compare)
	b.rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
	names = names[:min(n, len(names))]
	for _, name := range names {
		if b.rng.IntN(2) == 0 {
			delete(b.shown, name)
		} else {
			altered := *b.shown[name]
			altered.HealthCheck.Port++
			b.shown[name] = &altered
		}
	}
	return len(names)
}

// Shown is what the dataplane holds.
func (b *Backend) Shown() map[state.ServiceName]*state.Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.shown)
}

// Wanted is what the dataplane is to hold by the last Apply.
func (b *Backend) Wanted() map[state.ServiceName]*state.Service {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.wanted)
}

// Calls returns the calls since it was last called.
func (b *Backend) Calls() []Call {
	b.mu.Lock()
	defer b.mu.Unlock()
	calls := b.calls
	b.calls = nil
	return calls
}

// Breaches are the ways in which the contract of a backend was not kept by its caller.
func (b *Backend) Breaches() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return errors.Join(b.breaches...)
}

// operate does one operation, unless it fails or ctx ends while it takes its time.
func (b *Backend) operate(ctx context.Context, u *state.Update, do func() backend.Result) (result backend.Result, err error) {
	start := time.Now()
	latency := b.begin(u)
	select {
	case <-ctx.Done():
		err = ctx.Err()
	case <-time.After(latency):
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.busy = false
	if err == nil && b.rng.Float64() < b.failRate {
		err = ErrInjected
	}
	if err == nil {
		err = b.refused(u)
	}
	if err == nil {
		result = do()
	}
	b.calls = append(b.calls, Call{start, u, result, err})
	return result, err
}

func (b *Backend) begin(u *state.Update) (latency time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.busy {
		b.breach("two operations at once")
	}
	b.busy = true
	if b.latency == nil {
		return 0
	}
	return b.latency(u, b.shown)
}

func (b *Backend) breach(what string) { b.breaches = append(b.breaches, errors.New(what)) }

func (b *Backend) fail(r *backend.Result, name state.ServiceName, err error) {
	if r.Failed == nil {
		r.Failed = make(map[state.ServiceName]error)
	}
	r.Failed[name] = err
}

// put sets a record, or deletes it if it is nil, and reports whether that was a difference.
func put(m map[state.ServiceName]*state.Service, name state.ServiceName, s *state.Service) bool {
	if same(m[name], s) {
		return false
	}
	if s == nil {
		delete(m, name)
	} else {
		m[name] = s
	}
	return true
}

func same(a, b *state.Service) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Equal(b)
}
