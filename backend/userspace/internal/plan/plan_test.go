package plan_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/internal/apportion"
	"github.com/switchyard-net/switchyard/state"
)

var (
	inside    = netip.MustParseAddrPort("169.254.0.1:1")
	outside   = netip.MustParseAddrPort("169.254.0.1:2")
	listeners = plan.Listeners{
		{Family: state.IPv4, Protocol: state.TCP}: {inside, outside},
		{Family: state.IPv4, Protocol: state.UDP}: {inside, outside},
	}
)

func endpoints(texts ...string) (list []state.Endpoint) {
	for _, text := range texts {
		at := netip.MustParseAddrPort(text)
		list = append(list, state.Endpoint{Addr: at, Local: at == inside || at == outside})
	}
	return list
}

func forward(texts ...string) state.Route {
	return state.Route{Verdict: state.Forward, Endpoints: endpoints(texts...)}
}

const (
	a, b, c = "10.0.0.1:80", "10.0.0.2:80", "10.0.0.3:80"
	in, out = "169.254.0.1:1", "169.254.0.1:2"
)

// port returns a port with local endpoints only for clients outside, and with none at a load balancer's address.
func port(p state.Protocol, f state.Family) state.Port {
	return state.Port{
		Name: "web", Protocol: p, Family: f, Affinity: time.Hour,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80},
			{Kind: state.NodePort, Port: 30080},
		},
		Internal:  state.Traffic{Inside: forward(a, b), Outside: forward(a, b), Masquerade: state.MasqueradeUnlessPod},
		External:  state.Traffic{Inside: forward(a, b), Outside: state.Route{Verdict: state.Drop}, Masquerade: state.MasqueradeNode},
		Lingering: endpoints(c),
	}
}

var equate = []cmp.Option{cmpopts.EquateEmpty(), cmp.Comparer(func(x, y netip.AddrPort) bool { return x == y }), cmp.Comparer(func(x, y netip.Addr) bool { return x == y })}

func TestBase(t *testing.T) {
	s := &state.Service{Name: state.ServiceName{Namespace: "default", Name: "web"}, Ports: []state.Port{
		port(state.TCP, state.IPv4), port(state.UDP, state.IPv4), port(state.SCTP, state.IPv4), port(state.TCP, state.IPv6),
	}}
	before := *s
	before.Ports = []state.Port{port(state.TCP, state.IPv4), port(state.UDP, state.IPv4), port(state.SCTP, state.IPv4), port(state.TCP, state.IPv6)}
	got := listeners.Base(s)
	if !s.Equal(&before) {
		t.Error("the record is modified")
	}

	want := *s
	want.Ports = slices.Clone(before.Ports)
	want.Ports[0].Lingering, want.Ports[1].Lingering = endpoints(c, in, out), endpoints(c, in, out)
	if diff := cmp.Diff(&want, got, equate...); diff != "" {
		t.Error(diff)
	}

	// Flows end with the last endpoint for clients of their class.
	refuses := port(state.UDP, state.IPv4)
	refuses.Lingering, refuses.Internal.Outside = nil, state.Route{Verdict: state.Reject}
	got = listeners.Base(&state.Service{Ports: []state.Port{refuses}})
	if diff := cmp.Diff(endpoints(in), got.Ports[0].Lingering, equate...); diff != "" {
		t.Error(diff)
	}

	left := &state.Service{Ports: []state.Port{port(state.SCTP, state.IPv4)}}
	if listeners.Base(left) != left {
		t.Error("a record that is none of the relay's business is copied")
	}
}

func TestTable(t *testing.T) {
	kind := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	cluster, node := netip.MustParseAddrPort("10.96.0.1:80"), netip.MustParseAddrPort("192.0.2.1:30080")
	service := func(name string, change func(*state.Port)) *state.Service {
		p := port(state.TCP, state.IPv4)
		if change != nil {
			change(&p)
		}
		return &state.Service{Name: state.ServiceName{Namespace: "default", Name: name}, Ports: []state.Port{p}}
	}
	var table plan.Table
	owner := func(dst netip.AddrPort) string {
		p, _, _ := table.Lookup(kind, dst)
		if p == nil {
			return ""
		}
		return p.ID.Service.Name
	}
	expect := func(step, ofCluster, ofNode string) {
		t.Helper()
		if owner(cluster) != ofCluster || owner(node) != ofNode {
			t.Errorf("%s: the frontends belong to %q and %q, want %q and %q", step, owner(cluster), owner(node), ofCluster, ofNode)
		}
	}
	expect("empty", "", "")
	one := service("one", nil)
	table.Set(one)
	expect("set", "one", "one")
	p, frontend, _ := table.Lookup(kind, cluster)
	if r, n := p.Route(frontend, plan.Outside); n != 1 || r.Verdict != state.Forward {
		t.Errorf("the cluster IP has %v outside", r.Verdict)
	}
	p, frontend, key := table.Lookup(kind, node)
	if r, n := p.Route(frontend, plan.Outside); n != 3 || r.Verdict != state.Drop || key.Addr.IsValid() {
		t.Errorf("the node port %v has %v outside", key, r.Verdict)
	}
	for _, text := range []string{a, b, c} {
		if !p.Serves(netip.MustParseAddrPort(text)) {
			t.Errorf("%s does not serve", text)
		}
	}
	if p.Serves(inside) {
		t.Error("somebody else serves")
	}

	two := service("two", func(p *state.Port) { p.Frontends = p.Frontends[1:] })
	less := service("one", func(p *state.Port) { p.Frontends = p.Frontends[:1] })
	table.Set(two)
	table.Set(less)
	expect("taken", "one", "two")
	table.Restore(map[state.ServiceName]*state.Service{one.Name: one, two.Name: nil})
	expect("restored", "one", "one")
	table.Set(less)
	table.Set(two)
	expect("taken in another order", "one", "two")
	table.Remove(two.Name)
	expect("removed", "one", "")
	table.Set(service("one", func(p *state.Port) { p.Frontends = p.Frontends[:1] }))
	expect("smaller", "one", "")
	table.Remove(one.Name)
	expect("gone", "", "")

	restricted := &state.Frontend{Restricted: true, Sources: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}}
	for client, want := range map[string]bool{"10.1.2.3": true, "10.2.2.3": false} {
		if plan.Admits(restricted, netip.MustParseAddr(client)) != want {
			t.Errorf("%s is admitted: %v", client, !want)
		}
	}
}

// TestLargeChangeYields: a large change lets others look in between, and no frontend is missing then.
func TestLargeChangeYields(t *testing.T) {
	kind := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	large := func(first int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "large"}}
		for i := first; i < first+10; i++ {
			p := state.Port{Family: state.IPv4, Protocol: state.TCP, Name: fmt.Sprint(i)}
			for n := range 200 {
				p.Frontends = append(p.Frontends, state.Frontend{Addr: netip.AddrFrom4([4]byte{192, 0, 2, byte(n)}), Port: uint16(i)})
			}
			s.Ports = append(s.Ports, p)
		}
		return s
	}
	var table plan.Table
	steps := 0
	both := netip.MustParseAddrPort("192.0.2.199:9")
	table.Step = func() { steps++ }
	table.Set(large(0))
	table.Step = func() {
		steps++
		if p, _, _ := table.Lookup(kind, both); p == nil {
			t.Error("a frontend that the record has before and after is missing meanwhile")
		}
	}
	table.Set(large(5))
	table.Restore(map[state.ServiceName]*state.Service{large(0).Name: large(0)})
	for at, want := range map[string]bool{"192.0.2.0:0": true, "192.0.2.199:9": true, "192.0.2.0:10": false} {
		if p, _, _ := table.Lookup(kind, netip.MustParseAddrPort(at)); (p != nil) != want {
			t.Errorf("%s is found: %v", at, !want)
		}
	}
	table.Step = func() { steps++ }
	table.Remove(large(0).Name)
	if want := 6 * 2000 / 256; steps != want {
		t.Errorf("%d steps, want %d", steps, want)
	}
}

// TestSwapRestored: services that have exchanged a frontend, and one that is new, are put back as they were.
func TestSwapRestored(t *testing.T) {
	kind := plan.Kind{Family: state.IPv4, Protocol: state.TCP}
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(netip.MustParseAddr("10.96.0.1"), port) }
	service := func(name string, ports ...uint16) *state.Service {
		s := &state.Service{Name: state.ServiceName{Name: name}}
		for _, p := range ports {
			s.Ports = append(s.Ports, state.Port{Family: state.IPv4, Protocol: state.TCP, Frontends: []state.Frontend{{Addr: at(p).Addr(), Port: p}}})
		}
		return s
	}
	var table plan.Table
	before := map[state.ServiceName]*state.Service{}
	for _, s := range []*state.Service{service("a", 1, 2), service("b", 3)} {
		table.Set(s)
		before[s.Name] = s
	}
	for _, s := range []*state.Service{service("b", 2), service("a", 3), service("c", 1, 4)} {
		table.Set(s)
		if _, there := before[s.Name]; !there {
			before[s.Name] = nil
		}
	}
	table.Restore(before)
	for port, want := range map[uint16]string{1: "a", 2: "a", 3: "b", 4: ""} {
		got := ""
		if p, _, _ := table.Lookup(kind, at(port)); p != nil {
			got = p.ID.Service.Name
		}
		if got != want {
			t.Errorf("port %d belongs to %q, want %q", port, got, want)
		}
	}
}

// TestHashTables: routes with the same endpoints share a table, which stays while they stay. A service without room for its tables has none until there is
// room, and is a problem.
func TestHashTables(t *testing.T) {
	many := func(n int) (list []state.Endpoint) {
		for i := range n {
			list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}), 80)})
		}
		return list
	}
	frontend := func(i int) netip.AddrPort {
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i)}), 80)
	}
	large := many(100) // tables of 4,093 slots
	service := func(i int, list []state.Endpoint, ports int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "a", Name: fmt.Sprint(i)}}
		for n := range ports {
			to, f := state.Route{Verdict: state.Forward, Endpoints: slices.Clone(list)}, frontend(i)
			s.Ports = append(s.Ports, state.Port{
				Name: fmt.Sprint(n), Protocol: state.TCP, Family: state.IPv4, Balance: state.HashClient, Internal: state.Traffic{Inside: to, Outside: to},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: f.Addr(), Port: f.Port() + uint16(n)}},
			})
		}
		return s
	}
	var table plan.Table
	lookup := func(i int) *plan.Port {
		p, _, _ := table.Lookup(plan.Kind{Family: state.IPv4, Protocol: state.TCP}, frontend(i))
		return p
	}
	const most = apportion.MaxServiceSlots / 4093
	first := service(1, large, most)
	table.Set(first)
	had := lookup(1).Hash(0)
	if len(had) != 4093 || &had[0] != &lookup(1).Hash(1)[0] || lookup(1).Hash(2) != nil {
		t.Fatalf("tables of %d slots, %d for outside clients, and %d without endpoints", len(had), len(lookup(1).Hash(1)), len(lookup(1).Hash(2)))
	}
	changed := *first
	changed.Ports = slices.Clone(first.Ports)
	changed.Ports[0].Frontends = append(slices.Clone(changed.Ports[0].Frontends), state.Frontend{Kind: state.NodePort, Port: 30080})
	if table.Set(&changed); &lookup(1).Hash(0)[0] != &had[0] {
		t.Error("another frontend makes another table")
	}
	for i := 2; i <= 4; i++ { // half of the slots, for one namespace
		table.Set(service(i, large, most))
	}
	if len(table.Problems()) > 0 {
		t.Fatal(table.Problems())
	}
	table.Set(service(5, large, most))
	if p := table.Problems(); lookup(5).Hash(0) != nil || len(p) != 1 || !strings.Contains(p[0].Error(), "the first is a/5") {
		t.Errorf("without room: %v", p)
	}
	table.Remove(state.ServiceName{Namespace: "a", Name: "2"})
	if p := table.Problems(); lookup(5).Hash(0) == nil || len(p) > 0 {
		t.Errorf("with room again: %v", p)
	}
	table.Set(service(6, large, most+1))
	if p := table.Problems(); lookup(6).Hash(0) != nil || len(p) != 1 || !strings.Contains(p[0].Error(), "a/6") {
		t.Errorf("one service takes too much: %v", p)
	}
	table.Set(service(6, many(4093), 1))
	if p := table.Problems(); lookup(6).Hash(0) != nil || len(p) != 1 || !strings.Contains(p[0].Error(), "more than 4092 endpoints") {
		t.Errorf("too many endpoints: %v", p)
	}
	for i := range 6 {
		table.Remove(state.ServiceName{Namespace: "a", Name: fmt.Sprint(i + 1)})
	}
	if p := table.Problems(); len(p) > 0 {
		t.Errorf("in the end: %v", p)
	}
}

// TestRoomWhileFrontendMoves: a service gets room for its tables while an update moves one of its frontends to another service. The frontend stays with its
// new holder.
func TestRoomWhileFrontendMoves(t *testing.T) {
	const most = apportion.MaxServiceSlots / 4093
	var large []state.Endpoint // tables of 4,093 slots
	for i := range 100 {
		large = append(large, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 80)})
	}
	service := func(name string, b state.Balance, addrs ...netip.Addr) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "a", Name: name}}
		for i, addr := range addrs {
			to := state.Route{Verdict: state.Forward, Endpoints: slices.Clone(large)}
			s.Ports = append(s.Ports, state.Port{
				Name: fmt.Sprint(i), Protocol: state.TCP, Family: state.IPv4, Balance: b, Internal: state.Traffic{Inside: to, Outside: to},
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: addr, Port: 80}},
			})
		}
		return s
	}
	addrs := func(i byte) (list []netip.Addr) {
		for n := range most {
			list = append(list, netip.AddrFrom4([4]byte{10, 96, i, byte(n)}))
		}
		return list
	}
	var table plan.Table
	for i := range byte(4) { // half of the slots of a node, for one namespace
		table.Set(service(fmt.Sprint(i), state.HashClient, addrs(i)...))
	}
	late := addrs(4)
	table.Set(service("late", state.HashClient, late...))
	lookup := func(addr netip.Addr) *plan.Port {
		p, _, _ := table.Lookup(plan.Kind{Family: state.IPv4, Protocol: state.TCP}, netip.AddrPortFrom(addr, 80))
		return p
	}
	if lookup(late[0]).Hash(0) != nil {
		t.Fatal("the service has room already")
	}
	holder := func(step, want string) {
		t.Helper()
		got := ""
		if p := lookup(late[0]); p != nil {
			got = p.ID.Service.Name
		}
		if got != want {
			t.Errorf("%s: service %q has the frontend, want %q", step, got, want)
		}
	}
	table.Set(service("0", state.Random, append(addrs(0), late[0])...)) // gives its slots back, and takes a frontend
	holder("taken", "0")
	if p := lookup(late[1]); p.ID.Service.Name != "late" || p.Hash(0) == nil {
		t.Error("another frontend of the service has no table")
	}
	table.Set(service("late", state.HashClient, late[1:]...))
	holder("given away", "0")
}
