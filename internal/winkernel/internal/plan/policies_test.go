package plan_test

import (
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
)

func TestProvider(t *testing.T) {
	s := plan.NewSubnets([]plan.Subnet{
		{Prefix: netip.MustParsePrefix("10.1.3.0/24"), Provider: netip.MustParseAddr("192.0.2.3")},
		{Prefix: netip.MustParsePrefix("10.1.2.0/24"), Provider: netip.MustParseAddr("192.0.2.2")},
		{Prefix: netip.MustParsePrefix("10.1.8.0/22"), Provider: netip.MustParseAddr("192.0.2.8")},
	})
	for addr, want := range map[string]string{
		"10.1.2.0": "192.0.2.2", "10.1.2.255": "192.0.2.2", "10.1.3.7": "192.0.2.3", "10.1.11.255": "192.0.2.8",
		"10.1.1.255": "", "10.1.4.0": "", "10.1.12.0": "", "fd00::1": "",
		"192.0.2.3": "192.0.2.3", "192.0.2.1": "", // a node's own address, and one of no node
	} {
		got := s.Provider(netip.MustParseAddr(addr))
		if got.IsValid() != (want != "") || got.IsValid() && got.String() != want {
			t.Errorf("%s: %v, want %q", addr, got, want)
		}
	}
	var none plan.Subnets
	if got := none.Provider(netip.MustParseAddr("10.1.2.1")); got.IsValid() {
		t.Errorf("without subnets: %v", got)
	}
}
