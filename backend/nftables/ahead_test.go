//go:build linux

package nftables

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/netnstest"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestLengthsComeAhead: when a Service brings the first range of some length, the firewall asks for that length before any frontend
// is restricted to it. A start has everything at once: there is no packet that must meet a half.
func TestLengthsComeAhead(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	var seen []string // after each commit
	var b *Backend
	b = openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
		return &watchfulKernel{sharedKernel{c}, func() {
			if b == nil {
				return // it is being opened
			}
			h := held(t, conn, state.IPv4)
			what := "nothing"
			switch {
			case len(h["allowed-24"]) > 0 && len(h["service-restricted"]) > 0:
				what = "elements"
			case len(h["allowed-24"])+len(h["service-restricted"]) > 0:
				what = "some elements"
			case h["allowed-24"] != nil:
				what = "a set"
				if s, err := conn.ReadSkeleton(table(state.IPv4)); err == nil && len(s.Rules("firewall")) == 3 { // two for a length, and the drop
					what = "rules"
				}
			}
			seen = append(seen, what)
		}}
	})
	open := restrictedService("a", nil)
	open.Ports[0].Frontends[1].Restricted = false
	restricted := restrictedService("a", recordtest.Prefixes("192.0.2.0/24"))
	apply(t, b, full(open))
	apply(t, b, delta(restricted))
	apply(t, b, delta(restrictedService("a", recordtest.Prefixes("198.51.100.0/24"))))
	if want := []string{"nothing", "rules", "elements", "elements"}; !slices.Equal(seen, want) {
		t.Errorf("after each commit there were %q, want %q", seen, want)
	}
	commitRaw(t, conn, func(b *nft.Batch) {
		for _, f := range families {
			b.DeleteTable(table(f))
		}
	})
	seen = nil
	apply(t, b, full(restricted))
	if want := []string{"elements"}; !slices.Equal(seen, want) {
		t.Errorf("a start: after each commit there were %q, want %q", seen, want)
	}
}

// TestBlocksComeAhead: when a Service brings the first block of some length, the rules ask for that length before there is a block. Without that, a
// packet that stays with the rules from before would find a port nowhere that has moved to a block of another length.
func TestBlocksComeAhead(t *testing.T) {
	ns := netnstest.New(t)
	conn := dial(t, ns)
	var seen []string // after each commit
	var b *Backend
	b = openBackend(t, ns, Options{}, func(c *nft.Conn) kernel {
		return &watchfulKernel{sharedKernel{c}, func() {
			if b == nil {
				return
			}
			s, err := conn.ReadSkeleton(table(state.IPv4))
			if err != nil {
				t.Error(err)
				return
			}
			h := held(t, conn, state.IPv4)
			seen = append(seen, fmt.Sprintf("%d rules, %d and %d blocks", len(s.Rules("ranges")), len(h["service-ranges-13"]), len(h["service-ranges-12"])))
		}}
	})
	service := func(last uint16) *state.Service {
		s := recordtest.Service("a", state.Port{Name: "range", Protocol: state.UDP, Family: state.IPv4})
		p := &s.Ports[0]
		p.Internal.Inside = recordtest.To("10.244.0.1:0")
		p.Internal.Outside = p.Internal.Inside
		p.Frontends = []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80, LastPort: last}}
		return s
	}
	apply(t, b, full())
	apply(t, b, delta(service(87)))
	apply(t, b, delta(service(95)))
	want := []string{"0 rules, 0 and 0 blocks", "2 rules, 0 and 0 blocks", "2 rules, 1 and 0 blocks", "4 rules, 1 and 0 blocks", "4 rules, 0 and 1 blocks"}
	if !slices.Equal(seen, want) {
		t.Errorf("after each commit there were %q, want %q", seen, want)
	}
}
