package balance_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/balance"
	"github.com/switchyard-net/switchyard/state"
)

// naive is how endpoints are doing, by the definition of the policies.
type naive map[netip.AddrPort]*naiveLoad

type naiveLoad struct {
	open, failures int
	until          time.Time
}

func (n naive) of(e netip.AddrPort) *naiveLoad {
	if n[e] == nil {
		n[e] = &naiveLoad{}
	}
	return n[e]
}

// candidates are those that are not tried, and not ejected unless all are.
func (n naive) candidates(endpoints []state.Endpoint, tried []netip.AddrPort, now time.Time) []netip.AddrPort {
	var in, out []netip.AddrPort
	for _, e := range endpoints {
		switch {
		case slices.Contains(tried, e.Addr):
		case now.Before(n.of(e.Addr).until):
			out = append(out, e.Addr)
		default:
			in = append(in, e.Addr)
		}
	}
	if len(in) == 0 {
		return out
	}
	return in
}

// chances returns how often each endpoint comes out of each way that the draws may go, which are equally likely.
func (n naive) chances(policy balance.Policy, endpoints []state.Endpoint, tried []netip.AddrPort, now time.Time) map[netip.AddrPort]int {
	counts := map[netip.AddrPort]int{}
	all := n.candidates(endpoints, tried, now)
	weight := map[netip.AddrPort]int{}
	for _, e := range endpoints {
		if weight[e.Addr] = max(1, int(e.Weight)); e.Weight > 0 && policy == balance.LeastConnections {
			policy = balance.PowerOfTwoChoices
		}
	}
	// Each is there as often as its weight.
	times := func(all []netip.AddrPort) (units []netip.AddrPort) {
		for _, e := range all {
			units = append(units, slices.Repeat([]netip.AddrPort{e}, weight[e])...)
		}
		return units
	}
	switch policy {
	case balance.Random:
		for _, e := range times(all) {
			counts[e]++
		}
	case balance.LeastConnections:
		least := 0
		for i, e := range all {
			if i == 0 || n.of(e).open < least {
				least = n.of(e).open
			}
		}
		for _, e := range all {
			if n.of(e).open == least {
				counts[e]++
			}
		}
	case balance.PowerOfTwoChoices:
		for _, first := range times(all) {
			seconds := n.candidates(endpoints, append(slices.Clone(tried), first), now)
			if len(seconds) == 0 {
				counts[first]++
			}
			for _, second := range times(seconds) {
				out, less := now.Before(n.of(second).until), n.of(second).open*weight[first] < n.of(first).open*weight[second]
				if out == now.Before(n.of(first).until) && less {
					counts[second]++
				} else {
					counts[first]++
				}
			}
		}
	}
	return counts
}

// ways are all ways in which random numbers can be drawn, one after the other.
type ways struct{ drawn, of []int }

// each calls do once for each way, with the numbers of that way.
func (w *ways) each(do func(draw func(n int) int)) {
	for more := true; more; {
		at := 0
		do(func(n int) int {
			if at == len(w.drawn) {
				w.drawn, w.of = append(w.drawn, 0), append(w.of, n)
			}
			at++
			return w.drawn[at-1]
		})
		more = false
		for i := len(w.drawn) - 1; i >= 0 && !more; i-- {
			if w.drawn[i]++; w.drawn[i] < w.of[i] {
				more = true
			} else {
				w.drawn, w.of = w.drawn[:i], w.of[:i]
			}
		}
	}
}

// TestOracle: in random histories of connections, failures and changes of the routes, each endpoint has the chance that it has by the definition of the
// policy.
func TestOracle(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	rule := balance.Ejection{Failures: 2, Time: 20 * time.Second}
	for history := range 15 {
		var loads balance.Loads
		n := naive{}
		universe := endpoints(1 + rng.IntN(12))
		some := func() (route []state.Endpoint) {
			weighted := rng.IntN(2) == 0
			for _, e := range universe {
				if weighted {
					e.Weight = uint16(1 + rng.IntN(3))
				}
				if rng.IntN(4) > 0 {
					route = append(route, e)
				}
			}
			return route
		}
		routes := [][]state.Endpoint{some(), some(), some(), some()}
		now := start
		for step := range 300 {
			now = now.Add(time.Duration(rng.IntN(3)) * time.Second)
			e := universe[rng.IntN(len(universe))].Addr
			switch rng.IntN(8) {
			case 0, 1:
				loads.Begin(e)
				n.of(e).open++
			case 2, 3:
				if n.of(e).open > 0 {
					loads.End(e)
					n.of(e).open--
				}
			case 4:
				loads.Succeeded(e)
				*n.of(e) = naiveLoad{open: n.of(e).open}
			case 5, 6:
				load := n.of(e)
				load.failures++
				want := load.failures >= rule.Failures && !now.Before(load.until)
				if want {
					load.until = now.Add(rule.Time)
				}
				if got := loads.Failed(e, rule, now); got != want {
					t.Fatalf("history %d, step %d: a failure ejects: %v, want %v", history, step, got, want)
				}
			case 7:
				routes[rng.IntN(len(routes))] = some()
			}
			var tried []netip.AddrPort
			for range rng.IntN(4) {
				tried = append(tried, universe[rng.IntN(len(universe))].Addr)
			}
			number := rng.IntN(len(routes))
			for _, policy := range []balance.Policy{balance.Random, balance.LeastConnections, balance.PowerOfTwoChoices} {
				got := map[netip.AddrPort]int{}
				new(ways).each(func(draw func(int) int) {
					if e, ok := loads.Pick(policy, number, routes[number], tried, now, draw); ok {
						got[e]++
					}
				})
				if want := n.chances(policy, routes[number], tried, now); !maps.Equal(got, want) {
					t.Fatalf("history %d, step %d, %s without %v: chances of %v, want %v", history, step, policy, tried, got, want)
				}
			}
		}
		for e, load := range n {
			for range load.open {
				loads.End(e)
			}
			loads.Succeeded(e)
		}
		if loads.Len() != 0 {
			t.Fatalf("history %d: %d are remembered in the end", history, loads.Len())
		}
	}
}

// many returns n endpoints.
func many(n int) (list []state.Endpoint) {
	for i := range n {
		list = append(list, state.Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)})
	}
	return list
}

// TestLargeRouteChanges: when a route with many busy endpoints changes, the next choices come to know of them, a part at a time.
func TestLargeRouteChanges(t *testing.T) {
	var loads balance.Loads
	all := many(5000)
	for i, e := range all {
		for range 1 + i%3 {
			loads.Begin(e.Addr)
		}
	}
	route := slices.Clone(all[:4000])
	idle := state.Endpoint{Addr: many(5001)[5000].Addr}
	for _, route := range [][]state.Endpoint{route, append(route, idle)} {
		for range 10 { // enough for all
			loads.Pick(balance.LeastConnections, 1, route, nil, start, rand.IntN)
		}
		want := 0
		if len(route) > 4000 {
			want = 1 // the new one
		}
		got := map[netip.AddrPort]int{}
		new(ways).each(func(draw func(int) int) {
			e, _ := loads.Pick(balance.LeastConnections, 1, route, nil, start, draw)
			got[e]++
		})
		if want == 1 && !maps.Equal(got, map[netip.AddrPort]int{idle.Addr: 1}) || want == 0 && len(got) != 1334 {
			t.Errorf("one of %d endpoints is chosen, of %d", len(got), len(route))
		}
	}
}

func BenchmarkPick(b *testing.B) {
	for _, policy := range []balance.Policy{balance.Random, balance.LeastConnections, balance.PowerOfTwoChoices} {
		for _, n := range []int{10, 1000, 200_000} {
			b.Run(fmt.Sprintf("%s/%d", policy, n), func(b *testing.B) {
				var loads balance.Loads
				all, kept := many(n), many(1)[0].Addr
				loads.Begin(kept)
				var open []netip.AddrPort
				for b.Loop() {
					e, ok := loads.Pick(policy, 0, all, nil, start, rand.IntN)
					if !ok {
						b.Fatal("no endpoint")
					}
					loads.Begin(e)
					if open = append(open, e); len(open) > 10_000 { // so many are open at a time
						loads.End(open[0])
						open = open[1:]
					}
				}
			})
		}
	}
}

// BenchmarkUpdate is the first choice after the endpoints of a port have changed, with 1,000 connections.
func BenchmarkUpdate(b *testing.B) {
	for _, n := range []int{1000, 200_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var loads balance.Loads
			routes := [][]state.Endpoint{many(n), many(n)}
			for _, e := range routes[0][:1000] {
				loads.Begin(e.Addr)
			}
			for i := 0; b.Loop(); i++ {
				loads.Pick(balance.LeastConnections, 0, routes[i%2], nil, start, rand.IntN)
			}
		})
	}
}
