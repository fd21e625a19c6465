//go:build linux

package nftables

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables/internal/ruleset"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
)

// drainTime is a deadline that does not pass during a test, in seconds.
const drainTime = 3600

// draining returns a service with a deadline, of which an endpoint still serves.
func (r *removal) draining(s *state.Service, seconds uint32, lingering ...string) *state.Service {
	for i := range s.Ports {
		p := &s.Ports[i]
		p.DrainSeconds, p.Lingering = seconds, r.endpoints(p.Family, lingering...)
	}
	return s
}

// deadlines returns how many elements the sets of endpoints with a deadline have in both families, and the least time that is left until a
// deadline. It returns -1 for all if there is no table.
func (r *removal) deadlines() (drained, draining int, left time.Duration) {
	r.t.Helper()
	exists := false
	for _, tb := range ruleset.ResetTables() {
		has, err := r.conn.HasTable(tb)
		if err != nil {
			r.t.Fatal(err)
		}
		if !has {
			continue
		}
		exists = true
		for set, n := range map[string]*int{ruleset.SetDrained: &drained, ruleset.SetDraining: &draining} {
			elems, err := r.conn.Elems(tb, set)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				r.t.Fatal(err)
			}
			*n += len(elems)
			for _, e := range elems {
				if d := time.Duration(e.Expires) * time.Millisecond; set == ruleset.SetDraining && (left == 0 || d < left) {
					left = d
				}
			}
		}
	}
	if !exists {
		return -1, -1, -1
	}
	return drained, draining, left
}

func (r *removal) expectDeadlines(when string, wantDrained, wantDraining int) {
	r.t.Helper()
	if drained, draining, _ := r.deadlines(); drained != wantDrained || draining != wantDraining {
		r.t.Errorf("%s: %d endpoints have a deadline, and %d wait for it, want %d and %d (-1: no table)", when, drained, draining, wantDrained, wantDraining)
	}
}

// passDeadlines takes the elements that wait out of the kernel, as it does itself when the deadlines pass.
func (r *removal) passDeadlines() {
	r.t.Helper()
	for _, tb := range ruleset.ResetTables() {
		elems, err := r.conn.Elems(tb, ruleset.SetDraining)
		if err != nil {
			r.t.Fatal(err)
		}
		commitRaw(r.t, r.backend.kernel.(*nft.Conn), func(b *nft.Batch) {
			for _, e := range elems {
				b.DeleteElem(tb, ruleset.SetDraining, nft.Elem{Key: e.Key})
			}
		})
	}
}

// TestDrainDeadline: connections through a service with a deadline are reset when it has passed, to all kinds of endpoints and through all kinds
// of frontends. All other connections to the endpoint stay, also those through another service.
func TestDrainDeadline(t *testing.T) {
	for _, name := range []string{"near", "far", "node"} {
		t.Run(name, func(t *testing.T) {
			r := newRemoval(t)
			r.options.ResetRemoved = false
			r.start(r.draining(r.web(name, "stays"), drainTime), r.other("other", 2, name))
			r.expectDeadlines("at the start", -1, -1)
			drained, others := r.openAll(name), append(r.openAll("stays"), r.direct(name)...)
			for _, f := range families {
				others = append(others, r.open(r.lab.Pod("client"), clusterIPOf(r.other("other", 2, name), f), r.host(name).Name))
			}
			r.show(false, r.draining(r.web("stays"), drainTime, name))
			ways := r.ways()
			r.expectDeadlines("before the deadline", ways, ways)
			expectAll(t, "before the deadline", nil, append(drained, others...))
			r.show(false, r.other("other", 2))
			r.expectDeadlines("the other service lets go of it", ways, ways)

			if until := r.deadlineOf(name); time.Until(until) <= 0 || time.Until(until) > drainTime*time.Second {
				t.Errorf("connections are said to stay until %v", until)
			}
			r.passDeadlines()
			if until := r.deadlineOf(name); until.IsZero() || time.Until(until) > 0 {
				t.Errorf("connections are said to stay until %v, and the deadline has passed", until)
			}
			expectAll(t, "after the deadline", syscall.ECONNRESET, drained)
			expectAll(t, "after the deadline, others", nil, others)
			if len(r.gone) > 0 {
				t.Errorf("%v are reported to be gone", r.gone)
			}
			r.show(false, r.draining(r.web(name, "stays"), drainTime))
			r.expectDeadlines("the endpoint is back", -1, -1)
			if until := r.deadlineOf(name); !until.IsZero() {
				t.Errorf("connections are said to stay until %v, without a deadline", until)
			}
			expectAll(t, "the endpoint is back", nil, append(r.openAll(name), others...))
			if v := verify(t, r.backend); v.Written != 0 {
				t.Errorf("Verify: %+v", v)
			}
		})
	}
}

// deadlineOf is the deadline of an endpoint that the dataplane reads back for connections to the cluster IP of web.
func (r *removal) deadlineOf(name string) time.Time {
	r.t.Helper()
	r.backend.inspector.finder = r.conn
	defer func() { r.backend.inspector.finder = nil }()
	e, fe := r.endpoint(name, state.IPv4).Addr, churnFrontends(state.IPv4)[0]
	q := backend.Query{
		Frontend: state.FrontendKey{Family: state.IPv4, Protocol: state.TCP, Addr: fe.Addr, Port: fe.Port}, Dst: fe.Addr,
		Endpoints: []netip.AddrPort{r.endpoint("stays", state.IPv4).Addr, e},
	}
	held, err := r.backend.Inspect(q)
	if err != nil || len(held.Deadlines) > 1 {
		r.t.Fatalf("deadlines %v, %v", held.Deadlines, err)
	}
	alone, err := r.backend.InspectEndpoints(q)
	if late := alone.Deadlines[e].Sub(held.Deadlines[e]); err != nil || len(alone.Deadlines) != len(held.Deadlines) || late.Abs() > time.Second || len(alone.Objects) > 0 {
		r.t.Fatalf("without the rest: deadlines %v and objects %q, want deadlines %v: %v", alone.Deadlines, alone.Objects, held.Deadlines, err)
	}
	return held.Deadlines[e]
}

// ways is how many ways lead to an endpoint of web in both families.
func (r *removal) ways() (n int) {
	for _, f := range families {
		n += 1 + len(churnFrontends(f)) // and the load balancer
		for _, fe := range churnFrontends(f) {
			if fe.Kind == state.NodePort {
				n += len(slices.DeleteFunc(slices.Clone(r.backend.mirror.NodePorts()), func(a netip.Addr) bool { return state.FamilyOf(a) != f })) - 1
			}
		}
	}
	return n
}

func clusterIPOf(s *state.Service, f state.Family) netip.AddrPort {
	i := slices.IndexFunc(s.Ports, func(p state.Port) bool { return p.Family == f })
	fe := s.Ports[i].Frontends[0]
	return netip.AddrPortFrom(fe.Addr, fe.Port)
}

// TestDrainCounts: resets after a deadline count for the service.
func TestDrainCounts(t *testing.T) {
	r := newRemoval(t)
	r.options.ResetRemoved = false
	r.start(r.draining(r.web("near", "stays"), drainTime))
	drained := r.openAll("near")
	r.show(false, r.draining(r.web("stays"), drainTime, "near"))
	r.passDeadlines()
	expectAll(t, "after the deadline", syscall.ECONNRESET, drained)
	if verify(t, r.backend); r.counted["web"] < uint64(len(drained)) || len(r.counted) != 1 {
		t.Errorf("%v packets were answered with a reset, want %d", r.counted, len(drained))
	}
}

// TestDrainWithoutAProcess: the kernel keeps the deadline of a process that has ended.
func TestDrainWithoutAProcess(t *testing.T) {
	r := newRemoval(t)
	r.options.ResetRemoved = false
	r.start(r.draining(r.web("near", "stays"), 1))
	drained, others := r.openAll("near"), r.openAll("stays")
	r.show(false, r.draining(r.web("stays"), 1, "near"))
	closeBackend(r.backend)
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, draining, _ := r.deadlines(); draining == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the deadline does not pass")
		}
	}
	expectAll(t, "after the deadline", syscall.ECONNRESET, drained)
	expectAll(t, "after the deadline, others", nil, others)
}

// TestRestartWhileOneFamilyDrains: deadlines in one family keep the rules of deadlines in both.
func TestRestartWhileOneFamilyDrains(t *testing.T) {
	r := newRemoval(t)
	r.start(r.web("near", "far", "stays"))
	r.show(false, r.web("near", "stays")) // so both families have a table
	drainsIPv6 := func(seconds uint32) *state.Service {
		s, less := r.draining(r.web("near", "stays"), seconds), r.draining(r.web("stays"), seconds, "near")
		for i := range s.Ports {
			if s.Ports[i].Family == state.IPv6 {
				s.Ports[i] = less.Ports[i]
			}
		}
		return s
	}
	r.show(false, r.draining(r.web("near", "stays"), drainTime))
	r.show(false, drainsIPv6(drainTime))
	before, _, _ := r.deadlines()
	closeBackend(r.backend)
	if written := r.start(drainsIPv6(0)); before <= 0 || written != 0 {
		t.Errorf("%d endpoints have a deadline, and a restart without the annotation writes %d objects, want none", before, written)
	}
}

// TestRestartWhileDraining: the next process takes a deadline over as it is, whatever its own settings and records say.
func TestRestartWhileDraining(t *testing.T) {
	for _, c := range []struct {
		name string
		// next is what the next process has.
		next func(r *removal) *state.Service
		want error
		here bool // the deadline is still there
	}{
		{"the same", func(r *removal) *state.Service { return r.draining(r.web("stays"), drainTime, "near") }, syscall.ECONNRESET, true},
		{"another deadline", func(r *removal) *state.Service { return r.draining(r.web("stays"), 2*drainTime) }, syscall.ECONNRESET, true},
		{"no annotation", func(r *removal) *state.Service { return r.web("stays") }, syscall.ECONNRESET, true},
		{"with resets", func(r *removal) *state.Service {
			r.options.ResetRemoved = true
			return r.draining(r.web("stays"), drainTime, "near")
		}, syscall.ECONNRESET, true},
		{"the endpoint is back", func(r *removal) *state.Service { return r.draining(r.web("near", "stays"), drainTime) }, nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRemoval(t)
			r.options.ResetRemoved = false
			r.start(r.draining(r.web("near", "stays"), drainTime))
			drained, others := r.openAll("near"), r.openAll("stays")
			r.show(false, r.draining(r.web("stays"), drainTime, "near"))
			ways, _, before := r.deadlines()
			closeBackend(r.backend)
			written := r.start(c.next(r))
			if c.name == "the same" && written != 0 {
				t.Errorf("the restart writes %d objects", written)
			}
			if !c.here {
				r.expectDeadlines("after the restart", -1, -1)
				expectAll(t, "after the restart", nil, slices.Concat(drained, others))
				return
			}
			r.expectDeadlines("after the restart", ways, ways)
			if _, _, after := r.deadlines(); after > before || before-after > time.Minute {
				t.Errorf("%v were left until the deadline, and now it is %v", before, after)
			}
			expectAll(t, "before the deadline", nil, slices.Concat(drained, others))
			r.passDeadlines()
			expectAll(t, "after the deadline", c.want, drained)
			expectAll(t, "after the deadline, others", nil, others)
			if v := verify(t, r.backend); v.Repaired != 0 {
				t.Errorf("Verify: %+v", v)
			}
		})
	}
}

// TestDrainBesideResets: with resets to endpoints that are gone, one that no longer serves does not wait for its deadline. The tables change their
// rules while connections are reset.
func TestDrainBesideResets(t *testing.T) {
	r := newRemoval(t)
	r.start(r.web("near", "far", "stays"))
	gone := r.openAll("far")
	r.show(false, r.web("near", "stays"))
	expectAll(t, "gone", syscall.ECONNRESET, gone[:len(gone)/2])
	drained, others := r.openAll("near"), r.openAll("stays")
	r.show(false, r.draining(r.web("near", "stays"), drainTime))
	r.show(false, r.draining(r.web("stays"), drainTime, "near"))
	ways := r.ways()
	r.expectDeadlines("it terminates", ways, ways)
	expectAll(t, "it terminates", nil, slices.Concat(drained, others))
	expectAll(t, "gone before", syscall.ECONNRESET, gone[len(gone)/2:])
	r.show(false, r.draining(r.web("stays"), drainTime))
	r.expectTables("it no longer serves", 2)
	expectAll(t, "it no longer serves", syscall.ECONNRESET, drained)
	expectAll(t, "it no longer serves, others", nil, others)
	if verify(t, r.backend); r.counted["web"] < uint64(len(gone)+len(drained)) {
		t.Errorf("%v packets were answered with a reset, want %d", r.counted, len(gone)+len(drained))
	}
	reconfigure := func(on bool) {
		t.Helper()
		r.options.ResetRemoved = on
		if err := r.backend.Reconfigure(r.options); err != nil {
			t.Fatal(err)
		}
		r.show(true, r.draining(r.web("stays"), drainTime))
	}
	reconfigure(false)
	r.expectDeadlines("without resets", ways, ways)
	expectAll(t, "without resets", nil, others)
	reconfigure(true)
	r.expectDeadlines("with resets again", ways, ways)
	r.expectTables("with resets again", 0)
}

// TestAnnotationRemovedWhileDraining: endpoints that still serve lose their deadline.
func TestAnnotationRemovedWhileDraining(t *testing.T) {
	r := newRemoval(t)
	r.options.ResetRemoved = false
	r.start(r.draining(r.web("near", "stays"), drainTime))
	drained := r.openAll("near")
	r.show(false, r.draining(r.web("stays"), drainTime, "near"))
	r.show(false, r.web("stays"))
	r.expectDeadlines("without the annotation", -1, -1)
	expectAll(t, "without the annotation", nil, drained)
}

// TestDrainTablesAreRepaired changes the elements and rules of deadlines behind the dataplane's back.
func TestDrainTablesAreRepaired(t *testing.T) {
	r := newRemoval(t)
	r.options.ResetRemoved = false
	r.backend = newSharedBackend(t, r.ns, r.options)
	r.show(true, r.draining(r.web("near", "stays"), drainTime))
	r.show(false, r.draining(r.web("stays"), drainTime, "near"))
	drained, draining, left := r.deadlines()
	undisturbed(t, r.backend)
	for _, command := range []string{
		"delete table ip switchyard-resets", "flush set ip6 switchyard-resets draining", "flush set ip switchyard-resets drained",
		"flush chain ip switchyard-resets forward", "add element ip switchyard-resets drained { 10.1.2.3 . 80 . 10.4.5.6 . 90 timeout 1h }",
		"add element ip switchyard-resets draining { 10.1.2.3 . 80 . 10.4.5.6 . 90 timeout 1h }",
	} {
		netnstest.NFT(t, r.ns, command)
		r.backend.guard.spent(0) // else the next comparison waits
		disturbed(t, r.backend)
		if v := verify(t, r.backend); v.Repaired == 0 || v.Repaired != v.Written {
			t.Errorf("%s: %+v", command, v)
		}
		r.expectDeadlines(command, drained, draining)
		if _, _, now := r.deadlines(); now > left || left-now > time.Minute {
			t.Errorf("%s: %v were left until the deadline, and now it is %v", command, left, now)
		}
		if v := verify(t, r.backend); v.Written != 0 {
			t.Errorf("%s: another Verify: %+v", command, v)
		}
	}
}

// TestWarnDropped: the log tells connections to removed endpoints from connections that get no deadline, and counts each once.
func TestWarnDropped(t *testing.T) {
	var out bytes.Buffer
	r, log := &resets{Resets: ruleset.NewResets(0)}, slog.New(slog.NewTextHandler(&out, nil))
	for _, c := range []struct{ dropped, said ruleset.Dropped }{
		{ruleset.Dropped{}, ruleset.Dropped{}},
		{ruleset.Dropped{Gone: 2}, ruleset.Dropped{Gone: 2}},
		{ruleset.Dropped{Gone: 2, Deadlines: 7}, ruleset.Dropped{Deadlines: 7}},
		{ruleset.Dropped{Gone: 2, Deadlines: 7}, ruleset.Dropped{}},
		{ruleset.Dropped{Gone: 3, Deadlines: 8}, ruleset.Dropped{Gone: 1, Deadlines: 1}},
	} {
		out.Reset()
		r.Dropped = c.dropped
		r.warnDropped(log)
		for key, n := range map[string]int{"notReset": c.said.Gone, "withoutDeadline": c.said.Deadlines} {
			if said := strings.Contains(out.String(), fmt.Sprintf(" %s=%d ", key, n)); said != (n > 0) {
				t.Errorf("%+v: want %s=%d: %s", c.dropped, key, n, out.String())
			}
		}
	}
}
