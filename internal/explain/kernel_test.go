package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/state"
)

// TestCompare: differences between the kernel and the state are named, and stand out.
func TestCompare(t *testing.T) {
	one, two := netip.MustParseAddrPort("10.244.1.1:80"), netip.MustParseAddrPort("10.244.1.2:80")
	answer := func() *explain.Answer {
		return &explain.Answer{
			From: "node", To: "Service shop/web", Node: "node-a", Verdict: explain.Forwarded, Service: "shop/web",
			Frontend:  &explain.Frontend{Kind: "NodePort", Addr: netip.MustParseAddrPort("172.16.0.1:30080"), Protocol: "TCP"},
			Endpoints: []explain.Endpoint{{Addr: one, Gets: true}, {Addr: two}},
		}
	}
	for name, tt := range map[string]struct {
		kernel explain.Kernel
		want   []string // differences
		text   []string
	}{
		"the same": {explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: []netip.AddrPort{one}}, nil,
			[]string{"kernel     ✓ nftables: forwarded, to the only endpoint\n"}},
		"nothing there": {explain.Kernel{Dataplane: "nftables", Verdict: explain.NotServed},
			[]string{"the kernel's objects say not served, and the state says forwarded", "the kernel does not have endpoint 10.244.1.1:80"},
			[]string{"kernel     ✗ nftables: not served\n", "✗ the kernel does not have endpoint 10.244.1.1:80\n"}},
		"an ejected endpoint": {explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: []netip.AddrPort{two},
			Silent: []explain.Silent{{Endpoint: one, Since: time.Date(2026, 1, 2, 12, 1, 7, 0, time.UTC), Probes: 4}}},
			[]string{"the kernel has endpoint 10.244.1.2:80, which gets no connections by the state"},
			[]string{"10.244.1.1:80 gets no new connections from this node: silent since 12:01:07, probed 4 times\n"}},
		"an ejected endpoint that is the last one": {explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: []netip.AddrPort{one},
			Silent: []explain.Silent{{Endpoint: one, Since: time.Date(2026, 1, 2, 12, 1, 7, 0, time.UTC), Probes: 1}}}, nil,
			[]string{"10.244.1.1:80 stays, because the others are silent as well: silent since 12:01:07, probed 1 time\n"}},
		"one too many": {explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: []netip.AddrPort{one, two}},
			[]string{"the kernel has endpoint 10.244.1.2:80, which gets no connections by the state"}, nil},
		"unread": {explain.Kernel{Dataplane: "ipvs", Unread: "it cannot"}, nil, []string{"kernel     ipvs: not read back: it cannot\n"}},
		"connections": {explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: []netip.AddrPort{one},
			Connections: []explain.Tracked{{Client: two, Server: one}}, ConnectionCount: 2}, nil,
			[]string{"tracked    10.244.1.2:80, answered by 10.244.1.1:80\n", "and 1 more connection\n"}},
	} {
		a := answer()
		a.Compare(tt.kernel)
		if !slices.Equal(a.Kernel.Differences, tt.want) {
			t.Errorf("%s: differences %q, want %q", name, a.Kernel.Differences, tt.want)
		}
		var b strings.Builder
		if err := (explain.Style{}).Write(&b, a); err != nil {
			t.Fatal(err)
		}
		for _, text := range tt.text {
			if !strings.Contains(b.String(), text) {
				t.Errorf("%s: no %q in\n%s", name, text, b.String())
			}
		}
	}
	a := answer()
	a.Compare(explain.Kernel{Dataplane: "nftables", Verdict: explain.NotServed})
	var b strings.Builder
	_ = explain.Style{Colour: true}.Write(&b, a)
	if !strings.Contains(b.String(), "\x1b[31m✗ the kernel does not have") {
		t.Errorf("a difference is not red:\n%q", b.String())
	}
}

// TestKey: a node port is the same frontend at all addresses.
func TestKey(t *testing.T) {
	at := netip.MustParseAddrPort("172.16.0.1:30080")
	for kind, want := range map[string]netip.Addr{"NodePort": {}, "ClusterIP": at.Addr()} {
		a := explain.Answer{Frontend: &explain.Frontend{Kind: kind, Addr: at, Protocol: "UDP"}}
		if key, ok := a.Key(); !ok || key != (state.FrontendKey{Family: state.IPv4, Protocol: state.UDP, Addr: want, Port: 30080}) {
			t.Errorf("%s: %v, %v", kind, key, ok)
		}
	}
	if _, ok := (&explain.Answer{}).Key(); ok {
		t.Error("an answer without a frontend has a key")
	}
}
