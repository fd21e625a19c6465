//go:build linux

package main

import (
	"net/netip"
	"strings"
	"testing"

	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// TestLoopbackRanges are those that are served, and so guarded. Others do not mean loopback addresses, even if they have them.
func TestLoopbackRanges(t *testing.T) {
	for _, c := range []struct {
		cidr            string
		serves, without bool
	}{
		{"127.0.0.0/8", true, false},
		{"127.0.0.1/32", true, false},
		{"0.0.0.0/0", false, true},
		{"126.0.0.0/7", false, true},
		{"192.0.2.0/24", false, true},
		{"::1/128", false, false},
	} {
		p := netip.MustParsePrefix(c.cidr)
		d := &dataplane{node: &api.Node{NodePortAddresses: &api.NodePortAddresses{
			Cidrs: []*api.Prefix{{Address: p.Addr().AsSlice(), Length: uint32(p.Bits())}},
		}}}
		w := &writer{dataplane: d}
		rules := strings.Join(append(w.nodePortMatches("ip"), w.nodePortMatches("ip6")...), "\n")
		if got := d.servesLoopback(); got != c.serves {
			t.Errorf("%s: serves on loopback addresses: %v, want %v", c.cidr, got, c.serves)
		}
		if got := strings.Contains(rules, "daddr != 127.0.0.0/8"); got != c.without {
			t.Errorf("%s: leaves loopback addresses out: %v, want %v in\n%s", c.cidr, got, c.without, rules)
		}
	}
}
