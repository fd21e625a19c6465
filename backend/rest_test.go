package backend

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// wide returns a record of so many ports with one frontend each. Records of two versions differ in their ports.
func wide(ports, version int) *state.Service {
	s := &state.Service{Name: state.ServiceName{Namespace: "tenant", Name: "wide"}}
	reject := state.Route{Verdict: state.Reject}
	for i := range ports {
		addr := netip.AddrFrom4([4]byte{10, 96, byte(version), 1})
		s.Ports = append(s.Ports, state.Port{Name: fmt.Sprintf("p%04d", i), Protocol: state.TCP, Family: state.IPv4,
			Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: uint16(i + 1)}}, Internal: state.Traffic{Inside: reject, Outside: reject}})
	}
	return s
}

// queueOf returns a queue that takes ten entries at once, and an empty state.
func queueOf(node *state.Node) queue {
	q := newQueue(10, newHeld(0))
	q.replace(&state.Update{Revision: 1, Node: node})
	return q
}

// TestSlowServiceRests: a service whose change took long rests, for a bounded time, and does not count as waiting then.
func TestSlowServiceRests(t *testing.T) {
	node, now := &state.Node{Name: "n1"}, time.Unix(0, 0)
	q := queueOf(node)
	for version, c := range []struct{ took, rest time.Duration }{{time.Millisecond, 8 * time.Millisecond}, {time.Minute, maxRest}} {
		q.add(&state.Update{Revision: q.got + 1, Node: node, Changed: []*state.Service{wide(100, version)}}, now)
		for range 2 { // each part is a bit more than half of the limit at least
			if !q.isReady(1, node, now) {
				t.Fatal("nothing is ready")
			}
			q.show(q.take(node), c.took, now)
		}
		if since := q.since(); !since.Equal(now) {
			t.Errorf("it waits since %v, want %v", since, now)
		}
		q.add(&state.Update{Revision: q.got + 1, Node: node, Changed: []*state.Service{wide(100, version+10)}}, now)
		if q.isReady(1, node, now) || !q.since().IsZero() {
			t.Errorf("a service that rests is ready, or waits since %v", q.since())
		}
		if rest := q.wakes().Sub(now); rest != c.rest {
			t.Errorf("it rests for %v after two parts of %v, want %v", rest, c.took, c.rest)
		}
		now = q.wakes()
	}
}

// TestReplacedChanges: what is replaced by a later update keeps a bounded number of triggers, and no update waiting.
func TestReplacedChanges(t *testing.T) {
	node := &state.Node{Name: "n1"}
	q := queueOf(node)
	first := time.Unix(0, 0)
	for n := range 10 * maxTriggers {
		now := first.Add(time.Duration(n) * time.Second)
		u := &state.Update{Revision: q.got + 1, Node: node, Changed: []*state.Service{wide(100, n%2)}, Triggers: []time.Time{now}}
		q.add(u, now)
		if len(q.arrivals) != 1 || q.arrivals[0].left != 1 || !q.since().Equal(now) {
			t.Fatalf("%d updates are left, the first since %v, want the last one only", len(q.arrivals), q.since())
		}
	}
	b := q.take(node)
	if r, _ := q.revision(b); r != q.got-1 {
		t.Errorf("a part applies revision %d, want all before %d", r, q.got)
	}
	if kept := q.arrivals[0].triggers; len(kept) != maxTriggers || !kept[0].Equal(first) {
		t.Errorf("%d triggers are kept, want the first %d", len(kept), maxTriggers)
	}
}

// TestReplacedSmallChanges: an update waits for a small change of which a later one says more, and all its triggers end with it.
func TestReplacedSmallChanges(t *testing.T) {
	node, first := &state.Node{Name: "n1"}, time.Unix(0, 0)
	q := queueOf(node)
	small := func(name string, version int) *state.Service {
		s := wide(5, version)
		s.Name.Name = name
		return s
	}
	for n := range 3 { // the second takes its turn when the first has changed twice
		now := first.Add(time.Duration(n) * time.Second)
		u := &state.Update{Revision: q.got + 1, Node: node, Changed: []*state.Service{small("b", n)}, Triggers: []time.Time{now}}
		if n == 0 {
			u.Changed = append([]*state.Service{small("a", n), small("a2", n)}, u.Changed...)
		}
		q.add(u, now)
	}
	if since := q.since(); !since.Equal(first) {
		t.Errorf("it waits since %v, want %v", since, first)
	}
	for n, want := range []struct {
		state.Revision
		triggers int
	}{{1, 0}, {q.got, 3}} {
		if !q.isReady(1, node, first) {
			t.Fatal("nothing is ready")
		}
		b := q.take(node)
		if r, triggers := q.revision(b); r != want.Revision || len(triggers) != want.triggers {
			t.Errorf("part %d applies revision %d and %d triggers, want %d and %d", n, r, len(triggers), want.Revision, want.triggers)
		}
		q.show(b, time.Millisecond, first)
	}
	if len(q.arrivals)+len(q.wants) > 0 {
		t.Errorf("%d updates and %d services are left", len(q.arrivals), len(q.wants))
	}
}

// TestAnotherNode: with another node, all comes at once, and nothing is left of what waited for its turn.
func TestAnotherNode(t *testing.T) {
	node, other, now := &state.Node{Name: "n1"}, &state.Node{Name: "n1", ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}}, time.Unix(0, 0)
	q := queueOf(node)
	q.add(&state.Update{Revision: 2, Node: node, Changed: []*state.Service{wide(100, 0)}}, now)
	if !q.isReady(1, node, now) {
		t.Fatal("nothing is ready")
	}
	q.add(&state.Update{Revision: 3, Node: other}, now)
	q.show(q.take(node), time.Millisecond, now)
	if q.isReady(3, other, now) || len(q.turns)+len(q.turnsOf)+len(q.wants) > 0 {
		t.Errorf("%d turns and %d services are left", len(q.turns), len(q.wants))
	}
}
