//go:build linux

package nftables

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
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

// narrowKernel has no room for batches of more than so many objects.
type narrowKernel struct {
	kernel
	room    int // 0 for any
	errno   syscall.Errno
	refused int
	reads   int
	look    func() // called after each commit
}

func (k *narrowKernel) Commit(b *nft.Batch) error {
	if k.room > 0 && b.Len() > k.room {
		k.refused++
		return fmt.Errorf("injected: %w: %w", nft.ErrNoRoom, k.errno)
	}
	err := k.kernel.Commit(b)
	if k.look != nil {
		k.look()
	}
	return err
}

func (k *narrowKernel) ReadSkeleton(t nft.Table) (*nft.Skeleton, error) {
	k.reads++
	return k.kernel.ReadSkeleton(t)
}

func newNarrowBackend(t *testing.T, k *narrowKernel) (*Backend, *nft.Conn, func() *Backend) {
	t.Helper()
	ns := netnstest.New(t)
	start := func() *Backend {
		return openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { k.kernel = c; return k })
	}
	return start(), dial(t, ns), start
}

// shown is what the kernel shows at some moment of the frontend at an address.
func shown(dump map[string]string, address netip.Addr) map[string]string {
	of := map[string]string{}
	for k, v := range dump {
		if strings.Contains(k, " service-") && strings.Contains(k, fmt.Sprintf(" %x", address.AsSlice())) {
			of[k] = v
		}
	}
	return of
}

// TestNoRoomForABatch applies updates for which there is no room in one transaction. After each part, each service is wholly as it was or
// wholly as it will be; what is shared is there as long as it is needed; and in the end nothing is missing, left over or unknown.
func TestNoRoomForABatch(t *testing.T) {
	const most = 12
	services := func(change func(n int) *state.Service) (list []*state.Service) {
		for n := range most {
			if s := change(n); s != nil {
				list = append(list, s)
			}
		}
		return list
	}
	name := func(n int) string { return fmt.Sprintf("s%02d", n) }
	old := services(func(n int) *state.Service {
		return everyKind(name(n), n, 3, time.Duration(n%2)*time.Hour)
	})
	var addresses []netip.Addr
	for _, s := range old {
		for i := range s.Ports {
			addresses = append(addresses, s.Ports[i].Frontends[0].Addr)
		}
	}
	removed := func(services ...*state.Service) *state.Update {
		u := delta()
		for _, s := range services {
			u.Removed = append(u.Removed, s.Name)
		}
		return u
	}
	more := services(func(n int) *state.Service { return everyKind(name(n), n, 5, time.Duration(n%3)*time.Hour) })
	none := services(func(n int) *state.Service { return everyKind(name(n), n, 0, 0) })
	// Each takes over the addresses and ports of the one before it.
	moved := services(func(n int) *state.Service { return everyKind(name(n), (n+1)%most, 4, 0) })
	for what, u := range map[string]*state.Update{
		"first": nil, "delta": delta(more...), "full": full(more...), "no endpoints": delta(none...), "moved": delta(moved...),
		"all moved": full(moved...), "removed": removed(old...), "some remain": full(more[:2]...),
	} {
		for i, errno := range []syscall.Errno{syscall.EMSGSIZE, syscall.ENOBUFS, syscall.ENOMEM} {
			for _, restarted := range []bool{false, true} {
				if (restarted || what != "delta") && i > 0 || restarted && (u == nil || !u.Full) {
					continue // nothing that others do not show
				}
				t.Run(fmt.Sprintf("%s, %v, restarted %v", what, errno, restarted), func(t *testing.T) {
					k := &narrowKernel{errno: errno}
					b, conn, start := newNarrowBackend(t, k)
					before := map[string]string{}
					if u != nil {
						apply(t, b, full(old...))
						before = dump(t, conn)
					}
					if restarted {
						closeBackend(b)
						b = start()
					}
					update := u
					if u == nil {
						update = full(old...)
					}
					var during []map[string]string
					if u == nil { // the rules and sets for it have to be there
						apply(t, b, full(old...))
						apply(t, b, full())
					}
					k.room, k.reads = 150, 0
					if strings.Contains(what, "moved") {
						k.room = 250
					}
					k.look = func() { during = append(during, dump(t, conn)) }
					r := apply(t, b, update)
					k.look = nil
					if len(r.Failed) > 0 || k.refused == 0 || len(during) < 3 {
						t.Fatalf("Failed is %v; %d batches refused, %d committed", r.Failed, k.refused, len(during))
					}
					if !update.Full && k.reads > 0 {
						t.Error("a difference was read back")
					}
					after := during[len(during)-1]
					mixed := 0
					for step, now := range during {
						for _, a := range addresses {
							was, is, will := shown(before, a), shown(now, a), shown(after, a)
							if !maps.Equal(is, was) && !maps.Equal(is, will) {
								t.Errorf("commit %d: %v is neither as before nor as after: %v", step, a, changesBetween(is, will))
							}
							if !maps.Equal(is, was) && step < len(during)-1 {
								mixed++
							}
						}
						for key := range before {
							_, stays := after[key]
							if _, is := now[key]; stays && !is && !strings.Contains(key, "service-") {
								t.Errorf("commit %d: %s is gone for a while", step, key)
							}
						}
						for key := range now {
							if strings.HasPrefix(key, "IPv4 service-slots ") {
								hairpin := fmt.Sprintf("IPv4 hairpin %[1]s%[1]s-", now[key][:8])
								if _, ok := now[hairpin]; !ok {
									t.Errorf("commit %d: %s leads to an endpoint without %s", step, key, hairpin)
								}
							}
						}
					}
					if mixed == 0 {
						t.Error("nothing was committed in parts")
					}
					k.reads, k.room = 0, 0
					apply(t, b, delta(everyKind("another", 40, 2, 0)))
					if k.reads > 0 {
						t.Error("the next difference was read back")
					}
					last := full(everyKind("another", 40, 2, 0))
					for name, record := range b.mirror.Records() {
						if name.Name != "another" {
							last.Changed = append(last.Changed, record)
						}
					}
					slices.SortFunc(last.Changed, func(a, b *state.Service) int { return a.Name.Compare(b.Name) })
					closeBackend(b)
					if r := apply(t, start(), last); r.Written != 0 {
						t.Errorf("a fresh start writes %d objects", r.Written)
					}
				})
			}
		}
	}
}

// TestNoRoomForAService: a service that does not fit into a transaction stays as it was, and all others are programmed.
func TestNoRoomForAService(t *testing.T) {
	small := func(n, endpoints int) *state.Service { return dualStack(fmt.Sprintf("s%02d", n), n, endpoints, 0) }
	for what, first := range map[string]bool{"in the first update": true, "later": false} {
		for _, errno := range []syscall.Errno{syscall.EMSGSIZE, syscall.ENOBUFS, syscall.ENOMEM} {
			t.Run(fmt.Sprintf("%s, %v", what, errno), func(t *testing.T) {
				k := &narrowKernel{errno: errno}
				b, conn, start := newNarrowBackend(t, k)
				large := small(3, 200)
				apply(t, b, full(large)) // the rules and sets for it have to be there
				apply(t, b, full())
				had := 0
				if !first {
					apply(t, b, full(small(3, 2), small(9, 2)))
					had = 2
				}
				k.room = 100
				var next []*state.Service
				for n := range 8 {
					next = append(next, small(n, 3))
				}
				next[3] = large
				check := func(r backend.Result) {
					t.Helper()
					if err := r.Failed[large.Name]; len(r.Failed) != 1 || !errors.Is(err, errno) || !strings.Contains(err.Error(), "net.core.wmem_max") {
						t.Fatalf("Failed is %v", r.Failed)
					}
				}
				check(apply(t, b, full(next...)))
				for n := range 10 {
					want := 3
					switch {
					case n == 3:
						want = had
					case n >= 8:
						want = 0
					}
					if got := slotsOf(t, conn, small(n, 1)); got != want {
						t.Errorf("service %d has %d slots, want %d", n, got, want)
					}
				}
				check(apply(t, b, delta(large)))
				k.room = 0
				if r := apply(t, b, delta(large)); len(r.Failed) > 0 || slotsOf(t, conn, large) != 200 {
					t.Errorf("not healed: %v", r.Failed)
				}
				closeBackend(b)
				if r := apply(t, start(), full(next...)); r.Written != 0 {
					t.Errorf("a fresh start writes %d objects", r.Written)
				}
			})
		}
	}
}

// TestNoRoomAndLostAnswer: the answer to the first part of an update gets lost, and the next update takes its changes back.
func TestNoRoomAndLostAnswer(t *testing.T) {
	k, g := &narrowKernel{errno: syscall.ENOBUFS}, &gap{}
	ns := netnstest.New(t)
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { k.kernel = losing{c, g}; return k })
	conn := dial(t, ns)
	all := func(endpoints int) (list []*state.Service) {
		for n := range 20 {
			list = append(list, dualStack(fmt.Sprintf("s%02d", n), n, endpoints, 0))
		}
		return list
	}
	apply(t, b, full(all(5)...)) // the rules and sets for it have to be there
	apply(t, b, full(all(2)...))
	before := dump(t, conn)
	k.room, g.lose = 100, true
	if _, err := reconcilers.Of(b).Apply(t.Context(), delta(all(5)...)); err == nil || k.refused == 0 || g.lose {
		t.Fatalf("error %v; %d batches refused, the answer is still to be lost: %v", err, k.refused, g.lose)
	}
	if maps.Equal(dump(t, conn), before) {
		t.Error("the part of which the answer was lost is not there")
	}
	apply(t, b, delta(all(2)...))
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
}

// TestNoRoomForAServiceAgain: what a service has does not fit into a transaction, because it came by differences or there was more room, and
// somebody deletes it. Others are programmed, also by what comes later, and it is written again once there is room.
func TestNoRoomForAServiceAgain(t *testing.T) {
	small := func(n, endpoints int) *state.Service { return dualStack(fmt.Sprintf("s%02d", n), n, endpoints, 0) }
	large := small(3, 200)
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	refused := serviceOf("refused", clusterIPPort(state.IPv4, state.TCP, 50, poison))
	all := func(endpoints int) (list []*state.Service) {
		for n := range 8 {
			list = append(list, small(n, endpoints))
		}
		list[3] = large
		return list
	}
	for _, c := range []struct{ found, healed, flushed string }{
		{"by Verify", "by Verify", "all"}, {"by Verify", "by a full update", "slots"}, {"by Verify", "by its removal", "slots"},
		{"by Verify", "by its change", "all"}, {"by a full update", "by Verify", "slots"}, {"after a lost answer", "by Verify", "all"},
	} {
		t.Run(fmt.Sprintf("%s flushed, found %s, healed %s", c.flushed, c.found, c.healed), func(t *testing.T) {
			k, g, picky := &narrowKernel{errno: syscall.EMSGSIZE}, &gap{}, &pickyKernel{}
			ns := netnstest.New(t)
			b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
				picky.kernel = losing{sharedKernel{c}, g}
				k.kernel = picky
				return k
			})
			conn := dial(t, ns)
			check := func(when string, r backend.Result, endpoints int) {
				t.Helper()
				if err := r.Failed[large.Name]; len(r.Failed) != 1 || !errors.Is(err, syscall.EMSGSIZE) || !strings.Contains(err.Error(), "net.core.wmem_max") {
					t.Fatalf("%s: Failed is %v", when, r.Failed)
				}
				for n := range 8 {
					if got := slotsOf(t, conn, small(n, 1)); n != 3 && got != endpoints {
						t.Errorf("%s: service %d has %d slots, want %d", when, n, got, endpoints)
					}
				}
			}
			others := func(endpoints int) *state.Update {
				return delta(slices.Delete(all(endpoints), 3, 4)...)
			}
			apply(t, b, full(all(5)...)) // the rules and sets for it have to be there
			apply(t, b, full(all(3)...))
			k.room = 100
			commitRaw(t, conn, func(batch *nft.Batch) {
				for _, f := range families {
					for set := range dumpTable(t, conn, f) {
						if c.flushed == "all" || strings.HasSuffix(set, "-slots") {
							batch.FlushSet(table(f), set)
						}
					}
				}
			})
			switch c.found {
			case "by Verify":
				b.guard.raise(foreignChange)
				r := verify(t, b)
				check("found", r, 3)
				if r.Repaired == 0 {
					t.Error("nothing was repaired")
				}
			case "by a full update":
				check("found", apply(t, b, full(all(3)...)), 3)
			default:
				g.lose = true
				if _, err := reconcilers.Of(b).Apply(t.Context(), delta(small(20, 1))); err == nil || g.lose {
					t.Fatalf("error %v, the answer is still to be lost: %v", err, g.lose)
				}
				b.guard.take()
				check("found", apply(t, b, others(3)), 3)
				if len(b.Disturbed()) == 0 {
					t.Error("no Verify is asked for")
				}
			}
			k.reads = 0
			check("a difference", apply(t, b, others(4)), 4)
			if k.reads > 0 {
				t.Error("a difference was read back")
			}
			check("Verify", verify(t, b), 4)
			check("another try", apply(t, b, delta(small(3, 201))), 4)
			check("a full update", apply(t, b, full(all(5)...)), 5)
			picky.poison = []string{string(bytes[:])}
			r, err := reconcilers.Of(b).Apply(t.Context(), delta(refused))
			if err != nil { // as the reconciler does
				r, err = reconcilers.Of(b).Apply(t.Context(), delta(refused))
			}
			if err != nil || len(r.Failed) != 2 || r.Failed[refused.Name] == nil || r.Failed[large.Name] == nil {
				t.Fatalf("with another that the kernel refuses: Failed is %v, error %v", r.Failed, err)
			}
			picky.poison = nil
			apply(t, b, &state.Update{Node: testNode, Removed: []state.ServiceName{refused.Name}})
			check("after a search", verify(t, b), 5)
			last := all(5)
			switch c.healed {
			case "by Verify":
				k.room = 0
				r = verify(t, b)
			case "by a full update":
				k.room = 0
				r = apply(t, b, full(last...))
			case "by its removal":
				last = slices.Delete(last, 3, 4)
				k.room = 1000 // for what is left of it
				r = apply(t, b, &state.Update{Node: testNode, Removed: []state.ServiceName{large.Name}})
			default:
				last[3] = small(3, 5)
				r = apply(t, b, delta(last[3]))
			}
			if len(r.Failed) > 0 {
				t.Errorf("not healed: %v", r.Failed)
			}
			if r := verify(t, b); r.Written > 0 || len(r.Failed) > 0 {
				t.Errorf("Verify after it: %+v", r)
			}
			closeBackend(b)
			if r := apply(t, newSharedBackend(t, ns, Options{}), full(last...)); r.Written != 0 {
				t.Errorf("a fresh start writes %d objects", r.Written)
			}
		})
	}
}

// TestLostServiceYields: there is no room for what a service had, and something else has deleted it. One of its frontends becomes another's,
// its own new record fails, and the kernel refuses a third service in the same update. The other one keeps the frontend, whether what is left
// of the lost service gets room or not.
func TestLostServiceYields(t *testing.T) {
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	port := func(n, endpoints int) state.Port {
		p := clusterIPPort(state.IPv4, state.TCP, n, endpointsOf(state.IPv4, 300*n, endpoints))
		p.Name = fmt.Sprint(n)
		return p
	}
	refusedPort := func(n int) state.Port {
		p := port(n, 0)
		p.Internal.Inside.Endpoints = poison
		return p
	}
	had, takes, refused := serviceOf("a-lost", port(1, 200), port(2, 200)), serviceOf("b-takes", port(1, 5)), serviceOf("c-refused", refusedPort(4))
	for name, c := range map[string]struct {
		fails   state.Port // of the lost service's new record
		room    int
		aborted bool
	}{
		"no room for what is left":      {fails: port(3, most+1), room: 100},
		"room, but its own is refused":  {fails: refusedPort(3)},
		"room, after an aborted search": {fails: refusedPort(3), aborted: true},
	} {
		t.Run(name, func(t *testing.T) {
			k, picky, interrupted := &narrowKernel{errno: syscall.EMSGSIZE}, &pickyKernel{}, &interruptedKernel{}
			ns := netnstest.New(t)
			start := func() *Backend {
				return openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
					interrupted.kernel = sharedKernel{c}
					picky.kernel, k.kernel = interrupted, picky
					return k
				})
			}
			b, conn := start(), dial(t, ns)
			apply(t, b, full(had, serviceOf("small", port(5, 5)))) // the rules and sets for it have to be there
			apply(t, b, full(had))
			k.room = 100
			commitRaw(t, conn, func(batch *nft.Batch) {
				for set := range dumpTable(t, conn, state.IPv4) {
					batch.FlushSet(table(state.IPv4), set)
				}
			})
			b.guard.raise(foreignChange)
			if r := verify(t, b); len(r.Failed) != 1 || r.Failed[had.Name] == nil {
				t.Fatalf("Failed is %v", r.Failed)
			}
			picky.poison, k.room = []string{string(bytes[:])}, c.room
			u := delta(serviceOf("a-lost", c.fails, port(2, 200)), takes, refused)
			if c.aborted {
				interrupted.until = 6*len(families) + 1 // while the last of them is tried alone
				if _, err := reconcilers.Of(b).Apply(t.Context(), u); !errors.Is(err, errInjected) {
					t.Fatalf("the search: %v", err)
				}
			} else if r := apply(t, b, u); len(r.Failed) != 2 || r.Failed[had.Name] == nil || r.Failed[refused.Name] == nil {
				t.Fatalf("Failed is %v", r.Failed)
			}
			for _, room := range []int{c.room, 0} {
				k.room = room
				b.guard.raise(foreignChange)
				verify(t, b)
				if n := ownSlots(t, conn, port(1, 1)); n != 5 {
					t.Errorf("with room %d, the frontend has %d slots after Verify", room, n)
				}
			}
			picky.poison = nil
			healed := full(serviceOf("a-lost", port(3, 2), port(2, 200)), takes, refused)
			apply(t, b, &state.Update{Node: healed.Node, Changed: healed.Changed})
			closeBackend(b)
			if r := apply(t, start(), healed); r.Written != 0 {
				t.Errorf("a fresh start writes %d objects", r.Written)
			}
		})
	}
}

// TestNoRoomToReplace: tables of another version are replaced in one transaction or not at all.
func TestNoRoomToReplace(t *testing.T) {
	k := &narrowKernel{errno: syscall.EMSGSIZE}
	ns := netnstest.New(t)
	b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel { k.kernel = sharedKernel{c}; return k })
	conn := dial(t, ns)
	all := full(dualStack("a", 1, 2, 0), dualStack("b", 2, 2, 0))
	apply(t, b, all)
	commitRaw(t, conn, func(b *nft.Batch) {
		b.AddSet(table(state.IPv4), &nft.Set{Name: "of-another-version", Key: []nft.Type{nft.TypePort}})
	})
	before := dump(t, conn)
	k.room = 20
	r, err := reconcilers.Of(b).Apply(t.Context(), all)
	if !errors.Is(err, syscall.EMSGSIZE) || !strings.Contains(err.Error(), "net.core.wmem_max") || len(r.Failed) > 0 || k.refused != 1 {
		t.Errorf("Failed is %v, error %v, %d batches refused", r.Failed, err, k.refused)
	}
	if diff := changesBetween(before, dump(t, conn)); len(diff) > 0 {
		t.Errorf("changed: %v", diff)
	}
	k.room = 0
	apply(t, b, all)
	if r := verify(t, b); r.Written > 0 {
		t.Errorf("Verify writes %d objects", r.Written)
	}
}

// TestNoMemoryAtAll: a kernel that has no memory for any service is a fault of the node, not of the services. It heals by itself.
func TestNoMemoryAtAll(t *testing.T) {
	k := &narrowKernel{errno: syscall.ENOMEM}
	b, _, _ := newNarrowBackend(t, k)
	apply(t, b, full())
	var all []*state.Service
	for n := range 3 * mostWithoutRoom {
		all = append(all, dualStack(fmt.Sprintf("s%02d", n), n, 3, 0))
	}
	k.room = 1
	if r, err := reconcilers.Of(b).Apply(t.Context(), delta(all...)); !errors.Is(err, syscall.ENOMEM) || len(r.Failed) > 0 {
		t.Errorf("Failed is %v, error %v", r.Failed, err)
	}
	if tries := k.refused; tries > 3*mostWithoutRoom {
		t.Errorf("%d batches were tried", tries)
	}
	k.room = 0
	apply(t, b, delta(all...))
}

// TestNoRoomForManyServices: the kernel has no memory for many large services in a row, which somebody may have made. All others are
// programmed.
func TestNoRoomForManyServices(t *testing.T) {
	k := &narrowKernel{errno: syscall.ENOMEM}
	b, conn, _ := newNarrowBackend(t, k)
	var large, small []*state.Service
	for n := range 3 * mostWithoutRoom {
		large = append(large, dualStack(fmt.Sprintf("large%02d", n), n, 200, 0))
	}
	for n := range 5 {
		small = append(small, dualStack(fmt.Sprintf("small%d", n), 100+n, 3, 0))
	}
	apply(t, b, full(large[0])) // the rules and sets for it have to be there
	apply(t, b, full())
	k.room = 100
	if r := apply(t, b, delta(large...)); len(r.Failed) != len(large) {
		t.Errorf("%d services failed, want %d", len(r.Failed), len(large))
	}
	k.refused = 0
	r := apply(t, b, delta(append(slices.Clone(large), small...)...))
	if len(r.Failed) != len(large) {
		t.Errorf("with others, %d services failed, want %d", len(r.Failed), len(large))
	}
	for _, s := range small {
		if n := slotsOf(t, conn, s); n != 3 {
			t.Errorf("%v has %d slots", s.Name, n)
		}
	}
	if most := 3 * (len(large) + len(small)); k.refused > most {
		t.Errorf("%d batches were tried, want %d at most", k.refused, most)
	}
}

// TestNoRoomToDelete: a service that has become too large for a transaction, one endpoint after the other, is removed with others, while
// another one changes. What sends packets to it goes first, and the firewall of its frontends last.
func TestNoRoomToDelete(t *testing.T) {
	k := &narrowKernel{errno: syscall.EMSGSIZE}
	b, conn, start := newNarrowBackend(t, k)
	large, other := everyKind("large", 1, 60, time.Hour), dualStack("other", 2, 2, 0)
	apply(t, b, full(large, everyKind("less", 3, 5, 0), other))
	k.room = 25
	k.look = func() {
		now := dump(t, conn)
		for _, p := range large.Ports {
			for i := range p.Frontends {
				f := &p.Frontends[i]
				if f.Kind == state.NodePort {
					continue
				}
				leads, slots, firewall := 0, 0, false
				for key := range now {
					switch {
					case !strings.Contains(key, " service-") || !strings.Contains(key, fmt.Sprintf(" %x", frontendKeyOf(&p, f))):
					case strings.Contains(key, "slots"):
						slots++
					case strings.Contains(key, "restricted"):
						firewall = true
					case !strings.Contains(key, "masquerade"):
						leads++
					}
				}
				if f.Kind == state.ClusterIP && leads > 0 && slots > 0 && slots < 60 {
					t.Errorf("%v leads to %d slots", f.Addr, slots)
				}
				if f.Restricted && slots > 0 && !firewall {
					t.Errorf("%v port %d has %d slots and no firewall", f.Addr, f.Port, slots)
				}
			}
		}
	}
	u := delta(dualStack("other", 2, 4, 0))
	u.Removed = []state.ServiceName{large.Name, {Namespace: large.Name.Namespace, Name: "less"}}
	if r := apply(t, b, u); len(r.Failed) > 0 || slotsOf(t, conn, other) != 4 {
		t.Errorf("Failed is %v, and the other service has %d slots", r.Failed, slotsOf(t, conn, other))
	}
	if k.refused > 200 {
		t.Errorf("%d batches were tried", k.refused)
	}
	k.room, k.look = 0, nil
	if r := verify(t, b); r.Written > 0 {
		t.Errorf("Verify writes %d objects", r.Written)
	}
	closeBackend(b)
	if r := apply(t, start(), full(dualStack("other", 2, 4, 0))); r.Written != 0 {
		t.Errorf("a fresh start writes %d objects", r.Written)
	}
}

// TestSmallSocketBuffer loads, changes and removes services through a socket whose buffer has room for a small part of them.
func TestSmallSocketBuffer(t *testing.T) {
	k := &narrowKernel{}
	b, conn, start := newNarrowBackend(t, k)
	large := dualStack("large", 500, 2000, 0)
	apply(t, b, full(large)) // the rules and sets for it have to be there
	apply(t, b, full())
	fd := int(reflect.ValueOf(k.kernel).Elem().FieldByName("fd").Int())
	if err := syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, 8<<10); err != nil {
		t.Fatal(err)
	}
	commits := 0
	k.look = func() { commits++ }
	all := func(endpoints int) (list []*state.Service) {
		for n := range 200 {
			list = append(list, dualStack(fmt.Sprintf("s%03d", n), n, endpoints, 0))
		}
		return list
	}
	if r := apply(t, b, full(append(all(4), large)...)); len(r.Failed) != 1 || !errors.Is(r.Failed[large.Name], syscall.EMSGSIZE) {
		t.Errorf("Failed is %v", r.Failed)
	}
	if commits < 10 {
		t.Errorf("%d commits", commits)
	}
	apply(t, b, delta(all(6)...))
	for _, s := range all(6) {
		if n := slotsOf(t, conn, s); n != 6 {
			t.Errorf("%v has %d slots", s.Name, n)
		}
	}
	apply(t, b, full(all(6)[:3]...))
	closeBackend(b)
	k.look = nil
	if r := apply(t, start(), full(all(6)[:3]...)); r.Written != 0 {
		t.Errorf("a fresh start writes %d objects", r.Written)
	}
}

// TestNoRoomWhileIsolating: somebody has deleted what a service had, there is no room to write it again, and the kernel refuses a service of
// the next full update. What the first one had is not forgotten by that.
func TestNoRoomWhileIsolating(t *testing.T) {
	poison := endpointsOf(state.IPv4, 999, 1)
	bytes := poison[0].Addr.Addr().As4()
	refused := serviceOf("refused", clusterIPPort(state.IPv4, state.TCP, 50, poison))
	for what, c := range map[string]struct {
		changed *state.Service
		others  []*state.Service
	}{
		"another is refused": {serviceOf("large", clusterIPPort(state.IPv6, state.TCP, 1, endpointsOf(state.IPv6, 1, 300))), []*state.Service{refused}},
		"it is refused":      {serviceOf("large", clusterIPPort(state.IPv4, state.TCP, 60, poison)), nil},
	} {
		t.Run(what, func(t *testing.T) {
			k, picky := &narrowKernel{errno: syscall.EMSGSIZE}, &pickyKernel{poison: []string{string(bytes[:])}}
			ns := netnstest.New(t)
			b := openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
				picky.kernel = sharedKernel{c}
				k.kernel = picky
				return k
			})
			conn := dial(t, ns)
			large, small := dualStack("large", 1, 200, 0), dualStack("small", 2, 3, 0)
			apply(t, b, full(large, small)) // the rules and sets for it have to be there
			k.room = 100
			commitRaw(t, conn, func(batch *nft.Batch) {
				for _, f := range families {
					batch.FlushSet(table(f), "service-slots")
				}
			})
			b.guard.raise(foreignChange)
			if r := verify(t, b); len(r.Failed) != 1 || r.Failed[large.Name] == nil {
				t.Fatalf("Failed is %v", r.Failed)
			}
			had := shown(dump(t, conn), large.Ports[0].Frontends[0].Addr)
			if len(had) == 0 {
				t.Fatal("nothing of the service is left")
			}
			r, err := reconcilers.Of(b).Apply(t.Context(), full(append(c.others, c.changed, small)...))
			if err != nil || len(r.Failed) != 1+len(c.others) || r.Failed[large.Name] == nil {
				t.Fatalf("Failed is %v, error %v", r.Failed, err)
			}
			if diff := changesBetween(had, shown(dump(t, conn), large.Ports[0].Frontends[0].Addr)); len(diff) > 0 {
				t.Errorf("what the service had has changed: %v", diff)
			}
			k.room = 0
			if r := verify(t, b); len(r.Failed) > 0 || slotsOf(t, conn, large) != 200 {
				t.Errorf("with room again, Failed is %v, and the service has %d slots of what it had", r.Failed, slotsOf(t, conn, large))
			}
		})
	}
}
