package conntrack

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// fakeTable is a Table in memory. It knows filters to delete by as the kernel does: only such as name a frontend of UDP over IPv4.
type fakeTable struct {
	flows   []Flow
	filters []Filter // of the listings so far
	removed []Filter // of the deletions by filter so far
	// old: the kernel cannot delete by a filter.
	old bool
	// fail, if set, decides whether a call fails.
	fail func() bool
}

var errFake = errors.New("injected")

func (t *fakeTable) Flows(f Filter, each func([]Flow) error) error {
	t.filters = append(t.filters, f)
	if t.fail != nil && t.fail() {
		return errFake
	}
	var found []Flow
	for _, flow := range t.flows {
		if f.Match(flow) {
			found = append(found, flow)
		}
	}
	for some := range slices.Chunk(found, 3) {
		if err := each(some); err != nil {
			return err
		}
		clear(some) // valid during the call only
		if t.fail != nil && t.fail() {
			return errFake
		}
	}
	return nil
}

func (t *fakeTable) Delete(flows ...Flow) (deleted int, err error) {
	for _, flow := range flows {
		if t.fail != nil && t.fail() {
			err = errFake
			continue
		}
		before := len(t.flows)
		t.flows = slices.DeleteFunc(t.flows, func(f Flow) bool { return f == flow })
		deleted += before - len(t.flows)
	}
	return deleted, err
}

func (t *fakeTable) DeleteAll(f Filter) (int, error) {
	if t.old || f.Family != state.IPv4 {
		return 0, fmt.Errorf("delete by a filter: %w", errors.ErrUnsupported)
	}
	unanswered := f == Filter{Family: state.IPv4, Protocol: state.TCP, From: f.From, Unanswered: true}
	if !unanswered && (f.Protocol != state.UDP || !f.Dst.Is4() || f.DstPort == 0 || f.Unconnected) {
		return 0, fmt.Errorf("%+v does not name a frontend of UDP over IPv4", f)
	}
	t.removed = append(t.removed, f)
	if t.fail != nil && t.fail() {
		return 0, errFake
	}
	before := len(t.flows)
	t.flows = slices.DeleteFunc(t.flows, f.Match)
	return before - len(t.flows), nil
}

// looks is how often the kernel would have walked through its table.
func (t *fakeTable) looks() int { return len(t.filters) + len(t.removed) }

// flow is a UDP flow to dst that from answers.
func flow(dst, from string) Flow {
	client := "10.244.9.9:4000"
	if ap(dst).Addr().Is6() {
		client = "[fd00:244::9]:4000"
	}
	return Flow{
		Family:   state.FamilyOf(ap(dst).Addr()),
		Protocol: state.UDP,
		Orig:     Tuple{Src: ap(client), Dst: ap(dst)},
		Reply:    Tuple{Src: ap(from), Dst: ap(client)},
	}
}

// service makes a service with one UDP port. frontends are "address:port", or ":port" for a NodePort; endpoints are
// "address:port".
func service(name, frontends, endpoints string) *state.Service {
	p := state.Port{Protocol: state.UDP, Family: state.IPv4}
	for f := range strings.FieldsSeq(frontends) {
		kind := state.ClusterIP
		if strings.HasPrefix(f, ":") {
			f, kind = "0.0.0.0"+f, state.NodePort
		}
		a := ap(f)
		frontend := state.Frontend{Kind: kind, Addr: a.Addr(), Port: a.Port()}
		if kind == state.NodePort {
			frontend.Addr = netip.Addr{}
		} else {
			p.Family = state.FamilyOf(a.Addr())
		}
		p.Frontends = append(p.Frontends, frontend)
	}
	for e := range strings.FieldsSeq(endpoints) {
		p.Internal.Inside.Endpoints = append(p.Internal.Inside.Endpoints, state.Endpoint{Addr: ap(e)})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{p}}
}

// nodePortAddrs are sorted.
var nodePortAddrs = []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00::1")}

// newCleaner returns a Cleaner of t for a node that serves NodePorts on nodePortAddrs.
func newCleaner(t Table) *Cleaner {
	c := NewCleaner(t, CleanerOptions{})
	c.SetNodePortAddrs(nodePortAddrs)
	return c
}

// clean cleans with no commit in between.
func clean(ctx context.Context, c *Cleaner) (deleted int, err error) {
	return c.Clean(ctx, nil)
}

func mustClean(t *testing.T, c *Cleaner, want int) {
	t.Helper()
	if got, err := clean(t.Context(), c); got != want || err != nil {
		t.Errorf("deleted %d flows, error %v; want %d, nil", got, err, want)
	}
}

func TestClean(t *testing.T) {
	const vip = "10.96.0.1:53"
	tcp := func(s *state.Service) *state.Service {
		s.Ports[0].Protocol = state.TCP
		return s
	}
	lingering := func(s *state.Service, endpoint string) *state.Service {
		s.Ports[0].Lingering = []state.Endpoint{{Addr: ap(endpoint)}}
		return s
	}
	external := func(s *state.Service, inside, outside string) *state.Service {
		s.Ports[0].External.Inside.Endpoints = []state.Endpoint{{Addr: ap(inside)}}
		s.Ports[0].External.Outside.Endpoints = []state.Endpoint{{Addr: ap(outside)}}
		return s
	}
	for _, c := range []struct {
		name     string
		old, new *state.Service
		flow     Flow
		gone     bool
	}{
		{"an endpoint leaves", service("a", vip, "10.0.0.1:53 10.0.0.2:53"), service("a", vip, "10.0.0.2:53"), flow(vip, "10.0.0.1:53"), true},
		{"another endpoint leaves", service("a", vip, "10.0.0.1:53 10.0.0.2:53"), service("a", vip, "10.0.0.2:53"), flow(vip, "10.0.0.2:53"), false},
		{"an endpoint changes its port", service("a", vip, "10.0.0.1:53"), service("a", vip, "10.0.0.1:54"), flow(vip, "10.0.0.1:53"), true},
		{"an endpoint lingers", service("a", vip, "10.0.0.1:53"), lingering(service("a", vip, ""), "10.0.0.1:53"), flow(vip, "10.0.0.1:53"), false},
		{"an endpoint lingers no more", lingering(service("a", vip, "10.0.0.2:53"), "10.0.0.1:53"), service("a", vip, "10.0.0.2:53"), flow(vip, "10.0.0.1:53"), true},
		{"an endpoint moves to another route", service("a", vip, "10.0.0.1:53"), external(service("a", vip, ""), "10.0.0.2:53", "10.0.0.1:53"), flow(vip, "10.0.0.1:53"), false},
		{"an endpoint leaves the external routes", external(service("a", vip, "10.0.0.1:53"), "10.0.0.2:53", "10.0.0.3:53"), service("a", vip, "10.0.0.1:53"), flow(vip, "10.0.0.3:53"), true},
		{"no endpoint is left", service("a", vip, "10.0.0.1:53"), service("a", vip, ""), flow(vip, "10.0.0.1:53"), true},
		{"no endpoint is left on a NodePort", service("a", ":30000", "10.0.0.1:53"), service("a", ":30000", ""), flow("192.168.0.1:30000", "10.0.0.1:53"), true},
		{"a first endpoint", service("a", vip, ""), service("a", vip, "10.0.0.1:53"), flow(vip, vip), true},
		{"the service appears", nil, service("a", vip, "10.0.0.1:53"), flow(vip, vip), true},
		{"the service appears where another process had one", nil, service("a", vip, "10.0.0.1:53"), flow(vip, "10.0.0.9:53"), true},
		{"a first endpoint at the frontend itself", service("a", vip, ""), service("a", vip, vip), flow(vip, vip), false},
		{"the service goes", service("a", vip, "10.0.0.1:53"), nil, flow(vip, "10.0.0.1:53"), true},
		{"the NodePort goes", service("a", vip+" :30000", "10.0.0.1:53"), service("a", vip, "10.0.0.1:53"), flow("192.168.0.1:30000", "10.0.0.1:53"), true},
		{"the frontend beside the NodePort", service("a", vip+" :30000", "10.0.0.1:53"), service("a", vip, "10.0.0.1:53"), flow(vip, "10.0.0.1:53"), false},
		{"the NodePort's number on another address", service("a", ":30000", "10.0.0.1:53"), nil, flow("192.168.0.2:30000", "10.0.0.1:53"), false},
		{"another port of the address", service("a", vip, "10.0.0.1:53"), nil, flow("10.96.0.1:54", "10.0.0.1:53"), false},
		{"another address", service("a", vip, "10.0.0.1:53"), nil, flow("10.96.0.2:53", "10.0.0.1:53"), false},
		{"an IPv6 endpoint leaves", service("a", "[fd96::1]:53", "[fd00::2]:53"), service("a", "[fd96::1]:53", ""), flow("[fd96::1]:53", "[fd00::2]:53"), true},
		{"the NodePort's number in the other family", service("a", ":30000", "10.0.0.1:53"), nil, flow("[fd00::1]:30000", "[fd00::2]:53"), false},
		{"TCP", tcp(service("a", vip, "10.0.0.1:53")), nil, flow(vip, "10.0.0.1:53"), false},
	} {
		for _, old := range []bool{false, true} {
			table := &fakeTable{flows: []Flow{c.flow}, old: old}
			cleaner := newCleaner(table)
			cleaner.Note(c.old, c.new)
			n, err := clean(t.Context(), cleaner)
			if gone := len(table.flows) == 0; gone != c.gone || err != nil || (n == 1) != gone {
				t.Errorf("%s: the flow is gone: %v, want %v; deleted %d, error %v (old kernel: %v)", c.name, gone, c.gone, n, err, old)
			}
			if byFilter := !old && c.flow.Family == state.IPv4 && c.old != nil; byFilter && len(table.filters) > 0 {
				t.Errorf("%s: listed %v, want a deletion by filters", c.name, table.filters)
			}
		}
	}
}

// TestCleanHandedOver: flows to a NodePort of another node go on as long as their endpoint serves, if that node hands flows over. Flows that only pass through are
// none of ours.
func TestCleanHandedOver(t *testing.T) {
	const peer, stranger = "192.168.0.7:30000", "192.168.0.8:30000"
	handedOver := func(s *state.Service) *state.Service {
		s.Ports[0].Edge = &state.Edge{}
		return s
	}
	plain, more := service("a", ":30000", "10.0.0.1:53 10.0.0.2:53"), service("a", ":30000", "10.0.0.1:53")
	for _, c := range []struct {
		name     string
		old, new *state.Service
		flow     Flow
		gone     bool
	}{
		{"an endpoint leaves", handedOver(service("a", ":30000", "10.0.0.1:53 10.0.0.2:53")), handedOver(service("a", ":30000", "10.0.0.1:53")), flow(peer, "10.0.0.2:53"), true},
		{"another endpoint leaves", handedOver(service("a", ":30000", "10.0.0.1:53 10.0.0.2:53")), handedOver(service("a", ":30000", "10.0.0.1:53")), flow(peer, "10.0.0.1:53"), false},
		{"the port is no longer handed over", handedOver(service("a", ":30000", "10.0.0.1:53 10.0.0.2:53")), service("a", ":30000", "10.0.0.1:53"), flow(peer, "10.0.0.2:53"), true},
		{"the service goes", handedOver(service("a", ":30000", "10.0.0.1:53")), nil, flow(peer, "10.0.0.1:53"), true},
		{"the service appears", nil, handedOver(service("a", ":30000", "10.0.0.1:53")), flow(peer, "10.0.0.9:53"), true},
		{"a flow to the other node itself", handedOver(service("a", ":30000", "10.0.0.1:53")), nil, flow(peer, peer), false},
		{"an address that is no node's", handedOver(service("a", ":30000", "10.0.0.1:53")), nil, flow(stranger, "10.0.0.1:53"), false},
		{"the port is never handed over", plain, more, flow(peer, "10.0.0.2:53"), false},
		{"the node's own address", handedOver(service("a", ":30000", "10.0.0.1:53")), nil, flow("192.168.0.1:30000", "10.0.0.1:53"), true},
	} {
		table := &fakeTable{flows: []Flow{c.flow}}
		cleaner := newCleaner(table)
		cleaner.SetPeerAddrs([]netip.Addr{netip.MustParseAddr("192.168.0.6"), netip.MustParseAddr("192.168.0.7"), netip.MustParseAddr("fd00::7")})
		cleaner.Note(c.old, c.new)
		cleaner.Note(c.new, c.new)
		if _, err := clean(t.Context(), cleaner); err != nil || (len(table.flows) == 0) != c.gone {
			t.Errorf("%s: left %v, %v; want it gone: %v", c.name, table.flows, err, c.gone)
		}
		table.flows = []Flow{flow(peer, "10.0.0.9:53")}
		if c.new == nil {
			continue
		}
		cleaner.NoteAll(slices.Values([]*state.Service{c.new})) // as after a restart
		if _, err := clean(t.Context(), cleaner); err != nil || (len(table.flows) == 0) != (c.new.Ports[0].Edge != nil) {
			t.Errorf("%s, then all is noted: left %v, %v", c.name, table.flows, err)
		}
	}
}

// TestNothingToDo: what cannot make a flow wrong must not cost a look at the table.
func TestNothingToDo(t *testing.T) {
	table := &fakeTable{}
	c := newCleaner(table)
	one, two := service("a", "10.96.0.1:53", "10.0.0.1:53"), service("a", "10.96.0.1:53", "10.0.0.1:53 10.0.0.2:53")
	c.Note(nil, nil)
	c.Note(one, one)
	c.Note(one, two)
	mustClean(t, c, 0)
	if table.looks() != 0 {
		t.Errorf("%d looks at the table, want none", table.looks())
	}
	c.Note(two, one)
	mustClean(t, c, 0)
	mustClean(t, c, 0)
	if table.looks() != 1 {
		t.Errorf("%d looks at the table for one change, want 1", table.looks())
	}
}

// TestManyEndpointsLeave: endpoints leave one by one, more of them than are remembered by name.
func TestManyEndpointsLeave(t *testing.T) {
	const vip = "10.96.0.1:53"
	for n := range 2 * maxLeft {
		table := &fakeTable{}
		c := newCleaner(table)
		var endpoints []string
		for i := range n + 2 {
			endpoints = append(endpoints, fmt.Sprintf("10.0.0.%d:53", i))
			table.flows = append(table.flows, flow(vip, endpoints[i]))
		}
		for i := range n + 1 {
			c.Note(udpService(vip, endpoints[i:]...), udpService(vip, endpoints[i+1:]...))
		}
		mustClean(t, c, n+1)
		if len(table.flows) != 1 || table.flows[0].Reply.Src != ap(endpoints[n+1]) {
			t.Errorf("left %v, want the flow to %s", table.flows, endpoints[n+1])
		}
		if byFilter := n+1 <= maxWalks; byFilter != (len(table.filters) == 0) || table.looks() > maxWalks {
			t.Errorf("%d listings and %d deletions by filter for %d endpoints", len(table.filters), len(table.removed), n+1)
		}
	}
}

// TestFewWalks: the kernel walks through its table a few times at most, or once for all.
func TestFewWalks(t *testing.T) {
	for _, c := range []struct{ gone, appear, listings, removals int }{
		{1, 0, 0, 1}, {maxWalks, 0, 0, maxWalks}, {maxWalks + 1, 0, 1, 0}, {0, 1, 1, 0}, {0, 2, 1, 0}, {3, 1, 1, 3}, {maxWalks, 1, 1, 0}, {1, 2, 1, 0},
	} {
		table := &fakeTable{}
		cleaner := newCleaner(table)
		for i := range c.gone {
			cleaner.Note(service(fmt.Sprint(i), fmt.Sprintf("10.96.0.%d:53", i), "10.0.0.1:53"), nil)
		}
		for i := range c.appear {
			cleaner.Note(nil, service(fmt.Sprint("new", i), fmt.Sprintf("10.96.1.%d:53", i), "10.0.0.1:53"))
		}
		mustClean(t, cleaner, 0)
		if len(table.filters) != c.listings || len(table.removed) != c.removals || len(cleaner.pending) > 0 {
			t.Errorf("%d services gone, %d new: %d listings and %d deletions by filter, want %d and %d; %d are left", c.gone, c.appear,
				len(table.filters), len(table.removed), c.listings, c.removals, len(cleaner.pending))
		}
	}
}

// TestMove: a frontend moves from a to b, then b loses it, in every order of the notes.
func TestMove(t *testing.T) {
	const vip = "10.96.0.1:53"
	a, b := service("a", vip, "10.0.0.1:53"), service("b", vip, "10.0.0.2:53")
	fromA, fromB := flow(vip, "10.0.0.1:53"), flow(vip, "10.0.0.2:53")
	for _, newFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("newFirst=%v", newFirst), func(t *testing.T) {
			table := &fakeTable{flows: []Flow{fromA, fromB}}
			c := newCleaner(table)
			move := func(from, to *state.Service) {
				if newFirst {
					c.Note(nil, to)
					c.Note(from, nil)
				} else {
					c.Note(from, nil)
					c.Note(nil, to)
				}
			}
			move(a, b)
			mustClean(t, c, 1)
			if !slices.Equal(table.flows, []Flow{fromB}) {
				t.Fatalf("after the move: %v, want %v", table.flows, fromB)
			}
			// There and back while nothing can be cleaned.
			table.flows = []Flow{fromA, fromB}
			move(b, a)
			move(a, b)
			mustClean(t, c, 1)
			if !slices.Equal(table.flows, []Flow{fromB}) {
				t.Fatalf("after there and back: %v, want %v", table.flows, fromB)
			}
			// A move, and then the new owner goes.
			move(b, a)
			c.Note(a, nil)
			mustClean(t, c, 1)
		})
	}
}

// TestFailureIsNotForgotten: what could not be cleaned is retried, with the endpoints of that time.
func TestFailureIsNotForgotten(t *testing.T) {
	const vip, other = "10.96.0.1:53", "10.96.0.2:53"
	one := service("a", vip, "10.0.0.1:53")
	broken := true
	table := &fakeTable{fail: func() bool { return broken }}
	table.flows = []Flow{flow(vip, "10.0.0.1:53"), flow(vip, "10.0.0.2:53"), flow(vip, "10.0.0.3:53"), flow(other, "10.0.0.9:53")}
	c := newCleaner(table)
	c.Note(one, service("a", vip, "10.0.0.2:53"))
	c.Note(service("b", other, "10.0.0.9:53"), nil)
	if n, err := clean(t.Context(), c); n != 0 || !errors.Is(err, errFake) {
		t.Fatalf("deleted %d flows, error %v; want the injected error", n, err)
	}
	broken = false
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := clean(ctx, c); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatalf("deleted %d flows, error %v; want context.Canceled", n, err)
	}
	// It has only gained an endpoint since, but its flows were not cleaned yet.
	c.Note(service("a", vip, "10.0.0.2:53"), service("a", vip, "10.0.0.2:53 10.0.0.3:53"))
	mustClean(t, c, 2)
	if want := []Flow{flow(vip, "10.0.0.2:53"), flow(vip, "10.0.0.3:53")}; !slices.Equal(table.flows, want) {
		t.Errorf("left %v, want %v", table.flows, want)
	}
	looks := table.looks()
	mustClean(t, c, 0)
	if table.looks() != looks {
		t.Errorf("%d looks at the table after all was cleaned", table.looks()-looks)
	}
}

// TestNoteAll: after a restart, all flows are looked at, with one listing.
func TestNoteAll(t *testing.T) {
	table := &fakeTable{}
	var services []*state.Service
	for i := range 1000 {
		vip, endpoint := fmt.Sprintf("10.96.%d.%d:53", i/256, i%256), fmt.Sprintf("10.0.%d.%d:53", i/256, i%256)
		services = append(services, service(fmt.Sprint(i), vip, endpoint))
		table.flows = append(table.flows, flow(vip, endpoint), flow(vip, "10.9.9.9:53"))
	}
	pending := flow("10.97.0.1:53", "10.0.0.1:53")
	table.flows = append(table.flows, pending)
	c := newCleaner(table)
	c.Note(nil, service("gone", "10.97.0.1:53", "10.0.0.1:53")) // pending, and then not among all
	c.NoteAll(slices.Values(services))
	mustClean(t, c, 1001)
	if len(table.filters) != 1 {
		t.Errorf("%d listings, want one for the family that has anything to look at", len(table.filters))
	}
	if len(table.flows) != 1000 || slices.Contains(table.flows, pending) {
		t.Errorf("%d flows left, want 1000", len(table.flows))
	}
}

func BenchmarkNote(b *testing.B) {
	one := service("a", "10.96.0.1:53 10.97.0.1:53 :30053", "10.0.0.1:53 10.0.0.2:53 10.0.0.3:53")
	two := service("a", "10.96.0.1:53 10.97.0.1:53 :30053", "10.0.0.1:53 10.0.0.2:53")
	c := NewCleaner(&fakeTable{}, CleanerOptions{})
	b.ReportAllocs()
	for b.Loop() {
		c.Note(one, two)
	}
}

// TestJudgedByTheLatestNote lets the endpoints change between the beginning of a look and the deletion of flows.
func TestJudgedByTheLatestNote(t *testing.T) {
	for _, old := range []bool{false, true} {
		table := &fakeTable{old: old}
		c := newCleaner(table)
		one, two := udpService("10.0.0.1:53", "10.1.0.1:53"), udpService("10.0.0.1:53", "10.1.0.2:53")
		none := udpService("10.0.0.1:53")
		c.Note(one, none)
		table.flows = []Flow{flow("10.0.0.1:53", "10.1.0.1:53"), flow("10.0.0.1:53", "10.1.0.2:53")}
		committed := false
		n, err := c.Clean(t.Context(), func(fn func() error) error {
			if !committed {
				c.Note(none, two)
				committed = true
			}
			return fn()
		})
		if n != 1 || err != nil || len(table.flows) != 1 || table.flows[0].Reply.Src != ap("10.1.0.2:53") {
			t.Errorf("cut %d flows (%v), which leaves %v: want the one to the endpoint that is gone", n, err, table.flows)
		}
		if n, err := clean(t.Context(), c); n != 0 || err != nil || len(c.pending) != 0 {
			t.Errorf("cut %d flows (%v) in the end, with %d frontends pending", n, err, len(c.pending))
		}
	}
}

// TestChangeDuringCleaning notes a change after the flows of its frontend have been looked at: it is looked at again.
func TestChangeDuringCleaning(t *testing.T) {
	for _, old := range []bool{false, true} {
		table := &fakeTable{old: old}
		c := newCleaner(table)
		one, two := udpService("10.0.0.1:53", "10.1.0.1:53"), udpService("10.0.0.1:53", "10.1.0.2:53")
		c.Note(one, two)
		judged := 0
		n, err := c.Clean(t.Context(), func(fn func() error) error {
			if judged++; judged == 2 { // to forget the frontend; the first is to find out what to delete
				c.Note(two, one)
				table.flows = []Flow{flow("10.0.0.1:53", "10.1.0.1:53"), flow("10.0.0.1:53", "10.1.0.2:53")}
			}
			return fn()
		})
		if n != 0 || err != nil || len(table.flows) != 2 {
			t.Fatalf("cut %d flows (%v), and %v are left", n, err, table.flows)
		}
		if n, err := clean(t.Context(), c); n != 1 || err != nil || table.flows[0].Reply.Src != ap("10.1.0.1:53") || len(c.pending) != 0 {
			t.Errorf("cut %d flows (%v) of a frontend that changed after it was looked at, want 1; left %v", n, err, table.flows)
		}
	}
}

// TestUncertain: nothing is judged, and nothing forgotten, while it is not certain what the dataplane shows.
func TestUncertain(t *testing.T) {
	for _, old := range []bool{false, true} {
		table := &fakeTable{old: old, flows: []Flow{flow("10.0.0.1:53", "10.1.0.1:53")}}
		c := newCleaner(table)
		c.Note(udpService("10.0.0.1:53", "10.1.0.1:53"), nil)
		if n, err := c.Clean(t.Context(), func(func() error) error { return errFake }); n != 0 || !errors.Is(err, errFake) {
			t.Errorf("cut %d flows, error %v; want none, and the error of the caller", n, err)
		}
		if len(table.flows) != 1 || len(c.pending) != 1 {
			t.Errorf("%d flows are left and %d frontends pending, want one of each", len(table.flows), len(c.pending))
		}
		mustClean(t, c, 1)
	}
}

// TestRemoving: who gives a frontend an endpoint again can wait while flows to it are deleted by a filter, and nobody else need.
func TestRemoving(t *testing.T) {
	one, other := service("a", "10.0.0.1:53 :30000", "10.1.0.1:53"), service("b", "10.0.0.2:53", "10.1.0.2:53")
	tcp := service("a", "10.0.0.1:53 :30000", "10.1.0.1:53")
	tcp.Ports[0].Protocol = state.TCP
	var c *Cleaner
	var waits []<-chan struct{}
	exact, exactWaits := service("c", "192.168.0.1:30000", "10.1.0.3:53"), 0 // at an address that serves the node port
	removing := func() {
		if c.Removing(nil, exact) != nil {
			exactWaits++
		}
		done := c.Removing(nil, one)
		if done == nil || c.Removing(nil, other) != nil || c.Removing(nil, tcp) != nil || c.Removing(nil, nil) != nil {
			t.Fatal("flows of one are being deleted, but that is not reported, or for others too")
		}
		select {
		case <-done:
			t.Error("the deletion has ended before its end")
		default:
		}
		waits = append(waits, done)
	}
	c = newCleaner(&hookedTable{Table: &fakeTable{}, deleting: removing})
	c.Note(one, nil)
	mustClean(t, c, 0)
	if len(waits) != 2 || c.Removing(nil, one) != nil {
		t.Errorf("%d deletions, want those for an address and a node port; after them one must wait: %v", len(waits), c.Removing(nil, one) != nil)
	}
	if exactWaits != 1 {
		t.Errorf("a frontend at an address of the node waits for %d deletions, want one", exactWaits)
	}
	for _, done := range waits {
		<-done
	}
}

// hookedTable calls deleting in each deletion by filter.
type hookedTable struct {
	Table
	deleting func()
}

func (t *hookedTable) DeleteAll(f Filter) (int, error) {
	t.deleting()
	return t.Table.DeleteAll(f)
}

// udpService has one UDP frontend with endpoints.
func udpService(addr string, endpoints ...string) *state.Service {
	r := state.Route{Verdict: state.Reject}
	for _, e := range endpoints {
		r.Verdict = state.Forward
		r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: ap(e)})
	}
	return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "udp"}, Ports: []state.Port{{
		Protocol: state.UDP, Family: state.IPv4, Internal: state.Traffic{Inside: r, Outside: r},
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: ap(addr).Addr(), Port: ap(addr).Port()}},
	}}}
}

// TestOneListingPerFamily: every listing keeps a CPU of the node from handling packets. Listings are used where the
// kernel cannot delete by a filter.
func TestOneListingPerFamily(t *testing.T) {
	v4, v6, nodePort := service("v4", "10.96.0.1:53", "10.0.0.1:53"), service("v6", "[fd96::1]:53", "[fd00::2]:53"), service("np", ":30000", "10.0.0.1:53")
	both := service("both", "10.96.0.2:53 10.96.0.2:54 10.96.0.3:53", "10.0.0.1:53")
	one := func(f state.Family, dst string, port uint16) Filter {
		filter := Filter{Family: f, Protocol: state.UDP, DstPort: port}
		if dst != "" {
			filter.Dst = netip.MustParseAddr(dst)
		}
		return filter
	}
	allV4, oneV6 := Filter{Family: state.IPv4, Protocol: state.UDP}, one(state.IPv6, "fd96::1", 53)
	for name, c := range map[string]struct {
		gone []*state.Service
		want []Filter
	}{
		"one frontend":                      {[]*state.Service{v4}, []Filter{one(state.IPv4, "10.96.0.1", 53)}},
		"one NodePort":                      {[]*state.Service{nodePort}, []Filter{one(state.IPv4, "", 30000)}},
		"one in each family":                {[]*state.Service{v4, v6}, []Filter{one(state.IPv4, "10.96.0.1", 53), oneV6}},
		"two, and one of the other family":  {[]*state.Service{v4, nodePort, v6}, []Filter{allV4, oneV6}},
		"three of a service":                {[]*state.Service{both}, []Filter{allV4}},
		"five, and one of the other family": {[]*state.Service{v4, both, nodePort, v6}, []Filter{allV4, oneV6}},
	} {
		table := &fakeTable{old: true}
		cleaner := newCleaner(table)
		for _, s := range c.gone {
			cleaner.Note(s, nil)
		}
		mustClean(t, cleaner, 0)
		slices.SortFunc(table.filters, func(a, b Filter) int { return cmp.Compare(a.Family, b.Family) })
		if !slices.Equal(table.filters, c.want) {
			t.Errorf("%s: listed %v, want %v", name, table.filters, c.want)
		}
		if len(cleaner.pending) > 0 {
			t.Errorf("%s: %d frontends are left", name, len(cleaner.pending))
		}
	}
}

// looseTable lists everything and ignores the filter.
type looseTable struct{ *fakeTable }

func (t looseTable) Flows(_ Filter, each func([]Flow) error) error {
	return t.fakeTable.Flows(Filter{}, each)
}

// TestConnectionsWithoutTranslation is about entries of connections to frontends that were made while nothing was translated.
func TestConnectionsWithoutTranslation(t *testing.T) {
	of := func(s *state.Service, p state.Protocol) *state.Service {
		s.Ports[0].Protocol = p
		return s
	}
	services := []*state.Service{
		of(service("tcp", "10.96.0.1:80 :30000", "10.0.0.1:80"), state.TCP),
		of(service("tcp6", "[fd96::1]:80", "[fd00::2]:80"), state.TCP),
		of(service("sctp", "10.96.0.1:81", "10.0.0.1:80"), state.SCTP),
		of(service("none", "10.96.0.2:80", ""), state.TCP),
		service("udp", "10.96.0.1:53", "10.0.0.1:53"),
	}
	gone := of(service("gone", "10.96.0.3:80", ""), state.TCP)
	for _, c := range []struct {
		name        string
		protocol    state.Protocol
		dst, from   string
		established bool
		gone        bool
	}{
		{"to an address", state.TCP, "10.96.0.1:80", "10.96.0.1:80", false, true},
		{"to an address of IPv6", state.TCP, "[fd96::1]:80", "[fd96::1]:80", false, true},
		{"over SCTP", state.SCTP, "10.96.0.1:81", "10.96.0.1:81", false, true},
		{"to a node port", state.TCP, "192.168.0.1:30000", "192.168.0.1:30000", false, true},
		{"to a service without endpoints", state.TCP, "10.96.0.2:80", "10.96.0.2:80", false, true},
		{"to somebody else at the address", state.TCP, "10.96.0.1:80", "10.96.0.1:80", true, false},
		{"to a process on the node port", state.TCP, "192.168.0.1:30000", "192.168.0.1:30000", true, false},
		{"to an endpoint, as yet without an answer", state.TCP, "10.96.0.1:80", "10.0.0.1:80", false, false},
		{"to an endpoint that is gone", state.TCP, "10.96.0.1:80", "10.0.0.9:80", false, false},
		{"to an endpoint", state.TCP, "10.96.0.1:80", "10.0.0.1:80", true, false},
		{"to another port", state.TCP, "10.96.0.1:81", "10.96.0.1:81", false, false},
		{"over another protocol", state.SCTP, "10.96.0.1:80", "10.96.0.1:80", false, false},
		{"to the node port's number on another address", state.TCP, "192.168.0.2:30000", "192.168.0.2:30000", false, false},
		{"to a service that is gone", state.TCP, "10.96.0.3:80", "10.96.0.3:80", false, false},
		{"over UDP", state.UDP, "10.96.0.1:53", "10.96.0.1:53", false, true},
		{"over UDP to an endpoint", state.UDP, "10.96.0.1:53", "10.0.0.1:53", false, false},
	} {
		entry := flow(c.dst, c.from)
		entry.Protocol, entry.Unconnected = c.protocol, !c.established && c.protocol != state.UDP
		for name, gap := range map[string]bool{"after a gap": true, "after a restart": false} {
			table := &fakeTable{flows: []Flow{entry}}
			cleaner := newCleaner(looseTable{table})
			if gap {
				cleaner.NoteGap(slices.Values([]*state.Service{gone})) // and before it could be looked
				cleaner.NoteGap(slices.Values(services))
			} else {
				cleaner.NoteAll(slices.Values(services))
			}
			if _, err := clean(t.Context(), cleaner); err != nil {
				t.Fatal(err)
			}
			want := c.gone && (gap || c.protocol == state.UDP)
			if gone := len(table.flows) == 0; gone != want {
				t.Errorf("%s, %s: the entry is gone: %v, want %v", c.name, name, gone, want)
			}
			if len(cleaner.pending) > 0 {
				t.Errorf("%s, %s: %d frontends are left", c.name, name, len(cleaner.pending))
			}
		}
	}
	table := &fakeTable{}
	cleaner := newCleaner(table)
	cleaner.NoteGap(slices.Values(services))
	mustClean(t, cleaner, 0)
	slices.SortFunc(table.filters, func(a, b Filter) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), -cmp.Compare(a.Protocol, b.Protocol))
	})
	if want := []Filter{
		{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.1"), DstPort: 53},
		{Family: state.IPv4, Unconnected: true},
		{Family: state.IPv6, Unconnected: true, Protocol: state.TCP, Dst: netip.MustParseAddr("fd96::1"), DstPort: 80},
	}; !slices.Equal(table.filters, want) {
		t.Errorf("listed %v, want %v", table.filters, want)
	}
}

// TestParts: UDP frontends and others are looked at in turn, and neither keeps the other from it.
func TestParts(t *testing.T) {
	udp, tcp := service("udp", "10.96.0.1:53", "10.0.0.1:53"), service("tcp", "10.96.0.1:80", "10.0.0.1:80")
	tcp.Ports[0].Protocol = state.TCP
	table := &fakeTable{old: true}
	c := newCleaner(table)
	part := func(wantMore bool, want ...Filter) {
		t.Helper()
		table.filters = nil
		_, more, err := c.CleanPart(t.Context(), nil)
		if more != wantMore || err != nil || !slices.Equal(table.filters, want) {
			t.Errorf("more %v, %v, looked at %+v; want %v and %+v", more, err, table.filters, wantMore, want)
		}
	}
	ofUDP := Filter{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.1"), DstPort: 53}
	ofTCP := Filter{Family: state.IPv4, Unconnected: true, Protocol: state.TCP, Dst: netip.MustParseAddr("10.96.0.1"), DstPort: 80}
	c.NoteGap(slices.Values([]*state.Service{udp, tcp}))
	part(true, ofUDP)
	c.Note(udp, nil) // during the listing
	part(true, ofTCP)
	part(false, ofUDP)
	part(false)
	c.NoteGap(slices.Values([]*state.Service{tcp}))
	part(false, ofTCP)
	c.NoteGap(slices.Values([]*state.Service{udp, tcp}))
	table.fail = func() bool { return true }
	table.flows = []Flow{flow("10.96.0.1:53", "10.0.0.9:53")}
	if _, more, err := c.CleanPart(t.Context(), nil); more || err == nil {
		t.Errorf("after a failure, more is %v, %v: the caller waits before it tries again", more, err)
	}
}

// slowTable takes its time.
type slowTable struct{ *fakeTable }

func (t slowTable) Flows(f Filter, each func([]Flow) error) error {
	time.Sleep(10 * time.Millisecond)
	return t.fakeTable.Flows(f, each)
}

func (t slowTable) DeleteAll(f Filter) (int, error) {
	time.Sleep(3 * time.Millisecond)
	return t.fakeTable.DeleteAll(f)
}

func (t slowTable) Delete(flows ...Flow) (int, error) {
	time.Sleep(time.Duration(len(flows)) * time.Millisecond)
	return t.fakeTable.Delete(flows...)
}

// TestOnClean: each family is reported by itself, and nothing that was not looked at.
func TestOnClean(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type round struct {
			took    time.Duration
			deleted int
		}
		rounds := map[state.Family]round{}
		table := &fakeTable{flows: []Flow{
			flow("10.0.0.1:53", "10.1.0.1:53"), flow("[fd00::1]:53", "[fd00:1::1]:53"), flow("[fd00::1]:53", "[fd00:1::2]:53"),
		}}
		table.flows[2].Orig.Src = ap("[fd00:244::9]:4001")
		c := NewCleaner(slowTable{table}, CleanerOptions{OnClean: func(f state.Family, took time.Duration, deleted int) { rounds[f] = round{took, deleted} }})
		gone := func(family state.Family, addr, endpoint string) {
			s := func(endpoints ...state.Endpoint) *state.Service {
				routes := state.Route{Endpoints: endpoints}
				return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: addr}, Ports: []state.Port{{
					Family: family, Protocol: state.UDP, Frontends: []state.Frontend{{Addr: netip.MustParseAddr(addr), Port: 53}},
					Internal: state.Traffic{Inside: routes, Outside: routes},
				}}}
			}
			c.Note(s(state.Endpoint{Addr: ap(endpoint)}), s())
		}
		look := func() map[state.Family]round {
			clear(rounds)
			if _, err := c.Clean(t.Context(), func(fn func() error) error {
				time.Sleep(time.Hour) // for a commit
				return fn()
			}); err != nil {
				t.Fatal(err)
			}
			return rounds
		}
		gone(state.IPv6, "fd00::1", "[fd00:1::1]:53")
		if got, want := look(), (map[state.Family]round{state.IPv6: {12 * time.Millisecond, 2}}); !maps.Equal(got, want) {
			t.Errorf("reported %v, want %v", got, want)
		}
		gone(state.IPv6, "fd00::1", "[fd00:1::1]:53")
		gone(state.IPv4, "10.0.0.1", "10.1.0.1:53")
		want := map[state.Family]round{state.IPv6: {10 * time.Millisecond, 0}, state.IPv4: {3 * time.Millisecond, 1}}
		if got := look(); !maps.Equal(got, want) {
			t.Errorf("reported %v, want %v", got, want)
		}
		if got := look(); len(got) > 0 {
			t.Errorf("reported %v although there was nothing to look at", got)
		}
	})
}

// TestFrontendOfAnotherDataplane: flows to a frontend that has gone to another dataplane are that one's, whichever way they would be deleted.
func TestFrontendOfAnotherDataplane(t *testing.T) {
	for _, tt := range []struct{ moved, gone, from, to string }{
		{"10.96.0.10:53", "10.96.0.11:53", "10.244.1.1:53", "10.244.1.2:53"},             // by filters
		{"[fd00:96::10]:53", "[fd00:96::11]:53", "[fd00:244::1]:53", "[fd00:244::2]:53"}, // by a listing
	} {
		key := state.FrontendKey{Family: state.FamilyOf(ap(tt.moved).Addr()), Protocol: state.UDP, Addr: ap(tt.moved).Addr(), Port: 53}
		table := &fakeTable{flows: []Flow{flow(tt.moved, tt.from), flow(tt.gone, tt.from)}}
		c := NewCleaner(table, CleanerOptions{Elsewhere: func(f state.FrontendKey) bool { return f == key }})
		c.Note(service("dns", tt.moved+" "+tt.gone, tt.from), service("dns", "", ""))
		if _, err := c.Clean(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if want := []Flow{flow(tt.moved, tt.from)}; !slices.Equal(table.flows, want) {
			t.Errorf("flows %v are left, want %v", table.flows, want)
		}
		// A frontend that comes back is judged by its endpoints, whatever Elsewhere reports.
		c.Note(nil, service("dns", tt.moved, tt.to))
		if _, err := c.Clean(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if len(table.flows) > 0 {
			t.Errorf("flows %v are left of a frontend with other endpoints", table.flows)
		}
	}
}

// TestScheduled: what IPVS has scheduled is left to it as long as it has a virtual server there, whichever way it would be deleted.
func TestScheduled(t *testing.T) {
	for _, tt := range []struct{ frontend, from, to string }{
		{"10.96.0.10:53", "10.244.1.1:53", "10.244.1.2:53"},          // by filters, if it could
		{"[fd00:96::10]:53", "[fd00:244::1]:53", "[fd00:244::2]:53"}, // by a listing
	} {
		scheduled, translated := flow(tt.frontend, tt.from), flow(tt.frontend, tt.from)
		scheduled.Scheduled = true
		translated.Orig.Src = netip.AddrPortFrom(translated.Orig.Src.Addr(), 9)
		for _, has := range []bool{true, false} {
			table := &fakeTable{flows: []Flow{scheduled, translated}}
			c := NewCleaner(table, CleanerOptions{Scheduled: func(state.FrontendKey) bool { return has }})
			c.Note(service("dns", tt.frontend, tt.from), service("dns", tt.frontend, tt.to))
			if _, err := c.Clean(t.Context(), nil); err != nil {
				t.Fatal(err)
			}
			var want []Flow
			if has {
				want = []Flow{scheduled}
			}
			if !slices.Equal(table.flows, want) {
				t.Errorf("with a virtual server %v: flows %v are left, want %v", has, table.flows, want)
			}
		}
	}
}
