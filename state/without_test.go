package state_test

import (
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestWithout takes frontends from a record. Traffic without a frontend goes with them, and the record itself stays unchanged. Endpoints that were only
// there linger for flows of UDP, and for TCP with a deadline.
func TestWithout(t *testing.T) {
	addr := netip.MustParseAddr("10.96.0.1")
	to := func(n byte) state.Traffic {
		r := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, 0, n}), 53)}}}
		return state.Traffic{Inside: r, Outside: r}
	}
	port := func(number uint16, kinds ...state.FrontendKind) state.Port {
		p := state.Port{Protocol: state.UDP, Family: state.IPv4, Internal: to(1), External: to(2)}
		for _, k := range kinds {
			f := state.Frontend{Kind: k, Addr: addr, Port: number}
			if k == state.NodePort {
				f.Addr, f.Port = netip.Addr{}, 30000+number
			}
			p.Frontends = append(p.Frontends, f)
		}
		return p
	}
	s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "a"}, Ports: []state.Port{
		port(53, state.ClusterIP, state.NodePort), port(54, state.ClusterIP), port(55, state.ClusterIP, state.NodePort),
	}}
	key := func(i, j int) state.FrontendKey { return s.Ports[i].Key(&s.Ports[i].Frontends[j]) }
	if s.Without(map[state.FrontendKey]bool{{Port: 1}: true}) != s {
		t.Error("a record that loses nothing is another one")
	}
	got := s.Without(map[state.FrontendKey]bool{key(0, 1): true, key(1, 0): true})
	want := port(53, state.ClusterIP)
	want.External, want.Lingering = state.Traffic{}, to(2).Inside.Endpoints
	if !got.Equal(&state.Service{Name: s.Name, Ports: []state.Port{want, s.Ports[2]}}) {
		t.Errorf("got %+v", got)
	}
	for drain, lingers := range map[uint32][]state.Endpoint{0: nil, 30: want.Lingering} {
		tcp := port(53, state.ClusterIP, state.NodePort)
		tcp.Protocol, tcp.DrainSeconds = state.TCP, drain
		left := (&state.Service{Ports: []state.Port{tcp}}).Without(map[state.FrontendKey]bool{tcp.Key(&tcp.Frontends[1]): true})
		if got := left.Ports[0].Lingering; !slices.Equal(got, lingers) {
			t.Errorf("a TCP port with a deadline of %d s: %v, want %v", drain, got, lingers)
		}
	}
	if len(s.Ports) != 3 || len(s.Ports[0].Frontends) != 2 || s.Ports[0].Lingering != nil {
		t.Errorf("the record has changed: %+v", s)
	}
}

// TestCopiesKeepAllButPorts fills a record by reflection, so that a new field of a Service is in all of its copies.
func TestCopiesKeepAllButPorts(t *testing.T) {
	s, seed := new(state.Service), 0
	fill(t, reflect.ValueOf(s).Elem(), &seed)
	first := s.Ports[0].Key(&s.Ports[0].Frontends[0])
	other, _ := s.For(0)
	for name, c := range map[string]*state.Service{
		"WithPorts": s.WithPorts([]state.Port{{Name: "other"}}), "For": other, "Without": s.Without(map[state.FrontendKey]bool{first: true}),
	} {
		if c.Equal(s) {
			t.Errorf("%s returns the same ports", name)
		}
		got := *c
		if got.Ports = s.Ports; !got.Equal(s) {
			t.Errorf("%s returns %+v for %+v", name, got, *s)
		}
	}
}
