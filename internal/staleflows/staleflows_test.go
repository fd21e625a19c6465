package staleflows

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

	"github.com/switchyard-net/switchyard/internal/conntrack"
	"github.com/switchyard-net/switchyard/state"
)

// fakeTable is a Table in memory.
type fakeTable struct {
	flows   []conntrack.Flow
	filters []conntrack.Filter // of the listings so far
	// fail, if set, decides whether a call fails.
	fail func() bool
}

var errFake = errors.New("injected")

func (t *fakeTable) Flows(f conntrack.Filter) ([]conntrack.Flow, error) {
	t.filters = append(t.filters, f)
	if t.fail != nil && t.fail() {
		return nil, errFake
	}
	var found []conntrack.Flow
	for _, flow := range t.flows {
		if f.Match(flow) {
			found = append(found, flow)
		}
	}
	return found, nil
}

func (t *fakeTable) Delete(flow conntrack.Flow) error {
	if t.fail != nil && t.fail() {
		return errFake
	}
	t.flows = slices.DeleteFunc(t.flows, func(f conntrack.Flow) bool { return f == flow })
	return nil
}

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// flow is a UDP flow to dst that from answers.
func flow(dst, from string) conntrack.Flow {
	client := "10.244.9.9:4000"
	if ap(dst).Addr().Is6() {
		client = "[fd00:244::9]:4000"
	}
	return conntrack.Flow{
		Family:   state.FamilyOf(ap(dst).Addr()),
		Protocol: state.UDP,
		Orig:     conntrack.Tuple{Src: ap(client), Dst: ap(dst)},
		Reply:    conntrack.Tuple{Src: ap(from), Dst: ap(client)},
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

func nodePortAddr(addr netip.Addr) bool {
	return addr == netip.MustParseAddr("192.168.0.1") || addr == netip.MustParseAddr("fd00::1")
}

func mustClean(t *testing.T, c *Cleaner, want int) {
	t.Helper()
	if got, err := c.Clean(t.Context()); got != want || err != nil {
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
		flow     conntrack.Flow
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
		table := &fakeTable{flows: []conntrack.Flow{c.flow}}
		cleaner := New(table, Options{NodePortAddr: nodePortAddr})
		cleaner.Note(c.old, c.new)
		n, err := cleaner.Clean(t.Context())
		if gone := len(table.flows) == 0; gone != c.gone || err != nil || (n == 1) != gone {
			t.Errorf("%s: the flow is gone: %v, want %v; deleted %d, error %v", c.name, gone, c.gone, n, err)
		}
	}
}

// TestNothingToDo: what cannot make a flow wrong must not cost a look at the table.
func TestNothingToDo(t *testing.T) {
	table := &fakeTable{}
	c := New(table, Options{})
	one, two := service("a", "10.96.0.1:53", "10.0.0.1:53"), service("a", "10.96.0.1:53", "10.0.0.1:53 10.0.0.2:53")
	c.Note(nil, nil)
	c.Note(one, one)
	c.Note(one, two)
	mustClean(t, c, 0)
	if len(table.filters) != 0 {
		t.Errorf("%d listings, want none", len(table.filters))
	}
	c.Note(two, one)
	mustClean(t, c, 0)
	mustClean(t, c, 0)
	if len(table.filters) != 1 {
		t.Errorf("%d listings for one change, want 1", len(table.filters))
	}
}

// TestMove: a frontend moves from a to b, then b loses it, in every order of the notes.
func TestMove(t *testing.T) {
	const vip = "10.96.0.1:53"
	a, b := service("a", vip, "10.0.0.1:53"), service("b", vip, "10.0.0.2:53")
	fromA, fromB := flow(vip, "10.0.0.1:53"), flow(vip, "10.0.0.2:53")
	for _, newFirst := range []bool{false, true} {
		t.Run(fmt.Sprintf("newFirst=%v", newFirst), func(t *testing.T) {
			table := &fakeTable{flows: []conntrack.Flow{fromA, fromB}}
			c := New(table, Options{})
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
			if !slices.Equal(table.flows, []conntrack.Flow{fromB}) {
				t.Fatalf("after the move: %v, want %v", table.flows, fromB)
			}
			// There and back while nothing can be cleaned.
			table.flows = []conntrack.Flow{fromA, fromB}
			move(b, a)
			move(a, b)
			mustClean(t, c, 1)
			if !slices.Equal(table.flows, []conntrack.Flow{fromB}) {
				t.Fatalf("after there and back: %v, want %v", table.flows, fromB)
			}
			// A move, and then the new owner goes.
			move(b, a)
			c.Note(a, nil)
			mustClean(t, c, 1)
		})
	}
}

// TestFailureIsNotForgotten: what could not be cleaned is tried again, with the endpoints of that time.
func TestFailureIsNotForgotten(t *testing.T) {
	const vip, other = "10.96.0.1:53", "10.96.0.2:53"
	one := service("a", vip, "10.0.0.1:53")
	broken := true
	table := &fakeTable{fail: func() bool { return broken }}
	table.flows = []conntrack.Flow{flow(vip, "10.0.0.1:53"), flow(vip, "10.0.0.2:53"), flow(vip, "10.0.0.3:53"), flow(other, "10.0.0.9:53")}
	c := New(table, Options{})
	c.Note(one, service("a", vip, "10.0.0.2:53"))
	c.Note(service("b", other, "10.0.0.9:53"), nil)
	if n, err := c.Clean(t.Context()); n != 0 || !errors.Is(err, errFake) {
		t.Fatalf("deleted %d flows, error %v; want the injected error", n, err)
	}
	broken = false
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if n, err := c.Clean(ctx); n != 0 || !errors.Is(err, context.Canceled) {
		t.Fatalf("deleted %d flows, error %v; want context.Canceled", n, err)
	}
	// It has only gained an endpoint since, but its flows were not cleaned yet.
	c.Note(service("a", vip, "10.0.0.2:53"), service("a", vip, "10.0.0.2:53 10.0.0.3:53"))
	mustClean(t, c, 2)
	if want := []conntrack.Flow{flow(vip, "10.0.0.2:53"), flow(vip, "10.0.0.3:53")}; !slices.Equal(table.flows, want) {
		t.Errorf("left %v, want %v", table.flows, want)
	}
	table.filters = nil
	mustClean(t, c, 0)
	if len(table.filters) != 0 {
		t.Errorf("%d listings after all was cleaned", len(table.filters))
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
	c := New(table, Options{})
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
	c := New(&fakeTable{}, Options{})
	b.ReportAllocs()
	for b.Loop() {
		c.Note(one, two)
	}
}

// Clean looks and cuts, with no commit in between.
func (c *Cleaner) Clean(ctx context.Context) (deleted int, err error) {
	found, err := c.Look(ctx)
	deleted, cutErr := c.Cut(ctx, found)
	return deleted, errors.Join(err, cutErr)
}

// TestCutJudgesByTheLatestNote lets the endpoints change between the listing and the deletion of flows.
func TestCutJudgesByTheLatestNote(t *testing.T) {
	table := &fakeTable{}
	c := New(table, Options{})
	one, two := udpService("10.0.0.1:53", "10.1.0.1:53"), udpService("10.0.0.1:53", "10.1.0.2:53")
	none := udpService("10.0.0.1:53")
	c.Note(one, none)
	table.flows = []conntrack.Flow{flow("10.0.0.1:53", "10.1.0.1:53"), flow("10.0.0.1:53", "10.1.0.2:53")}
	found, err := c.Look(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	c.Note(none, two)
	if n, err := c.Cut(t.Context(), found); n != 1 || err != nil || len(table.flows) != 1 || table.flows[0].Reply.Src != ap("10.1.0.2:53") {
		t.Errorf("cut %d flows (%v), which leaves %v: want the one to the endpoint that is gone", n, err, table.flows)
	}
	// What began after the listing has not been looked at.
	table.flows = append(table.flows, flow("10.0.0.1:53", "10.1.0.1:53"))
	if n, err := c.Clean(t.Context()); n != 1 || err != nil {
		t.Errorf("cut %d flows (%v) of a frontend that changed after it was looked at, want 1", n, err)
	}
	if n, err := c.Clean(t.Context()); n != 0 || err != nil || len(c.pending) != 0 {
		t.Errorf("cut %d flows (%v) in the end, with %d frontends pending", n, err, len(c.pending))
	}
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

// TestOneListingPerFamily: every listing keeps a CPU of the node from handling packets, whatever is asked for.
func TestOneListingPerFamily(t *testing.T) {
	v4, v6, nodePort := service("v4", "10.96.0.1:53", "10.0.0.1:53"), service("v6", "[fd96::1]:53", "[fd00::2]:53"), service("np", ":30000", "10.0.0.1:53")
	both := service("both", "10.96.0.2:53 10.96.0.2:54 10.96.0.3:53", "10.0.0.1:53")
	one := func(f state.Family, dst string, port uint16) conntrack.Filter {
		filter := conntrack.Filter{Family: f, Protocol: state.UDP, DstPort: port}
		if dst != "" {
			filter.Dst = netip.MustParseAddr(dst)
		}
		return filter
	}
	allV4, oneV6 := conntrack.Filter{Family: state.IPv4, Protocol: state.UDP}, one(state.IPv6, "fd96::1", 53)
	for name, c := range map[string]struct {
		gone []*state.Service
		want []conntrack.Filter
	}{
		"one frontend":                      {[]*state.Service{v4}, []conntrack.Filter{one(state.IPv4, "10.96.0.1", 53)}},
		"one NodePort":                      {[]*state.Service{nodePort}, []conntrack.Filter{one(state.IPv4, "", 30000)}},
		"one in each family":                {[]*state.Service{v4, v6}, []conntrack.Filter{one(state.IPv4, "10.96.0.1", 53), oneV6}},
		"two, and one of the other family":  {[]*state.Service{v4, nodePort, v6}, []conntrack.Filter{allV4, oneV6}},
		"three of a service":                {[]*state.Service{both}, []conntrack.Filter{allV4}},
		"five, and one of the other family": {[]*state.Service{v4, both, nodePort, v6}, []conntrack.Filter{allV4, oneV6}},
	} {
		table := &fakeTable{}
		cleaner := New(table, Options{NodePortAddr: nodePortAddr})
		for _, s := range c.gone {
			cleaner.Note(s, nil)
		}
		mustClean(t, cleaner, 0)
		slices.SortFunc(table.filters, func(a, b conntrack.Filter) int { return cmp.Compare(a.Family, b.Family) })
		if !slices.Equal(table.filters, c.want) {
			t.Errorf("%s: listed %v, want %v", name, table.filters, c.want)
		}
		if len(cleaner.pending) > 0 {
			t.Errorf("%s: %d frontends are left", name, len(cleaner.pending))
		}
	}
}

// looseTable lists everything, whatever it is asked for.
type looseTable struct{ *fakeTable }

func (t looseTable) Flows(conntrack.Filter) ([]conntrack.Flow, error) {
	return t.fakeTable.Flows(conntrack.Filter{})
}

// TestGap is about entries of connections to frontends that were made while nothing was translated.
func TestGap(t *testing.T) {
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
			table := &fakeTable{flows: []conntrack.Flow{entry}}
			cleaner := New(looseTable{table}, Options{NodePortAddr: nodePortAddr})
			if gap {
				cleaner.NoteGap(slices.Values([]*state.Service{gone})) // and before it could be looked
				cleaner.NoteGap(slices.Values(services))
			} else {
				cleaner.NoteAll(slices.Values(services))
			}
			if _, err := cleaner.Clean(t.Context()); err != nil {
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
	cleaner := New(table, Options{})
	cleaner.NoteGap(slices.Values(services))
	mustClean(t, cleaner, 0)
	slices.SortFunc(table.filters, func(a, b conntrack.Filter) int {
		return cmp.Or(cmp.Compare(a.Family, b.Family), -cmp.Compare(a.Protocol, b.Protocol))
	})
	if want := []conntrack.Filter{
		{Family: state.IPv4, Protocol: state.UDP, Dst: netip.MustParseAddr("10.96.0.1"), DstPort: 53},
		{Family: state.IPv4, Unconnected: true},
		{Family: state.IPv6, Unconnected: true, Protocol: state.TCP, Dst: netip.MustParseAddr("fd96::1"), DstPort: 80},
	}; !slices.Equal(table.filters, want) {
		t.Errorf("listed %v, want %v", table.filters, want)
	}
}

// slowTable takes its time.
type slowTable struct{ *fakeTable }

func (t slowTable) Flows(f conntrack.Filter) ([]conntrack.Flow, error) {
	time.Sleep(10 * time.Millisecond)
	return t.fakeTable.Flows(f)
}

func (t slowTable) Delete(f conntrack.Flow) error {
	time.Sleep(time.Millisecond)
	return t.fakeTable.Delete(f)
}

// TestOnCut: who counts is told of each family by itself, and of nothing that was not looked at.
func TestOnCut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type round struct {
			took    time.Duration
			deleted int
		}
		rounds := map[state.Family]round{}
		table := &fakeTable{flows: []conntrack.Flow{
			flow("10.0.0.1:53", "10.1.0.1:53"), flow("[fd00::1]:53", "[fd00:1::1]:53"), flow("[fd00::1]:53", "[fd00:1::2]:53"),
		}}
		table.flows[2].Orig.Src = ap("[fd00:244::9]:4001")
		c := New(slowTable{table}, Options{OnCut: func(f state.Family, took time.Duration, deleted int) { rounds[f] = round{took, deleted} }})
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
			found, err := c.Look(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Hour) // between the two nothing is done
			if _, err := c.Cut(t.Context(), found); err != nil {
				t.Fatal(err)
			}
			return rounds
		}
		gone(state.IPv6, "fd00::1", "[fd00:1::1]:53")
		if got, want := look(), (map[state.Family]round{state.IPv6: {12 * time.Millisecond, 2}}); !maps.Equal(got, want) {
			t.Errorf("told of %v, want %v", got, want)
		}
		gone(state.IPv6, "fd00::1", "[fd00:1::1]:53")
		gone(state.IPv4, "10.0.0.1", "10.1.0.1:53")
		want := map[state.Family]round{state.IPv6: {10 * time.Millisecond, 0}, state.IPv4: {11 * time.Millisecond, 1}}
		if got := look(); !maps.Equal(got, want) {
			t.Errorf("told of %v, want %v", got, want)
		}
		if got := look(); len(got) > 0 {
			t.Errorf("told of %v although there was nothing to look at", got)
		}
	})
}
