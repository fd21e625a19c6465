//go:build linux

package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// resetter plays what the dataplane does with resets, without a kernel.
type resetter struct {
	mirror *Mirror
	resets *Resets
	now    time.Time
}

func newResetter() *resetter {
	r := &resetter{NewMirror(), NewResets(0), noon}
	r.resets.ResetGone(true)
	return r
}

// apply applies an update, and returns the endpoints that are gone since the last one.
func (r *resetter) apply(u *state.Update) []netip.AddrPort {
	p := elementsOnly(r.mirror, testSettings(), u, nil)
	s := r.resets.After(p, nil)
	r.resets.Clear(s, r.now).Commit()
	p.Commit()
	s.Commit()
	change, gone := r.resets.Lost(r.now)
	change.Commit()
	return gone
}

// reset returns the endpoints whose connections are reset, sorted.
func (r *resetter) reset() (list []string) {
	for _, k := range slices.SortedFunc(maps.Keys(r.resets.gone), endpointKey.compare) {
		list = append(list, k.addrPort().String())
	}
	return list
}

func (r *resetter) expect(t *testing.T, when string, want ...string) {
	t.Helper()
	if got := r.reset(); !slices.Equal(got, want) {
		t.Errorf("%s: connections to %v are reset, want %v", when, got, want)
	}
}

// tcpPort is a port with frontends of two kinds.
func tcpPort(n int, internal, external []state.Endpoint) state.Port {
	return state.Port{
		Name: fmt.Sprint(n), Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: netip.AddrFrom4([4]byte{10, 96, 0, byte(n)}), Port: 80}, {Kind: state.NodePort, Port: uint16(30000 + n)},
		},
		Internal: state.Traffic{Inside: forward(internal), Outside: forward(internal)},
		External: state.Traffic{Inside: forward(internal), Outside: forward(external), Masquerade: state.MasqueradeNode},
	}
}

// TestGoneEndpoints goes through the ways in which an endpoint leaves a route. It is gone only when it is in no place of the state.
func TestGoneEndpoints(t *testing.T) {
	one, two, three := endpointsOf(state.IPv4, 1, 1), endpointsOf(state.IPv4, 1, 2), endpointsOf(state.IPv4, 1, 3)
	const second, third = "10.244.0.2:8080", "10.244.0.3:8080"
	remove := func(names ...string) *state.Update {
		u := delta()
		for _, name := range names {
			u.Removed = append(u.Removed, serviceOf(name).Name)
		}
		return u
	}
	r := newResetter()
	r.apply(delta(serviceOf("a", tcpPort(1, three, one)), serviceOf("b", tcpPort(2, two, nil))))
	r.apply(delta(serviceOf("a", tcpPort(1, two, one))))
	r.expect(t, "the third endpoint has left its only service", third)
	r.apply(delta(serviceOf("a", tcpPort(1, one, one))))
	r.expect(t, "the second one has left one of two services", third)
	r.apply(delta(serviceOf("b", tcpPort(2, one, two[1:]))))
	r.expect(t, "it has left a route, and is in another of the same service", third)
	lingers := tcpPort(2, one, nil)
	lingers.Lingering = two[1:]
	r.apply(delta(serviceOf("b", lingers)))
	r.expect(t, "it is in no route, but goes on serving", third)
	if gone := r.apply(delta(serviceOf("b", tcpPort(2, one, nil)))); len(gone) != 1 || gone[0].String() != second {
		t.Errorf("%v are reported to be gone, want %s", gone, second)
	}
	r.expect(t, "it serves nobody", second, third)
	if from := r.resets.gone[endpointKeyOf(two[1].Addr)].from; from.Name != "b" {
		t.Errorf("it is counted to service %v, not to that which it left last", from)
	}
	r.apply(delta(serviceOf("c", tcpPort(3, endpointsOf(state.IPv4, 3, 1), nil))))
	r.expect(t, "the third one is back, in another service", second)
	udp := tcpPort(4, two, two)
	udp.Protocol = state.UDP
	r.apply(delta(serviceOf("d", udp)))
	r.expect(t, "UDP does not bring an endpoint of TCP back", second)
	r.apply(remove("d"))
	r.expect(t, "nor does it take one away", second)
	u := remove("c")
	u.Changed = delta(serviceOf("d", tcpPort(4, endpointsOf(state.IPv4, 3, 1), nil))).Changed
	r.apply(u)
	r.expect(t, "the third one moves from one service to another", second)
	r.apply(remove("a", "b", "d"))
	r.expect(t, "all services are deleted", "10.244.0.1:8080", second, third)
	r.now = noon.Add(GoneTimeout)
	r.resets.Expire(r.now).Commit()
	r.expect(t, "after the time-out")
	if len(r.resets.serving)+len(r.resets.left) > 0 || len(r.resets.Exists()) > 0 {
		t.Errorf("left over: %v, %v, %v", r.resets.serving, r.resets.left, r.resets.Exists())
	}
}

// TestGoneEndpointsOfHistories compares random histories with the definition.
func TestGoneEndpointsOfHistories(t *testing.T) {
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		some := func() (list []state.Endpoint) {
			for _, e := range endpointsOf(state.IPv4, 1, 6) {
				if rng.IntN(3) == 0 {
					list = append(list, e)
				}
			}
			return list
		}
		services, want := map[state.ServiceName]*state.Service{}, map[netip.AddrPort]bool{}
		serve := func() map[netip.AddrPort]bool {
			addrs := map[netip.AddrPort]bool{}
			for _, s := range services {
				for _, p := range s.Ports {
					for _, e := range slices.Concat(p.Internal.Inside.Endpoints, p.External.Outside.Endpoints, p.Lingering) {
						if p.Protocol == state.TCP {
							addrs[e.Addr] = true
						}
					}
				}
			}
			return addrs
		}
		r := newResetter()
		for step := range 40 {
			before, u := serve(), delta()
			for n := range 4 {
				name := serviceOf(fmt.Sprint(n)).Name
				switch rng.IntN(4) {
				case 0:
					if services[name] != nil {
						u.Removed = append(u.Removed, name)
						delete(services, name)
					}
				case 1:
					var ports []state.Port
					for i := range rng.IntN(3) {
						p := tcpPort(4*n+i, some(), some())
						p.Lingering = some()
						if rng.IntN(4) == 0 {
							p.Protocol = state.UDP
						}
						ports = append(ports, p)
					}
					services[name] = serviceOf(name.Name, ports...)
					u.Changed = append(u.Changed, services[name])
				}
			}
			r.apply(u)
			now := serve()
			for a := range before {
				want[a] = true
			}
			maps.DeleteFunc(want, func(a netip.AddrPort, _ bool) bool { return now[a] })
			got := map[netip.AddrPort]bool{}
			for k := range r.resets.gone {
				got[k.addrPort()] = true
			}
			if !maps.Equal(got, want) || len(r.resets.serving) != len(now) || r.resets.state[0].gone != len(want) {
				t.Fatalf("seed %d, step %d: connections to %v are reset, want %v; %d endpoints serve, want %d", seed, step, got, want,
					len(r.resets.serving), len(now))
			}
		}
	}
}

// TestResetBudgets: what is beyond a budget is not reset, and is counted. What times out makes room.
func TestResetBudgets(t *testing.T) {
	r := newResetter()
	many := make([]state.Endpoint, MaxGone+3)
	for i := range many {
		many[i].Addr = netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 80)
	}
	p := tcpPort(1, nil, nil)
	p.Lingering = many // more than a route may have
	r.apply(delta(serviceOf("a", p)))
	gone := r.apply(delta(serviceOf("a")))
	if len(r.resets.gone) != MaxGone || r.resets.Dropped.Gone != 3 || len(gone) != len(many) {
		t.Errorf("%d endpoints are reset, %d are not, %d are gone", len(r.resets.gone), r.resets.Dropped.Gone, len(gone))
	}
	r.apply(delta(serviceOf("a", tcpPort(1, many[:1], nil))))
	r.apply(delta(serviceOf("a")))
	if len(r.resets.gone) != MaxGone || r.resets.Dropped.Gone != 3 {
		t.Errorf("after one was back: %d endpoints are reset, %d are not", len(r.resets.gone), r.resets.Dropped.Gone)
	}
}

// TestResetKeysAreWide: keys of both families are as wide as the keys of the set.
func TestResetKeysAreWide(t *testing.T) {
	for _, f := range families {
		e := endpointsOf(f, 7, 1)[0].Addr
		k := endpointKeyOf(e)
		if back, ok := endpointOf(f, k.key()); !ok || back != k || k.addrPort() != e || k.family() != f {
			t.Errorf("%v becomes %v", e, k.addrPort())
		}
		if len(k.key()) != nft.Width(resetSets(f, resetRules{gone: true})[0].Key) {
			t.Errorf("%v: keys have %d bytes", f, len(k.key()))
		}
	}
}
