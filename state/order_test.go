package state_test

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// Each list here is in its documented order; Compare must bring it back from any other and call no two items equal.
func TestOrder(t *testing.T) {
	ip := netip.MustParseAddr
	testOrder(t, "services", state.ServiceName.Compare, []state.ServiceName{
		{"a", "b"}, {"a", "c"}, {"ab", "a"}, {"b", "a"},
	})
	testOrder(t, "ports", func(a, b state.Port) int { return a.Compare(&b) }, []state.Port{
		{Name: "", Protocol: state.UDP, Family: state.IPv6},
		{Name: "a", Protocol: state.TCP, Family: state.IPv4},
		{Name: "a", Protocol: state.TCP, Family: state.IPv6},
		{Name: "a", Protocol: state.UDP, Family: state.IPv4},
		{Name: "b", Protocol: state.TCP, Family: state.IPv4},
	})
	testOrder(t, "frontends", state.Frontend.Compare, []state.Frontend{
		{Kind: state.ClusterIP, Addr: ip("10.0.0.9"), Port: 9},
		{Kind: state.ExternalIP, Addr: ip("10.0.0.1"), Port: 8},
		{Kind: state.ExternalIP, Addr: ip("10.0.0.1"), Port: 9},
		{Kind: state.ExternalIP, Addr: ip("10.0.0.2"), Port: 1},
		{Kind: state.LoadBalancer, Addr: ip("10.0.0.1"), Port: 1},
		{Kind: state.NodePort, Port: 1},
	})
	testOrder(t, "endpoints", state.Endpoint.Compare, []state.Endpoint{
		{Addr: netip.MustParseAddrPort("10.0.0.1:2")},
		{Addr: netip.MustParseAddrPort("10.0.0.1:10")},
		{Addr: netip.MustParseAddrPort("10.0.0.2:1")},
		{Addr: netip.MustParseAddrPort("[fd00::1]:1")},
	})
}

func testOrder[T any](t *testing.T, name string, compare func(a, b T) int, want []T) {
	t.Run(name, func(t *testing.T) {
		got := slices.Clone(want)
		rand.New(rand.NewPCG(1, 2)).Shuffle(len(got), func(i, j int) { got[i], got[j] = got[j], got[i] })
		slices.SortFunc(got, compare)
		for i := range want {
			for j := range want {
				if c := compare(want[i], want[j]); (c < 0) != (i < j) || (c == 0) != (i == j) {
					t.Errorf("Compare(%+v, %+v) = %d", want[i], want[j], c)
				}
			}
			if compare(got[i], want[i]) != 0 {
				t.Errorf("item %d is %+v, want %+v", i, got[i], want[i])
			}
		}
	})
}
