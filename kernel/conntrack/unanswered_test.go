package conntrack

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestDeleteUnansweredOfEndpoints: the unanswered flows of both families to some endpoints go, and no others. Filters delete those to a few endpoints of IPv4,
// and a listing of the family deletes others.
func TestDeleteUnansweredOfEndpoints(t *testing.T) {
	unanswered := func(dst, from string) Flow {
		f := flow(dst, from)
		f.Protocol, f.Unanswered = state.TCP, true
		return f
	}
	answered, udp := unanswered("10.96.0.1:80", "10.244.0.1:80"), unanswered("10.96.0.1:80", "10.244.0.1:80")
	answered.Unanswered, udp.Protocol = false, state.UDP
	many := make([]netip.AddrPort, maxWalks+1)
	for i := range many {
		many[i] = ap(fmt.Sprintf("10.244.0.%d:80", 1+i))
	}
	const v4, v6 = "10.96.0.1:80", "[fd00:96::1]:80"
	for _, c := range []struct {
		name            string
		old             bool
		endpoints       []netip.AddrPort
		filters, listed int // deletions by a filter, and listings
		stays           []Flow
	}{
		{"none", false, nil, 0, 0, []Flow{unanswered(v4, "10.244.0.1:80"), unanswered(v6, "[fd00:244::1]:80")}},
		{"one", false, many[:1], 1, 0, []Flow{unanswered(v6, "[fd00:244::1]:80")}},
		{"one, named twice", false, []netip.AddrPort{many[0], many[0]}, 1, 0, []Flow{unanswered(v6, "[fd00:244::1]:80")}},
		{"one, an old kernel", true, many[:1], 0, 1, []Flow{unanswered(v6, "[fd00:244::1]:80")}},
		{"both families", false, []netip.AddrPort{many[0], ap("[fd00:244::1]:80")}, 1, 1, nil},
		{"some", false, many[:maxWalks], maxWalks, 0, []Flow{unanswered(v6, "[fd00:244::1]:80")}},
		{"many", false, many, 0, 1, []Flow{unanswered(v6, "[fd00:244::1]:80")}},
	} {
		other := unanswered(v4, "10.244.1.1:80")
		table := &fakeTable{old: c.old, flows: []Flow{
			unanswered(v4, "10.244.0.1:80"), answered, udp, other, unanswered(v6, "[fd00:244::1]:80"),
		}}
		n, err := DeleteUnanswered(table, c.endpoints...)
		stays := slices.DeleteFunc(slices.Clone(table.flows), func(f Flow) bool { return f == answered || f == udp || f == other })
		if err != nil || n != 2-len(c.stays) || !slices.Equal(stays, c.stays) || len(table.flows) != len(stays)+3 {
			t.Errorf("%s: deleted %d, %v; left %v, want %v in addition to 3", c.name, n, err, table.flows, c.stays)
		}
		if len(table.removed) != c.filters || len(table.filters) != c.listed {
			t.Errorf("%s: %d filters and %d listings, want %d and %d", c.name, len(table.removed), len(table.filters), c.filters, c.listed)
		}
	}
	table := &fakeTable{flows: []Flow{unanswered(v4, "10.244.0.1:80")}, fail: func() bool { return true }}
	if n, err := DeleteUnanswered(table, many[0]); n != 0 || !errors.Is(err, errFake) {
		t.Errorf("deleted %d, %v; want the error of the table", n, err)
	}
}
