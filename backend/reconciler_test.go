package backend_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/backendtest"
	"github.com/switchyard-net/switchyard/state"
)

// holding returns a record of a service with frontends at these ports. A version below 0 is one that refusesNegative refuses.
func holding(n string, version int, ports ...int) *state.Service {
	s := service(n, version)
	slices.Sort(ports)
	for _, port := range ports {
		reject := state.Route{Verdict: state.Reject}
		s.Ports = append(s.Ports, state.Port{
			Name: fmt.Sprintf("p%05d", port), Protocol: state.TCP, Family: state.IPv4, Internal: state.Traffic{Inside: reject, Outside: reject},
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: uint16(port)}},
		})
	}
	return s
}

var errRefused = errors.New("a negative version")

func refusesNegative(s *state.Service) error {
	if s.HealthCheck.LocalIPv4 < 0 {
		return errRefused
	}
	return nil
}

// shownOf describes what a dataplane shows of services: of each its version, and the ports of its frontends.
func shownOf(b *backendtest.Backend) string {
	var all []string
	for n, s := range b.Shown() {
		var text strings.Builder
		text.WriteString(fmt.Sprint(n.Name, s.HealthCheck.LocalIPv4, ":"))
		for _, f := range s.Frontends() {
			text.WriteString(fmt.Sprint(" ", f.Port))
		}
		all = append(all, text.String())
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// TestRefusedServices: a service that the dataplane refuses keeps its last good record, but for the frontends that others have by now, and is
// in no other's way.
func TestRefusedServices(t *testing.T) {
	delta := func(services ...*state.Service) *state.Update { return &state.Update{Changed: services} }
	full := func(services ...*state.Service) *state.Update { return &state.Update{Full: true, Changed: services} }
	without := func(u *state.Update, removed ...string) *state.Update {
		for _, n := range removed {
			u.Removed = append(u.Removed, name(n))
		}
		return u
	}
	begin := full(holding("a", 1, 1, 2), holding("b", 1, 3))
	for what, c := range map[string]struct {
		updates []*state.Update
		want    string
		failed  int
	}{
		"the record":                  {[]*state.Update{delta(holding("a", -2, 1, 2, 4))}, "a1: 1 2, b1: 3", 1},
		"among others":                {[]*state.Update{delta(holding("a", -2, 1), holding("c", 1, 5))}, "a1: 1 2, b1: 3, c1: 5", 1},
		"with a frontend that leaves": {[]*state.Update{delta(holding("a", -2, 1), holding("b", 2, 2, 3))}, "a1: 1, b2: 2 3", 1},
		"the new holder":              {[]*state.Update{delta(holding("a", 2, 1), holding("b", -2, 2, 3))}, "a2: 1, b1: 3", 1},
		"both of a swap":              {[]*state.Update{delta(holding("a", -2, 3), holding("b", -2, 1, 2))}, "a1: 1 2, b1: 3", 2},
		"one of a swap":               {[]*state.Update{delta(holding("a", -2, 3), holding("b", 2, 1, 2))}, "a1:, b2: 1 2", 1},
		"a frontend leaves later":     {[]*state.Update{delta(holding("a", -2)), delta(holding("b", 2, 2, 3))}, "a1: 1, b2: 2 3", 0},
		"and again":                   {[]*state.Update{delta(holding("a", -2)), delta(holding("b", 2, 2)), delta(holding("c", 1, 1))}, "a1:, b2: 2, c1: 1", 0},
		"the holder goes":             {[]*state.Update{delta(holding("a", -2)), delta(holding("b", 2, 2)), without(delta(), "b")}, "a1: 1", 0},
		"it heals":                    {[]*state.Update{delta(holding("a", -2)), delta(holding("b", 2, 2)), delta(holding("a", 3, 1))}, "a3: 1, b2: 2", 0},
		"it goes":                     {[]*state.Update{delta(holding("a", -2)), without(delta(holding("b", 2, 2)), "a")}, "b2: 2", 0},
		"healed before another has it": {[]*state.Update{delta(holding("a", -2)), delta(holding("a", 3, 1)), delta(holding("b", 2, 2, 3))},
			"a3: 1, b2: 2 3", 0},
		"a full update":        {[]*state.Update{full(holding("a", -2, 1), holding("b", 2, 2))}, "a1: 1, b2: 2", 1},
		"a full one after it":  {[]*state.Update{delta(holding("a", -2)), full(holding("a", -3), holding("b", 2, 2))}, "a1: 1, b2: 2", 1},
		"gone by a full one":   {[]*state.Update{delta(holding("a", -2)), full(holding("b", 2, 2))}, "b2: 2", 0},
		"without a record":     {[]*state.Update{delta(holding("c", -1, 9)), delta(holding("b", 2, 9))}, "a1: 1 2, b2: 9", 0},
		"without, full":        {[]*state.Update{full(holding("c", -1, 9), holding("b", 2, 9))}, "b2: 9", 1},
		"its frontend is back": {[]*state.Update{delta(holding("a", -2)), delta(holding("b", 2, 2)), without(delta(holding("a", 3, 1, 2)), "b")}, "a3: 1 2", 0},
	} {
		b := backendtest.New(1)
		b.SetFailureRate(0)
		b.SetRefusal(refusesNegative)
		r := backend.NewReconciler(b)
		var last backend.Result
		for _, u := range append([]*state.Update{begin}, c.updates...) {
			var err error
			if last, err = r.Apply(t.Context(), u); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
		}
		if got := shownOf(b); got != c.want || len(last.Failed) != c.failed {
			t.Errorf("%s: the dataplane shows %q, and %d services failed; want %q and %d", what, got, len(last.Failed), c.want, c.failed)
		}
		for n, err := range last.Failed {
			if !errors.Is(err, errRefused) {
				t.Errorf("%s: %v failed with %v", what, n, err)
			}
		}
		if err := b.Breaches(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// TestRefusedRecordsAreNamed: an update that comes again says which records were refused, and of each service has the last good record at most.
func TestRefusedRecordsAreNamed(t *testing.T) {
	b := backendtest.New(1)
	b.SetFailureRate(0)
	b.SetRefusal(refusesNegative)
	r := backend.NewReconciler(b)
	bad := holding("bad", -1, 1)
	for _, u := range []*state.Update{
		{Full: true, Changed: []*state.Service{bad, holding("good", 1, 2)}},
		{Changed: []*state.Service{bad}},
	} {
		b.Calls()
		if _, err := r.Apply(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		calls := b.Calls()
		again := calls[len(calls)-1].Update
		if len(calls) != 2 || len(again.Refused) != 1 || again.Refused[0] != bad || slices.Contains(again.Changed, bad) || len(u.Refused) > 0 {
			t.Errorf("after %d calls, the update has %v, and %v were refused", len(calls), again.Changed, again.Refused)
		}
	}
}

// TestRefusedTwice: a service whose last good record is refused as well is left out, and another record heals it.
func TestRefusedTwice(t *testing.T) {
	b := backendtest.New(1)
	b.SetFailureRate(0)
	r := backend.NewReconciler(b)
	apply := func(u *state.Update) backend.Result {
		t.Helper()
		result, err := r.Apply(t.Context(), u)
		if err != nil {
			t.Fatal(err)
		}
		return result
	}
	apply(&state.Update{Full: true, Changed: []*state.Service{holding("a", 1, 1), holding("b", 1, 2)}})
	b.SetRefusal(func(s *state.Service) error {
		if s.Name == name("a") {
			return errRefused
		}
		return nil
	})
	result := apply(&state.Update{Full: true, Changed: []*state.Service{holding("a", 2, 1), holding("b", 2, 2)}})
	if got, want := shownOf(b), "b2: 2"; got != want || !errors.Is(result.Failed[name("a")], errRefused) {
		t.Errorf("the dataplane shows %q, and %v failed; want %q", got, result.Failed, want)
	}
	b.SetRefusal(nil)
	if result := apply(&state.Update{Changed: []*state.Service{holding("a", 3, 1)}}); len(result.Failed) > 0 {
		t.Errorf("%v failed", result.Failed)
	}
	if got, want := shownOf(b), "a3: 1, b2: 2"; got != want {
		t.Errorf("the dataplane shows %q, want %q", got, want)
	}
}

// refusing fails with an error.
type refusing struct {
	backend.None
	err error
}

func (r refusing) Apply(context.Context, *state.Update) (backend.Result, error) {
	return backend.Result{}, r.err
}

// TestRefusalOfOthers: a dataplane that refuses what it was not asked for fails, and is not asked for ever.
func TestRefusalOfOthers(t *testing.T) {
	d := refusing{err: &backend.RefusedError{Services: map[state.ServiceName]error{name("other"): errRefused}}}
	_, err := backend.NewReconciler(d).Apply(t.Context(), &state.Update{Full: true, Changed: []*state.Service{holding("a", 1, 1)}})
	if err == nil || !strings.Contains(err.Error(), "default/other") {
		t.Errorf("the error is %v", err)
	}
}

// TestRunRetriesRefused: Run retries a refused service after a pause. The last good record stays after Run ends.
func TestRunRetriesRefused(t *testing.T) {
	o := backend.RunOptions{MinBackoff: time.Second, MaxBackoff: time.Second, VerifyPeriod: time.Hour}
	start(t, o, func(b *bench) {
		b.backend.SetRefusal(refusesNegative)
		b.publish(holding("a", 1, 1, 2), holding("b", 1, 3))
		b.after(0)
		b.publish(holding("a", -1, 1))
		b.after(0)
		if s := b.currentStatus(); s.Applied != 2 || s.Failures != 0 || !errors.Is(s.Failed[name("a")], errRefused) {
			b.Errorf("status is %+v, want that a has failed", s)
		}
		b.publish(holding("b", 2, 2, 3))
		b.after(0)
		if got, want := shownOf(b.backend), "a1: 1, b2: 2 3"; got != want {
			b.Errorf("the dataplane shows %q, want %q", got, want)
		}
		b.backend.Calls()
		b.backend.SetRefusal(nil)
		b.after(time.Second)
		b.wantCalls("apply 3 a")
		b.inStep()
		if s := b.currentStatus(); len(s.Failed) > 0 {
			b.Errorf("status is %+v, want no failures", s)
		}
	})
}

// TestFrontendsMoveUnderFailures has services take frontends from each other at random, while records are refused, services fail, calls fail, and
// the feed forgets. No two of them have a frontend at any time, which the dataplane checks.
func TestFrontendsMoveUnderFailures(t *testing.T) {
	for seed := range uint64(40) {
		start(t, backend.RunOptions{VerifyPeriod: time.Second, PartEntries: []int{0, 5}[seed%2]}, func(b *bench) {
			rng := rand.New(rand.NewPCG(seed, 27))
			b.backend.SetFailureRate(0.1)
			b.backend.SetLatency(time.Millisecond)
			b.backend.SetRefusal(refusesNegative)
			const services, frontends = 6, 40
			owner := make([]int, frontends) // services for none
			for i := range owner {
				owner[i] = rng.IntN(services + 1)
			}
			record := func(n, version int) *state.Service {
				var ports []int
				for port, o := range owner {
					if o == n {
						ports = append(ports, port+1)
					}
				}
				return holding(fmt.Sprintf("s%d", n), version, ports...)
			}
			for i := range 500 {
				touched := map[int]bool{rng.IntN(services): true}
				for range rng.IntN(6) {
					port, to := rng.IntN(frontends), rng.IntN(services+1)
					touched[owner[port]], touched[to] = true, true
					owner[port] = to
				}
				delete(touched, services)
				var set []*state.Service
				var removed []state.ServiceName
				for n := range services {
					switch {
					case !touched[n]:
					case rng.IntN(12) == 0:
						for port, o := range owner {
							if o == n {
								owner[port] = services
							}
						}
						removed = append(removed, name(fmt.Sprintf("s%d", n)))
					default:
						version := i + 1
						if rng.IntN(3) == 0 {
							version = -version
						}
						set = append(set, record(n, version))
					}
				}
				b.feed.Publish(set, removed...)
				switch rng.IntN(20) {
				case 0:
					b.feed.Forget()
				case 1:
					b.backend.Break(name(fmt.Sprintf("s%d", rng.IntN(services))))
				case 2, 3:
					b.backend.Fix(name(fmt.Sprintf("s%d", rng.IntN(services))))
				}
				if rng.IntN(2) == 0 {
					time.Sleep(time.Duration(rng.IntN(3000)) * time.Microsecond)
				}
			}
			for n := range services {
				b.backend.Fix(name(fmt.Sprintf("s%d", n)))
			}
			b.after(time.Minute)
			shown := b.backend.Shown()
			for n, s := range b.feed.Services() {
				failed := b.currentStatus().Failed[n] != nil
				if refused := refusesNegative(s) != nil; refused != failed || !refused && !shown[n].Equal(s) {
					b.Errorf("seed %d: %v failed: %t", seed, n, failed)
				}
				delete(shown, n)
			}
			if len(shown) > 0 {
				b.Errorf("seed %d: the dataplane shows %d services that are gone", seed, len(shown))
			}
			b.backend.SetRefusal(nil)
			b.after(time.Minute)
			b.inStep()
			if s := b.currentStatus(); s.Applied != b.feed.Revision() || len(s.Failed) > 0 {
				b.Errorf("seed %d: status is %+v, want revision %d and no failures", seed, s, b.feed.Revision())
			}
		})
	}
}

// featured is a dataplane that can program weights only.
type featured struct {
	backend.None
	got []*state.Update
}

func (f *featured) Features() state.Features { return state.Weights }

func (f *featured) Apply(_ context.Context, u *state.Update) (backend.Result, error) {
	f.got = append(f.got, u)
	return backend.Result{}, nil
}

// TestDataplanesGetTheirFeatures: a dataplane gets records with the features that it can program, one that does not say gets none, and the update
// stays as it is.
func TestDataplanesGetTheirFeatures(t *testing.T) {
	to := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Weight: 3}, {Weight: 1}}}
	s := &state.Service{Name: state.ServiceName{Name: "a"}, Ports: []state.Port{{Balance: state.HashClient, Internal: state.Traffic{Inside: to, Outside: to}}}}
	u := &state.Update{Revision: 1, Full: true, Node: &state.Node{}, Changed: []*state.Service{{Name: state.ServiceName{Name: "0"}}, s}}
	some := new(featured)
	none := struct{ backend.Backend }{some} // hides its features
	for _, b := range []backend.Backend{some, none} {
		if _, err := backend.NewReconciler(b).Apply(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []state.Features{state.Weights, 0} {
		if got := some.got[i].Changed[1].Features(); got != want || some.got[i].Changed[0] != u.Changed[0] {
			t.Errorf("a dataplane that can program %v got %v", want, got)
		}
	}
	if s.Features() != state.Weights|state.Balances {
		t.Error("the update has changed")
	}
}
