package explain_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/internal/explain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
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

// TestLack: an answer does not promise what the dataplane lacks, and says so before its remarks.
func TestLack(t *testing.T) {
	web := state.ServiceName{Namespace: "ns", Name: "svc"}
	for missing, want := range map[state.Features]string{
		state.Weights:                  "ready; weight 95 asks for 95.0%, but it gets the same share as the others",
		state.Balances:                 "it has no effect: the dataplane lacks it",
		state.Weights | state.Balances: "warning    the dataplane lacks weights,balance, and serves the Service without; choose another mode, or remove the annotations",
	} {
		a := canary(t, "hash")
		a.Findings = []diagnosis.Finding{{Severity: diagnosis.Fault}, {Severity: diagnosis.Remark}}
		a.Lack(web, missing)
		if f := a.Findings; len(f) != 3 || f[1].Reason != diagnosis.Degraded {
			t.Errorf("%v: the findings are %v, want the lack between a fault and a remark", missing, f)
		}
		if text := written(t, a); !strings.Contains(text, want) {
			t.Errorf("%v: no %q in\n%s", missing, want, text)
		}
		a.Compare(explain.Kernel{Draw: &explain.Draw{Even: true}}) // says the same
		if text := written(t, a); !strings.Contains(text, want) || strings.Contains(text, "others, but") {
			t.Errorf("%v: no %q, or twice, in\n%s", missing, want, text)
		}
	}
}

// TestShares: an answer has the share that weights ask for, and the slots that the dataplane has.
func TestShares(t *testing.T) {
	old, fresh := netip.MustParseAddrPort("10.244.1.20:8080"), netip.MustParseAddrPort("10.244.1.21:8080")
	both := []netip.AddrPort{old, fresh}
	for name, tt := range map[string]struct {
		balance string
		draw    *explain.Draw
		want    []string
	}{
		"not read": {"random", nil, []string{"ready; weight 95 asks for 95.0%\n", "ready; weight 5 asks for 5.0%\n"}},
		"slots": {"random", &explain.Draw{Slots: 64, Shares: []int{61, 3}}, []string{
			"ready; weight 95 asks for 95.0%; it has 61 of 64 slots, 95.3%\n", "ready; weight 5 asks for 5.0%; it has 3 of 64 slots, 4.7%\n"}},
		"refused": {"random", &explain.Draw{Slots: 64, Shares: []int{40, 4}}, []string{"20 of 64 slots, 31.2%, have no endpoint: their connections are refused\n"}},
		"no room": {"hash", &explain.Draw{Even: true}, []string{"weight 5 asks for 5.0%, but it gets the same share as the others\n",
			"switchyard.net/balance hash: it has no effect now: the dataplane has no table for the Service, and draws endpoints at random\n"}},
		"hash": {"hash", &explain.Draw{Slots: 1021, Shares: []int{970, 51}, Hashed: true}, []string{"it has 51 of 1,021 slots, 5.0%\n",
			"switchyard.net/balance hash: all connections of a client address go to one endpoint", "a hash chooses one of 1,021 slots, which are the same on all nodes\n"}},
		"client": {"hash", &explain.Draw{Slots: 251, Shares: []int{200, 51}, Hashed: true, Slot: new(417), Endpoint: &fresh}, []string{
			"a hash chooses one of 251 slots, which are the same on all nodes: for this client slot 417, which is 10.244.1.21:8080\n"}},
		"refused client": {"hash", &explain.Draw{Slots: 251, Shares: []int{190, 51}, Hashed: true, Slot: new(0)}, []string{
			": for this client slot 0, which has no endpoint\n"}},
	} {
		a := canary(t, tt.balance)
		a.Compare(explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Endpoints: both, Draw: tt.draw})
		text := written(t, a)
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", name, want, text)
			}
		}
		if e := a.Endpoints[1]; e.Weight != 5 || e.Share != 0.05 || tt.draw != nil && len(tt.draw.Shares) > 0 && e.Slots != tt.draw.Shares[1] || len(a.Kernel.Differences) > 0 {
			t.Errorf("%s: %+v, differences %q", name, e, a.Kernel.Differences)
		}
	}
}

// canary is the answer about a Service whose second endpoint has 5% of the weights.
func canary(t *testing.T, balance string) *explain.Answer {
	t.Helper()
	at := func(name, addr, weight string) *model.EndpointSlice {
		return &model.EndpointSlice{
			Namespace: "ns", Name: name, Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}, Weight: weight,
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr(addr), Ready: true, Serving: true}},
		}
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	t.Cleanup(s.Close)
	sink := s.Source("test")
	sink.Update([]model.Object{
		&model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}, Annotations: []model.Annotation{{Name: model.BalanceAnnotation, Value: balance}},
		}, at("old", "10.244.1.20", "95"), at("new", "10.244.1.21", "5"),
	}, nil)
	sink.Complete()
	return explain.New(explain.Options{Store: s}).Explain(explain.Connection{Class: explain.Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
}

func written(t *testing.T, a *explain.Answer) string {
	t.Helper()
	var b strings.Builder
	if err := (explain.Style{}).Write(&b, a); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestLimitOfShares: the list of shares stays as long as the list of endpoints that it belongs to.
func TestLimitOfShares(t *testing.T) {
	k := explain.Kernel{Dataplane: "nftables", Verdict: explain.Forwarded, Draw: &explain.Draw{Slots: 4093, Hashed: true}}
	for i := range 2000 {
		k.Endpoints = append(k.Endpoints, netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80))
		k.Draw.Shares = append(k.Draw.Shares, 2)
	}
	a := canary(t, "hash")
	a.Compare(k)
	explain.Limit([]*explain.Answer{a})
	if d := a.Kernel.Draw; len(d.Shares) != len(a.Kernel.Endpoints) || len(d.Shares) > 1000 || d.Refused != 93 {
		t.Errorf("%d shares of %d endpoints, %d slots refuse", len(d.Shares), len(a.Kernel.Endpoints), d.Refused)
	}
}
