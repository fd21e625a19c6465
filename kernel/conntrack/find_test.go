//go:build linux

package conntrack

import (
	"errors"
	"net/netip"
	"os"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestFind looks flows up by their answers, as who receives a translated packet does.
func TestFind(t *testing.T) {
	c := open(t)
	for _, flow := range []Flow{
		dnat(state.UDP, "10.0.0.1:1000", "10.96.0.10:53", "169.254.1.1:5353"),
		dnat(state.UDP, "[fd00::1]:1000", "[fd00:96::10]:53", "[fd00::2]:5353"),
	} {
		if _, err := c.Find(flow.Protocol, flow.Reply); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%v before it exists: %v", flow, err)
		}
		create(t, c, flow)
		if got, err := c.Find(flow.Protocol, flow.Reply); err != nil || got != flow {
			t.Errorf("found %v (%v), want %v", got, err, flow)
		}
		other := flow.Reply
		other.Dst = netip.AddrPortFrom(other.Dst.Addr(), 1001)
		if got, err := c.Find(flow.Protocol, other); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("answers to another client find %v (%v)", got, err)
		}
	}
	mixed := Tuple{netip.MustParseAddrPort("10.0.0.1:1"), netip.MustParseAddrPort("[fd00::1]:1")}
	if _, err := c.Find(state.UDP, mixed); err == nil {
		t.Error("addresses of two families are a tuple")
	}
}
