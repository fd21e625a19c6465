package node

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

var errRefused = errors.New("refused")

// fakeDataplane is the dataplane of a mode that is not above another one.
type fakeDataplane struct {
	mode config.Mode
	// applyErr, failed, removeErr and reconfigureErr are what the next calls return.
	applyErr, removeErr, reconfigureErr error
	failed                              map[state.ServiceName]error
	// holds is set while the kernel holds something of it, and shows are the services that it has.
	holds bool
	// removed is the configuration that it had when it was removed last.
	removed *config.Config
	shows   map[string]bool
	// leaves is set while it leaves flows alone. onApply is called by Apply, unless it is nil.
	leaves  bool
	onApply func()
}

func (f *fakeDataplane) of() dataplane {
	return dataplane{
		mode: f.mode,
		open: func(context.Context, *config.Config, DataplaneOptions, *nftablesDataplane) (Dataplane, error) {
			return f, nil
		},
		remove: func(_ context.Context, c *config.Config, _ bool) error {
			f.removed = c
			if f.removeErr == nil {
				f.holds = false
			}
			return f.removeErr
		},
	}
}

func (f *fakeDataplane) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	if f.onApply != nil {
		f.onApply()
	}
	if f.applyErr != nil {
		return backend.Result{}, f.applyErr
	}
	f.holds, f.leaves = true, false
	if u.Full {
		f.shows = map[string]bool{}
	}
	for _, s := range u.Changed {
		f.shows[s.Name.Name] = true
	}
	for _, name := range u.Removed {
		delete(f.shows, name.Name)
	}
	return backend.Result{Failed: f.failed}, nil
}

func (f *fakeDataplane) Verify(context.Context) (backend.Result, error) { return backend.Result{}, nil }
func (f *fakeDataplane) Disturbed() <-chan struct{}                     { return nil }
func (f *fakeDataplane) Reconfigure(*config.Config) error               { return f.reconfigureErr }
func (f *fakeDataplane) Close() error                                   { return nil }
func (f *fakeDataplane) LeaveFlows()                                    { f.leaves = true }

// fakeRelay is a fakeDataplane that carries connections itself.
type fakeRelay struct{ fakeDataplane }

func (f *fakeRelay) Retire()                {}
func (f *fakeRelay) Resume(backend.Backend) {}
func (f *fakeRelay) Carried() int           { return 1 }

// newFakeSwitchable returns a switchable with a dataplane that shows nothing yet.
func newFakeSwitchable(t *testing.T, first dataplane) *switchable {
	t.Helper()
	inside, err := namespace.Current()
	if err != nil {
		t.Fatal(err)
	}
	s := &switchable{
		o: DataplaneOptions{Logger: slog.New(slog.DiscardHandler)}, log: slog.New(slog.DiscardHandler), config: config.Default(),
		inside: inside, local: newLocalPorts(inside, slog.New(slog.DiscardHandler)), disturbed: make(chan struct{}, 1),
	}
	s.ctx, s.stop = context.WithCancel(t.Context())
	if s.now, err = s.prepare(t.Context(), first, s.config); err != nil {
		t.Fatal(err)
	}
	s.use(s.now)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// services is an update.
func services(full bool, changed []string, removed ...string) *state.Update {
	u := &state.Update{Full: full, Node: &state.Node{}}
	for _, name := range changed {
		u.Changed = append(u.Changed, &state.Service{Name: state.ServiceName{Name: name}})
	}
	for _, name := range removed {
		u.Removed = append(u.Removed, state.ServiceName{Name: name})
	}
	return u
}

func mustApply(t *testing.T, s *switchable, u *state.Update) {
	t.Helper()
	if _, err := s.Apply(t.Context(), u); err != nil {
		t.Fatal(err)
	}
}

// TestSwitchRemovalFails: if the previous mode cannot be removed, the removal is retried later, unless the node has gone back to that
// mode.
func TestSwitchRemovalFails(t *testing.T) {
	for _, back := range []bool{false, true} {
		t.Run(fmt.Sprintf("back %v", back), func(t *testing.T) {
			a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b"}
			s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
			mustApply(t, s, all)
			a.removeErr = errRefused
			if err := s.switchTo(t.Context(), b.of(), s.config, all, nil); err != nil {
				t.Fatal(err)
			}
			if !a.holds {
				t.Fatal("a refusal removes something")
			}
			if back {
				if err := s.switchTo(t.Context(), a.of(), s.config, all, nil); err != nil {
					t.Fatal(err)
				}
			}
			a.removeErr = nil
			if _, err := s.Verify(t.Context()); err != nil {
				t.Fatal(err)
			}
			if a.holds != back || b.holds == back {
				t.Errorf("the kernel holds %v of the first mode and %v of the other one", a.holds, b.holds)
			}
		})
	}
}

// TestPreviousModeIsRemovedByItsConfig: the previous mode is removed from where its own configuration had it, and not from where the new
// one would.
func TestPreviousModeIsRemovedByItsConfig(t *testing.T) {
	a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b"}
	s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
	mustApply(t, s, all)
	was := s.config
	if err := s.switchTo(t.Context(), b.of(), config.Default(), all, nil); err != nil {
		t.Fatal(err)
	}
	if a.holds || a.removed != was {
		t.Errorf("the previous mode is still there (%v), or was removed by another configuration than its own (%v)", a.holds, a.removed != was)
	}
}

// TestSwitchToLeftover: what an earlier process has left, and could not be removed so far, stays once the node has gone back to its
// mode.
func TestSwitchToLeftover(t *testing.T) {
	a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b", removeErr: errRefused}
	s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
	s.leftovers = append(s.leftovers, leftover{b.of(), s.config})
	mustApply(t, s, all)
	b.removeErr = nil
	if err := s.switchTo(t.Context(), b.of(), s.config, all, nil); err != nil {
		t.Fatal(err)
	}
	mustApply(t, s, all)
	if a.holds || !b.holds {
		t.Errorf("the kernel holds %v of the previous mode and %v of the one in use", a.holds, b.holds)
	}
}

// TestSwitchBeforeFirstState: as long as the mode in use shows nothing, nothing is removed of another one, which may be what connections go by.
func TestSwitchBeforeFirstState(t *testing.T) {
	a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b", holds: true, applyErr: errRefused}
	s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
	if err := s.switchTo(t.Context(), b.of(), s.config, all, nil); !errors.Is(err, errRefused) {
		t.Fatal(err)
	}
	if !b.holds {
		t.Error("nothing is left that serves connections")
	}
	mustApply(t, s, all)
	if b.holds || !a.holds {
		t.Errorf("the kernel holds %v of the mode in use and %v of the other one", a.holds, b.holds)
	}
}

// TestSwitchWithoutState: a node that has another source, which has no state yet, goes on by what it has programmed.
func TestSwitchWithoutState(t *testing.T) {
	a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b"}
	s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
	mustApply(t, s, all)
	if err := s.switchTo(t.Context(), b.of(), s.config, nil, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Verify(t.Context()); err != nil || !a.holds {
		t.Errorf("the kernel holds %v of the previous mode: %v", a.holds, err)
	}
	mustApply(t, s, all)
	if a.holds || !b.holds {
		t.Errorf("the kernel holds %v of the previous mode and %v of the one in use", a.holds, b.holds)
	}
}

// TestSwitchLeavesFlows: once the other dataplane begins flows, the previous one deletes none, unless it goes on because the switch
// failed.
func TestSwitchLeavesFlows(t *testing.T) {
	for _, fails := range []bool{false, true} {
		a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b"}
		s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
		mustApply(t, s, all)
		b.onApply = func() {
			if !a.leaves || b.leaves {
				t.Errorf("the previous dataplane leaves flows alone: %v; the other one: %v", a.leaves, b.leaves)
			}
		}
		if fails {
			b.applyErr = errRefused
		}
		if err := s.switchTo(t.Context(), b.of(), s.config, all, nil); (err != nil) != fails {
			t.Fatal(err)
		}
		mustApply(t, s, all)
		if a.leaves == fails || b.leaves {
			t.Errorf("after a switch that fails %v, the previous dataplane leaves flows alone: %v; the other one: %v", fails, a.leaves, b.leaves)
		}
		b.onApply = nil
	}
}

// TestSwitchServiceFails: a service that fails keeps the node from a switch only where another dataplane serves it.
func TestSwitchServiceFails(t *testing.T) {
	web := state.ServiceName{Name: "web"}
	for _, c := range []struct{ applied, failed, switches bool }{{false, false, true}, {true, false, false}, {true, true, true}} {
		a, b := &fakeDataplane{mode: "a"}, &fakeDataplane{mode: "b", failed: map[state.ServiceName]error{web: errRefused}}
		s, all := newFakeSwitchable(t, a.of()), services(true, []string{"web"})
		if c.applied {
			mustApply(t, s, all)
		}
		failed := map[state.ServiceName]error{}
		if c.failed {
			failed[web] = errRefused
		}
		if err := s.switchTo(t.Context(), b.of(), s.config, all, failed); (err == nil) != c.switches {
			t.Errorf("%+v: %v", c, err)
		}
	}
}

// TestRetiredMisses: what a retired dataplane could not take over comes with the next update, or the next Verify.
func TestRetiredMisses(t *testing.T) {
	for _, first := range []bool{false, true} { // also the first one
		a, b := &fakeRelay{fakeDataplane{mode: "a"}}, &fakeDataplane{mode: "b"}
		d := a.of()
		d.open = func(context.Context, *config.Config, DataplaneOptions, *nftablesDataplane) (Dataplane, error) {
			return a, nil
		}
		s, all := newFakeSwitchable(t, d), services(true, []string{"db", "web"})
		mustApply(t, s, all)
		if first {
			a.applyErr = errRefused
		}
		if err := s.switchTo(t.Context(), b.of(), s.config, all, nil); err != nil {
			t.Fatal(err)
		}
		a.applyErr = errRefused
		mustApply(t, s, all)
		mustApply(t, s, services(false, []string{"mail"}, "web"))
		mustApply(t, s, services(false, []string{"chat"}))
		a.applyErr = nil
		mustApply(t, s, services(false, nil, "mail"))
		if got, want := fmt.Sprint(a.shows), "map[chat:true db:true]"; got != want {
			t.Errorf("the retired dataplane shows %s, want %s", got, want)
		}
		a.applyErr = errRefused
		mustApply(t, s, services(false, nil, "chat"))
		a.applyErr = nil
		if _, err := s.Verify(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got, want := fmt.Sprint(a.shows), "map[db:true]"; got != want {
			t.Errorf("after Verify, the retired dataplane shows %s, want %s", got, want)
		}
	}
}
