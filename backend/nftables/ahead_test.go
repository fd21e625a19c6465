//go:build linux

package nftables

import (
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
