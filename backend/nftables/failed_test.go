//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

func TestCleanup(t *testing.T) {
	ns := netnstest.New(t)
	cleanup := func() (removed bool) {
		netnstest.Do(t, ns, func() (err error) { removed, err = Cleanup(t.Context()); return err })
		return removed
	}
	if cleanup() {
		t.Error("something was removed from an empty kernel")
	}
	c := dial(t, ns)
	foreignCommit(t, c)
	b := newBackend(t, ns, Options{})
	apply(t, b, full(someServices()...))
	closeBackend(b)
	if !cleanup() {
		t.Error("nothing was removed")
	}
	for _, f := range families {
		if ok, err := c.HasTable(table(f)); ok || err != nil {
			t.Errorf("%v: table is still there: %v, %v", f, ok, err)
		}
	}
	if ok, _ := c.HasTable(nft.Table{Family: nft.IPv4, Name: "somebody-else"}); !ok {
		t.Error("a foreign table was removed")
	}
	if cleanup() {
		t.Error("something was removed twice")
	}
}

func TestBadOptions(t *testing.T) {
	for _, bit := range []int{-1, 32} {
		b, err := New(t.Context(), Options{MasqueradeBit: &bit})
		if err == nil || !strings.Contains(err.Error(), "MasqueradeBit") || !strings.Contains(err.Error(), fmt.Sprint(bit)) {
			t.Errorf("MasqueradeBit %d: %v, %v", bit, b, err)
		}
	}
	ns := netnstest.New(t)
	for _, bit := range []int{0, 31} {
		b := newBackend(t, ns, Options{MasqueradeBit: &bit})
		apply(t, b, full(someServices()...))
		closeBackend(b)
	}
}

// TestNothingBeforeApply: a dataplane that has applied nothing changes nothing.
func TestNothingBeforeApply(t *testing.T) {
	ns := netnstest.New(t)
	c := dial(t, ns)
	b := newBackend(t, ns, Options{})
	foreignCommit(t, c)
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("Verify: %+v", r)
	}
	undisturbed(t, b)
	if ok, _ := c.HasTable(table(state.IPv4)); ok {
		t.Error("there is a table")
	}
}

// most is how many endpoints a frontend can have.
const most = 16384

// TestTooManyEndpoints: such a service keeps what it had, and others are programmed.
func TestTooManyEndpoints(t *testing.T) {
	ns := netnstest.New(t)
	c := dial(t, ns)
	b := newBackend(t, ns, Options{})
	few, many := dualStack("big", 1, 3, 0), dualStack("big", 1, most+1, 0)
	check := func(r backend.Result, err error) {
		t.Helper()
		if err != nil || len(r.Failed) != 1 || r.Failed[many.Name] == nil || !strings.Contains(r.Failed[many.Name].Error(), "16384") {
			t.Errorf("Failed is %v, %v", slices.Collect(maps.Keys(r.Failed)), err)
		}
	}
	check(reconcilers.Of(b).Apply(t.Context(), full(many, dualStack("other", 2, 2, 0))))
	if n := slotsOf(t, c, dualStack("other", 2, 2, 0)); n != 2 {
		t.Errorf("the other service has %d slots", n)
	}
	if r := apply(t, b, delta(few)); len(r.Failed) != 0 {
		t.Errorf("Failed is %v after it healed", r.Failed)
	}
	check(reconcilers.Of(b).Apply(t.Context(), delta(many, dualStack("other", 2, 5, 0))))
	if n, m := slotsOf(t, c, few), slotsOf(t, c, dualStack("other", 2, 5, 0)); n != 3 || m != 5 {
		t.Errorf("%d and %d slots, want 3 and 5", n, m)
	}
	check(reconcilers.Of(b).Apply(t.Context(), full(many, dualStack("other", 2, 4, 0))))
	if n, m := slotsOf(t, c, few), slotsOf(t, c, dualStack("other", 2, 5, 0)); n != 3 || m != 4 {
		t.Errorf("%d and %d slots, want 3 and 4", n, m)
	}
	apply(t, b, delta(dualStack("big", 1, most, 0)))
	if n := slotsOf(t, c, few); n != most {
		t.Errorf("%d slots", n)
	}
}

// slotsOf counts the slots of a service's first ClusterIP.
func slotsOf(t *testing.T, c *nft.Conn, s *state.Service) int {
	t.Helper()
	p := &s.Ports[0]
	elems, err := c.Elems(table(p.Family), "service-slots")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, e := range elems {
		if bytes.HasPrefix(e.Key, frontendKeyOf(p, &p.Frontends[0])) {
			n++
		}
	}
	return n
}

// pickyKernel refuses batches in which some bytes occur.
type pickyKernel struct {
	kernel
	poison  []string
	refused int
}

func (k *pickyKernel) Commit(b *nft.Batch) error {
	for _, p := range k.poison {
		if bytes.Contains(reflect.ValueOf(b).Elem().FieldByName("buf").Bytes(), []byte(p)) {
			k.refused++
			return fmt.Errorf("injected: %w", syscall.EINVAL)
		}
	}
	return k.kernel.Commit(b)
}

// TestIsolate: the kernel refuses anything with one address in it. Only its service may suffer.
func TestIsolate(t *testing.T) {
	poisonAddr := endpointsOf(state.IPv4, 999, 1)
	poison := poisonAddr[0].Addr.Addr().As4()
	bad := func(n int) *state.Service {
		p := clusterIPPort(state.IPv4, state.TCP, n, append(endpointsOf(state.IPv4, 1, 2), poisonAddr...))
		return serviceOf(fmt.Sprintf("s%d", n), p)
	}
	good := func(n, endpoints int) *state.Service {
		return serviceOf(fmt.Sprintf("s%d", n), clusterIPPort(state.IPv4, state.TCP, n, endpointsOf(state.IPv4, 1, endpoints)))
	}
	for _, c := range []struct {
		name  string
		first bool // the first update of all has it
		full  bool
		bad   []int
	}{
		{"first", true, true, []int{7}}, {"delta", false, false, []int{7}}, {"full", false, true, []int{7}},
		{"two of them", false, false, []int{0, 19}}, {"all of them", false, false, []int{0, 1, 2, 3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ns := netnstest.New(t)
			conn := dial(t, ns)
			picky := &pickyKernel{poison: []string{string(poison[:])}}
			b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { picky.kernel = c; return picky })
			had := 0
			if !c.first {
				var all []*state.Service
				for n := range 20 {
					all = append(all, good(n, 1))
				}
				apply(t, b, full(all...))
				had = 1
			}
			var next []*state.Service
			for n := range 20 {
				if slices.Contains(c.bad, n) {
					next = append(next, bad(n))
				} else {
					next = append(next, good(n, 4))
				}
			}
			u := full(next...)
			u.Full = c.full
			result, err := reconcilers.Of(b).Apply(t.Context(), u)
			for try := 0; err != nil && try < 3; try++ { // as the reconciler does
				result, err = reconcilers.Of(b).Apply(t.Context(), u)
			}
			if err != nil || len(result.Failed) != len(c.bad) {
				t.Fatalf("Failed is %v, %v", result.Failed, err)
			}
			for n := range 20 {
				want := 4
				if slices.Contains(c.bad, n) {
					want = had
					if err := result.Failed[bad(n).Name]; !errors.Is(err, syscall.EINVAL) {
						t.Errorf("s%d: %v", n, err)
					}
				}
				if got := slotsOf(t, conn, good(n, 1)); got != want {
					t.Errorf("s%d has %d slots, want %d", n, got, want)
				}
			}
			picky.poison = nil
			var heal []*state.Service
			for _, n := range c.bad {
				heal = append(heal, bad(n))
			}
			if r := apply(t, b, delta(heal...)); len(r.Failed) > 0 {
				t.Errorf("not healed: %v", r.Failed)
			}
			for _, n := range c.bad {
				if got := slotsOf(t, conn, good(n, 1)); got != 3 {
					t.Errorf("healed s%d has %d slots", n, got)
				}
			}
			if picky.refused == 0 {
				t.Error("nothing was refused")
			}
		})
	}
}

// watchfulKernel looks at the kernel after each commit.
type watchfulKernel struct {
	kernel
	look func()
}

func (k *watchfulKernel) Commit(b *nft.Batch) error {
	err := k.kernel.Commit(b)
	k.look()
	return err
}

// TestIsolateAfterRestart: a new process finds services in the kernel, and the kernel refuses what one of them has become. No
// service loses its slots while it finds out which, and that one keeps what it had until it heals, or is deleted.
func TestIsolateAfterRestart(t *testing.T) {
	const badOne = 7
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	numbered := func(n int, eps []state.Endpoint) *state.Service {
		p := clusterIPPort(state.IPv4, state.TCP, n, eps)
		p.Affinity = time.Hour
		return serviceOf(fmt.Sprintf("s%d", n), p)
	}
	good := func(n, endpoints int) *state.Service { return numbered(n, endpointsOf(state.IPv4, 10*n, endpoints)) }
	bad := numbered(badOne, append(endpointsOf(state.IPv4, 10*badOne, 1), poison...))
	all := func(endpoints int) (list []*state.Service) {
		for n := range 20 {
			list = append(list, good(n, endpoints))
		}
		return list
	}
	next := slices.Replace(all(2), badOne, badOne+1, bad)
	for name, replaced := range map[string]bool{"the same layout": false, "another layout": true} {
		t.Run(name, func(t *testing.T) {
			ns := netnstest.New(t)
			conn := dial(t, ns)
			first := newBackend(t, ns, Options{})
			apply(t, first, full(append(all(3), good(30, 3))...)) // 30 is gone when the next process starts
			closeBackend(first)
			before := dump(t, conn)
			commitRaw(t, conn, func(b *nft.Batch) {
				h := held(t, conn, state.IPv4)
				b.AddElem(table(state.IPv4), affinitySet, remembered(h, state.IPv4, bad, 100, good(badOne, 3).Ports[0].Internal.Inside.Endpoints[2].Addr))
				if replaced {
					b.AddSet(table(state.IPv4), &nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}})
				}
			})
			picky := &pickyKernel{poison: []string{string(bytes[:])}}
			b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
				picky.kernel = c
				return &watchfulKernel{picky, func() {
					for n := range 20 {
						if slotsOf(t, conn, good(n, 1)) == 0 {
							t.Errorf("s%d has no slots", n)
						}
					}
				}}
			})
			asItWas := func(when string) {
				t.Helper()
				now := dump(t, conn)
				var theirs []string
				for k := range before {
					if strings.Contains(k, fmt.Sprintf("0a6000%02x", badOne)) || strings.Contains(k, fmt.Sprintf("hairpin 0af4%04x", 10*badOne+1)) {
						theirs = append(theirs, k)
					}
				}
				for _, k := range theirs {
					if now[k] != before[k] {
						t.Errorf("%s: %s was %q and is %q", when, k, before[k], now[k])
					}
				}
				if n := recalled(t, conn, state.IPv4, bad); n != 1 {
					t.Errorf("%s: %d clients come to their endpoint", when, n)
				}
				if len(theirs) < 5 || slotsOf(t, conn, good(30, 1)) != 0 {
					t.Errorf("%s: looked at %q, and %d slots are left of a service that is gone", when, theirs, slotsOf(t, conn, good(30, 1)))
				}
			}
			if r := apply(t, b, full(next...)); len(r.Failed) != 1 || r.Failed[bad.Name] == nil || picky.refused == 0 {
				t.Fatalf("Failed is %v", r.Failed)
			}
			asItWas("after the search")
			b.guard.raise(foreignChange)
			if r := verify(t, b); r.Written != 0 {
				t.Errorf("Verify writes %d objects", r.Written)
			}
			apply(t, b, delta(good(3, 5)))
			asItWas("after a change of another")
			if r := apply(t, b, delta(bad)); r.Failed[bad.Name] == nil {
				t.Error("the kernel has taken it")
			}
			asItWas("after another try")
			picky.poison = nil
			healed := slices.Replace(slices.Clone(next), 3, 4, good(3, 5))
			if replaced {
				u := delta()
				u.Removed = []state.ServiceName{bad.Name}
				healed = slices.Delete(healed, badOne, badOne+1)
				b.kernel.(*watchfulKernel).look = func() {}
				apply(t, b, u)
			} else {
				apply(t, b, delta(bad))
			}
			closeBackend(b)
			if r := apply(t, newBackend(t, ns, Options{}), full(healed...)); r.Written != 0 {
				t.Errorf("a fresh start writes %d objects", r.Written)
			}
		})
	}
}

// interruptedKernel fails one of the reads of what tables hold.
type interruptedKernel struct {
	kernel
	until int // how many reads there are up to the one that fails
}

func (k *interruptedKernel) ReadSkeleton(t nft.Table) (*nft.Skeleton, error) {
	if k.until--; k.until == 0 {
		return nil, errInjected
	}
	return k.kernel.ReadSkeleton(t)
}

// TestAbortedSearchForgetsNothing: an update deletes a service, and the kernel refuses another one in it. The search for that one cannot
// read the tables after its first step, which no longer knows the deleted service. When the update comes again, it is deleted.
func TestAbortedSearchForgetsNothing(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	picky, k := &pickyKernel{poison: []string{string(bytes[:])}}, &interruptedKernel{}
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
		picky.kernel, k.kernel = c, picky
		return k
	})
	numbered := func(n int, eps []state.Endpoint) *state.Service {
		return serviceOf(fmt.Sprintf("s%d", n), clusterIPPort(state.IPv4, state.TCP, n, eps))
	}
	gone := numbered(1, endpointsOf(state.IPv4, 10, 2))
	apply(t, b, full(gone, numbered(2, endpointsOf(state.IPv4, 20, 2))))
	u := delta(numbered(2, poison))
	u.Removed = []state.ServiceName{gone.Name}
	if _, err := reconcilers.Of(b).Apply(t.Context(), u); !errors.Is(err, syscall.EINVAL) {
		t.Fatalf("the change: %v", err)
	}
	k.until = 2*len(families) + 1 // the comparison's, the first step's, and one more
	if _, err := reconcilers.Of(b).Apply(t.Context(), u); !errors.Is(err, errInjected) || picky.refused != 2 {
		t.Fatalf("the search: %v; %d batches refused", err, picky.refused)
	}
	if n := slotsOf(t, conn, gone); n != 2 {
		t.Fatalf("%d slots of the service before the update comes again", n)
	}
	picky.poison = nil
	apply(t, b, u)
	if n := slotsOf(t, conn, gone); n != 0 {
		t.Errorf("a deleted service has %d slots", n)
	}
	if r := verify(t, b); r.Written != 0 {
		t.Errorf("Verify writes %d objects", r.Written)
	}
}

// TestTooManyEndpointsAfterRestart: a new process finds a service in the kernel that has more endpoints by now than it programs.
func TestTooManyEndpointsAfterRestart(t *testing.T) {
	ns := netnstest.New(t)
	c := dial(t, ns)
	b := newBackend(t, ns, Options{})
	few, many := dualStack("big", 1, 3, 0), dualStack("big", 1, most+1, 0)
	apply(t, b, full(few, dualStack("other", 2, 2, 0)))
	closeBackend(b)
	before := dump(t, c)
	b = newBackend(t, ns, Options{})
	if r := apply(t, b, full(many, dualStack("other", 2, 2, 0))); len(r.Failed) != 1 || r.Written != 0 {
		t.Errorf("Failed is %v, %d objects written", r.Failed, r.Written)
	}
	apply(t, b, delta(many))
	if diff := changesBetween(before, dump(t, c)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	u := delta()
	u.Removed = []state.ServiceName{few.Name}
	apply(t, b, u)
	closeBackend(b)
	if r := apply(t, newBackend(t, ns, Options{}), full(dualStack("other", 2, 2, 0))); r.Written != 0 {
		t.Errorf("a fresh start writes %d objects", r.Written)
	}
}

// TestFailedServiceYields: a service that fails keeps what it had, but for the frontends that another service has in the new state. That one
// is programmed, whichever of the ways the first one fails in, and whether both are in one update or not.
func TestFailedServiceYields(t *testing.T) {
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	port := func(n, endpoints int) state.Port {
		p := clusterIPPort(state.IPv4, state.TCP, n, endpointsOf(state.IPv4, 10*n, endpoints))
		p.Name = fmt.Sprint(n)
		return p
	}
	had := serviceOf("fails", port(1, 3), port(2, 3))
	next := serviceOf("takes", port(1, 5))
	others := []*state.Service{serviceOf("a", port(11, 2)), serviceOf("z", port(12, 2))}
	moves := func(p state.Port) *state.Service { return serviceOf("fails", p, port(2, 4)) }
	for why, c := range map[string]*state.Service{
		"too many endpoints": moves(port(3, most+1)),
		"no room":            moves(port(3, 300)),
		"refused":            moves(clusterIPPort(state.IPv4, state.TCP, 3, poison)),
	} {
		for _, how := range []string{"one update", "one full update", "one after the other", "after a restart", "a full update after a restart"} {
			t.Run(why+", "+how, func(t *testing.T) {
				ns := netnstest.New(t)
				conn := dial(t, ns)
				k, picky := &narrowKernel{errno: syscall.EMSGSIZE}, &pickyKernel{poison: []string{string(bytes[:])}}
				start := func() *Backend {
					return openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
						picky.kernel, k.kernel = c, picky
						return k
					})
				}
				b := start()
				applyAgain := func(u *state.Update) backend.Result { // as Run does
					r, err := reconcilers.Of(b).Apply(t.Context(), u)
					for try := 0; err != nil && try < 3; try++ {
						r, err = reconcilers.Of(b).Apply(t.Context(), u)
					}
					if err != nil {
						t.Fatal(err)
					}
					return r
				}
				apply(t, b, full(serviceOf("large", port(5, 300)))) // the rules and sets for it have to be there
				apply(t, b, full(append(others, had)...))
				if why == "no room" {
					k.room = 100
				}
				var r backend.Result
				restart := func() {
					closeBackend(b)
					b = start()
				}
				switch how {
				case "one update":
					r = applyAgain(delta(c, next))
				case "one full update":
					r = applyAgain(full(append(others, c, next)...))
				case "one after the other":
					if r := applyAgain(delta(c)); len(r.Failed) != 1 || ownSlots(t, conn, port(1, 1)) != 3 || ownSlots(t, conn, port(2, 1)) != 3 {
						t.Fatalf("before: Failed is %v", r.Failed)
					}
					r = applyAgain(delta(next))
					r.Failed = applyAgain(delta(c)).Failed
				case "after a restart":
					restart()
					applyAgain(full(append(others, c)...))
					r = applyAgain(delta(next))
					r.Failed = applyAgain(delta(c)).Failed
				default:
					restart()
					r = applyAgain(full(append(others, c, next)...))
				}
				if len(r.Failed) != 1 || r.Failed[c.Name] == nil {
					t.Fatalf("Failed is %v", r.Failed)
				}
				if took, kept := ownSlots(t, conn, port(1, 1)), ownSlots(t, conn, port(2, 1)); took != 5 || kept != 3 {
					t.Errorf("the frontend that another service took has %d slots, want 5, and the one that is left has %d, want 3", took, kept)
				}
				if r := verify(t, b); r.Written > 0 {
					t.Errorf("Verify writes %d objects", r.Written)
				}
				k.room, picky.poison = 0, nil
				healed := moves(port(3, 7))
				apply(t, b, delta(healed))
				closeBackend(b)
				if r := apply(t, start(), full(append(others, healed, next)...)); r.Written != 0 {
					t.Errorf("a fresh start writes %d objects", r.Written)
				}
			})
		}
	}
}

// ownSlots counts the slots of a port's first frontend.
func ownSlots(t *testing.T, c *nft.Conn, p state.Port) int {
	t.Helper()
	return slotsOf(t, c, serviceOf("any", p))
}

// TestFailedServiceIsGone: a full update no longer has a service that failed before, and gives one of its frontends to another.
func TestFailedServiceIsGone(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	b := newBackend(t, ns, Options{})
	port := func(n, endpoints int) state.Port {
		p := clusterIPPort(state.IPv4, state.TCP, n, endpointsOf(state.IPv4, 10*n, endpoints))
		p.Name = fmt.Sprint(n)
		return p
	}
	apply(t, b, full(serviceOf("fails", port(1, 3), port(2, 3))))
	if r := apply(t, b, delta(serviceOf("fails", port(1, most+1)))); len(r.Failed) != 1 {
		t.Fatalf("Failed is %v", r.Failed)
	}
	if r := apply(t, b, full(serviceOf("takes", port(1, 5)))); len(r.Failed) > 0 {
		t.Errorf("Failed is %v", r.Failed)
	}
	if took, left := ownSlots(t, conn, port(1, 1)), ownSlots(t, conn, port(2, 1)); took != 5 || left != 0 {
		t.Errorf("the frontend that another service took has %d slots, want 5, and the one that is gone has %d", took, left)
	}
}
