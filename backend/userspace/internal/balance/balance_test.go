package balance_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/state"
)

var start = time.Unix(1000, 0)

func endpoints(n int) (list []state.Endpoint) {
	for i := range n {
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 80)})
	}
	return list
}

// Each endpoint gets its share, and with the policies that count connections nearly exactly that.
func TestPolicies(t *testing.T) {
	const each = 1000
	for policy, most := range map[balance.Policy]int{
		balance.Random: each + each/5, balance.PowerOfTwoChoices: each + 10, balance.LeastConnections: each,
	} {
		rng := rand.New(rand.NewPCG(1, 2))
		var loads balance.Loads
		all := endpoints(10)
		counts := map[netip.AddrPort]int{}
		for range each * len(all) {
			e, ok := loads.Pick(policy, 0, all, nil, start, rng.IntN)
			if !ok {
				t.Fatal("no endpoint")
			}
			loads.Begin(e)
			counts[e]++
		}
		for e, n := range counts {
			if n > most || n < 2*each-most {
				t.Errorf("%s: %v has %d connections of %d each", policy, e, n, each)
			}
			for range n {
				loads.End(e)
			}
		}
		if len(counts) != len(all) || loads.Len() != 0 {
			t.Errorf("%s: %d endpoints have connections, and %d are remembered without any", policy, len(counts), loads.Len())
		}
	}
}

// Each endpoint is tried once, and then there are none left.
func TestTried(t *testing.T) {
	for _, policy := range []balance.Policy{balance.Random, balance.LeastConnections, balance.PowerOfTwoChoices} {
		var loads balance.Loads
		var tried []netip.AddrPort
		seen := map[netip.AddrPort]bool{}
		for {
			e, ok := loads.Pick(policy, 0, endpoints(7), tried, start, rand.IntN)
			if !ok {
				break
			}
			if seen[e] {
				t.Fatalf("%s: %v is tried twice", policy, e)
			}
			seen[e], tried = true, append(tried, e)
		}
		if len(seen) != 7 {
			t.Errorf("%s: %d of 7 are tried", policy, len(seen))
		}
	}
}

func TestEjection(t *testing.T) {
	rule := balance.Ejection{Failures: 3, Time: time.Minute}
	for _, policy := range []balance.Policy{balance.Random, balance.LeastConnections, balance.PowerOfTwoChoices} {
		var loads balance.Loads
		all := endpoints(3)
		bad := all[1].Addr
		has := func(e netip.AddrPort, now time.Time) bool {
			for range 200 {
				if got, _ := loads.Pick(policy, 0, all, nil, now, rand.IntN); got == e {
					return true
				}
			}
			return false
		}
		loads.Failed(bad, rule, start)
		loads.Failed(bad, rule, start)
		loads.Succeeded(bad)
		for i := range 3 {
			if !has(bad, start) {
				t.Fatalf("%s: ejected after %d failures in a row", policy, i)
			}
			if ejected := loads.Failed(bad, rule, start); ejected != (i == 2) {
				t.Fatalf("%s: failure %d ejects: %v", policy, i+1, ejected)
			}
		}
		if has(bad, start.Add(time.Minute-1)) {
			t.Errorf("%s: an ejected endpoint gets connections", policy)
		}
		later := start.Add(time.Minute)
		if !has(bad, later) {
			t.Errorf("%s: an endpoint does not return", policy)
		}
		if !loads.Failed(bad, rule, later) {
			t.Errorf("%s: an endpoint that has returned and fails is not ejected", policy)
		}
		for _, e := range all {
			for range 3 {
				loads.Failed(e.Addr, rule, later)
			}
		}
		for _, e := range all {
			if !has(e.Addr, later) {
				t.Errorf("%s: all are ejected, and %v gets nothing", policy, e)
			}
		}
		for _, e := range all {
			loads.Succeeded(e.Addr)
		}
		if loads.Len() != 0 {
			t.Errorf("%s: %d are remembered", policy, loads.Len())
		}
	}
	var loads balance.Loads
	if loads.Failed(endpoints(1)[0].Addr, balance.Ejection{}, start); loads.Len() != 0 {
		t.Error("without a rule, failures are remembered")
	}
}

// Random visits are remembered as by a list that is searched from its end.
func TestAffinityHistory(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	const timeout = 50 * time.Second
	a := balance.NewAffinity(1000)
	type visit struct {
		port, client, endpoint int
		at                     time.Time
	}
	var all []visit
	now := start
	for step := range 20000 {
		now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
		v := visit{rng.IntN(3), rng.IntN(30), rng.IntN(5), now}
		port := plan.PortID{Port: fmt.Sprint(v.port)}
		client := netip.AddrFrom4([4]byte{10, 1, 0, byte(v.client)})
		var want netip.AddrPort
		for i := len(all) - 1; i >= 0 && now.Sub(all[i].at) < timeout; i-- {
			if all[i].port == v.port && all[i].client == v.client {
				want = endpoints(5)[all[i].endpoint].Addr
				break
			}
		}
		if got, ok := a.Recall(port, client, timeout, now); got != want || ok != want.IsValid() {
			t.Fatalf("step %d: recalls %v, want %v", step, got, want)
		}
		if rng.IntN(2) == 0 {
			a.Learn(port, client, endpoints(5)[v.endpoint].Addr, timeout, now)
			all = append(all, v)
		}
	}
}

// Beyond the limit nobody is remembered, until others time out.
func TestAffinityLimit(t *testing.T) {
	a := balance.NewAffinity(10)
	e := endpoints(1)[0].Addr
	client := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)}) }
	for i := range 1000 {
		a.Learn(plan.PortID{}, client(i), e, time.Minute, start.Add(time.Duration(i)))
	}
	if a.Len() != 10 {
		t.Errorf("%d are remembered, want 10", a.Len())
	}
	if _, ok := a.Recall(plan.PortID{}, client(0), time.Minute, start); !ok {
		t.Error("a flood of clients drives out those that are there")
	}
	later := start.Add(time.Minute + 1000)
	a.Learn(plan.PortID{}, client(2000), e, time.Minute, later)
	if _, ok := a.Recall(plan.PortID{}, client(2000), time.Minute, later); !ok || a.Len() != 1 {
		t.Errorf("%d are remembered after all have timed out", a.Len())
	}
	n := 0
	for v := range a.All(later.Add(time.Second)) {
		if n++; v.Client != client(2000) || v.Endpoint != e || v.Timeout != time.Minute || v.Idle != time.Second {
			t.Errorf("%+v", v)
		}
	}
	if n != 1 {
		t.Errorf("%d are listed", n)
	}
}

// A client comes back to the endpoint that it had, as long as that may be chosen and has not just failed to answer it.
func TestChoose(t *testing.T) {
	var loads balance.Loads
	remembered, draws := balance.NewAffinity(10), rand.New(rand.NewPCG(5, 6))
	port := &plan.Port{ID: plan.PortID{Port: "http"}, Port: &state.Port{Affinity: time.Minute}}
	choose := func(from []state.Endpoint, tried ...netip.AddrPort) netip.AddrPort {
		t.Helper()
		e, ok := balance.Choose(&loads, remembered, balance.Random, &balance.Request{
			Port: port, Route: &state.Route{Endpoints: from}, Client: netip.MustParseAddrPort("10.1.0.1:4000"), Tried: tried,
		}, start, draws.IntN)
		if !ok {
			t.Fatal("no endpoint")
		}
		return e
	}
	all := endpoints(20)
	had := choose(all)
	for range 20 {
		if got := choose(all); got != had {
			t.Fatalf("%v, and %v before", got, had)
		}
	}
	other := choose(all, had)
	if other == had || choose(all) != other {
		t.Errorf("%v, which did not answer, or is still the client's", had)
	}
	left := slices.DeleteFunc(all, func(e state.Endpoint) bool { return e.Addr == other })
	if got := choose(left); got == other || choose(left) != got {
		t.Errorf("%v, which is gone, or the next is not the client's", got)
	}
	if _, ok := balance.Choose(&loads, remembered, balance.Random, &balance.Request{Port: port, Route: &state.Route{}}, start, draws.IntN); ok {
		t.Error("an endpoint, of none")
	}
	port.Port.Affinity = 0
	seen := map[netip.AddrPort]bool{}
	for range 100 {
		seen[choose(left)] = true
	}
	if len(seen) < 10 {
		t.Errorf("without affinity, the client comes to %d endpoints only", len(seen))
	}
}

// TestRefusedShare: of each 10 connections, 7 are refused, unless the client is remembered or an endpoint was tried.
func TestRefusedShare(t *testing.T) {
	route := &state.Route{Refused: 7, Endpoints: []state.Endpoint{{Addr: endpoints(2)[0].Addr, Weight: 2}, {Addr: endpoints(2)[1].Addr, Weight: 1}}}
	port := &plan.Port{Port: &state.Port{}}
	visits := balance.NewAffinity(10)
	counts := func(tried ...netip.AddrPort) map[netip.AddrPort]int {
		got := map[netip.AddrPort]int{}
		for range 3000 {
			var loads balance.Loads
			r := &balance.Request{Port: port, Route: route, Client: netip.MustParseAddrPort("10.1.0.1:4000"), Tried: tried}
			endpoint, _ := balance.Choose(&loads, visits, balance.Random, r, start, rand.IntN)
			got[endpoint]++
		}
		return got
	}
	if got := counts(); got[netip.AddrPort{}] < 1950 || got[netip.AddrPort{}] > 2250 || got[route.Endpoints[0].Addr] < 450 || got[route.Endpoints[1].Addr] < 200 {
		t.Errorf("got %v of 3000, want about 2100, 600 and 300", got)
	}
	if got := counts(route.Endpoints[0].Addr); got[route.Endpoints[1].Addr] != 3000 {
		t.Errorf("after one was tried: %v", got)
	}
	port.Port.Affinity = time.Hour
	visits.Learn(port.ID, netip.MustParseAddr("10.1.0.1"), route.Endpoints[1].Addr, time.Hour, start)
	if got := counts(); got[route.Endpoints[1].Addr] != 3000 {
		t.Errorf("a client that is remembered: %v", got)
	}
}

// TestWeightsAreKept: weights are read once for a route, not once for each connection that is alone.
func TestWeightsAreKept(t *testing.T) {
	allocations := func(weighted bool) float64 {
		route := endpoints(200)
		for i := range route {
			if weighted {
				route[i].Weight = uint16(i + 1)
			}
		}
		var loads balance.Loads
		return testing.AllocsPerRun(100, func() {
			e, _ := loads.Pick(balance.Random, 0, route, nil, start, func(n int) int { return n - 1 })
			loads.Begin(e)
			loads.End(e)
		})
	}
	if with, without := allocations(true), allocations(false); with > without {
		t.Errorf("a connection takes %v allocations, and %v without weights", with, without)
	}
}

// portWith returns the port of a service whose internal clients take a route.
func portWith(by state.Balance, endpoints []state.Endpoint, refused uint32) *plan.Port {
	to := state.Route{Verdict: state.Forward, Endpoints: endpoints, Refused: refused}
	var table plan.Table
	frontend := netip.MustParseAddrPort("10.96.0.1:80")
	table.Set(&state.Service{Name: state.ServiceName{Name: "web"}, Ports: []state.Port{{
		Protocol: state.TCP, Family: state.IPv4, Balance: by, Internal: state.Traffic{Inside: to, Outside: to},
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: frontend.Addr(), Port: frontend.Port()}},
	}}})
	p, _, _ := table.Lookup(plan.Kind{Family: state.IPv4, Protocol: state.TCP}, frontend)
	return p
}

// TestHashed: a connection gets the endpoint of its slot. If that one was tried or is ejected, another one is chosen, always the same. A refused slot stays
// refused.
func TestHashed(t *testing.T) {
	for _, by := range []state.Balance{state.HashClient, state.HashConnection} {
		for _, refused := range []uint32{0, 6} {
			list := endpoints(4)
			for i := range list {
				list[i].Weight = 3
			}
			p := portWith(by, list, refused)
			route, number := p.Route(&p.Frontends[0], plan.Inside)
			table := consistent.Table(route)
			var loads balance.Loads
			choose := func(client netip.AddrPort, tried ...netip.AddrPort) (netip.AddrPort, bool) {
				e, ok := balance.Choose(&loads, nil, balance.LeastConnections, &balance.Request{
					Port: p, Route: route, Number: number, Client: client, Tried: tried,
				}, start, nil) // nothing is drawn
				if ok {
					loads.End(e)
				}
				return e, ok
			}
			moved := map[netip.AddrPort]bool{}
			for i := range uint16(200) {
				client := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 1000+i)
				at := table[consistent.Slot(by, client, len(table))]
				got, ok := choose(client)
				if at == consistent.Refused {
					if ok {
						t.Fatalf("%v: %v gets %v, and its slot is refused", by, client, got)
					}
					continue
				}
				if want := list[at].Addr; !ok || got != want {
					t.Fatalf("%v: %v gets %v, want %v", by, client, got, want)
				}
				other, ok := choose(client, got)
				if again, _ := choose(client, got); !ok || other == got || again != other {
					t.Fatalf("%v: %v gets %v and %v after %v", by, client, other, again, got)
				}
				moved[other] = true
				loads.Failed(got, balance.Ejection{Failures: 1, Time: time.Hour}, start)
				if instead, _ := choose(client); instead != other {
					t.Fatalf("%v: %v gets %v instead of an ejected endpoint, want %v", by, client, instead, other)
				}
				if last, ok := choose(client, list[(at+1)%4].Addr, list[(at+2)%4].Addr, list[(at+3)%4].Addr); !ok || last != got {
					t.Fatalf("%v: %v gets %v, with only the ejected %v left", by, client, last, got)
				}
				loads.Succeeded(got)
			}
			if len(moved) != len(list) {
				t.Errorf("%v: the clients of an endpoint that fails go to %d of %d others", by, len(moved), len(list))
			}
		}
	}
}

// TestLeastOfOnePort: a port that asks for least connections has that policy, whatever the policy of all others. Session affinity wins.
func TestLeastOfOnePort(t *testing.T) {
	for affinity, want := range map[time.Duration]int{0: 0, time.Hour: 5} {
		p := portWith(state.LeastConnections, endpoints(2), 0)
		p.Affinity = affinity
		route, number := p.Route(&p.Frontends[0], plan.Inside)
		var loads balance.Loads
		visits, busy := balance.NewAffinity(1), endpoints(2)[0].Addr
		loads.Begin(busy)
		got := 0
		for i := range uint16(30) {
			e, _ := balance.Choose(&loads, visits, balance.Random, &balance.Request{
				Port: p, Route: route, Number: number, Client: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, byte(i)}), 1000+i),
			}, start, rand.IntN)
			if loads.End(e); e == busy {
				got++
			}
		}
		if want == 0 && got > 0 || got < want {
			t.Errorf("with an affinity of %v, the endpoint with a connection gets %d of 30 more", affinity, got)
		}
	}
}
