package state_test

import (
	"net/netip"
	"reflect"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// featured is a record with a port for each feature, and one without any.
func featured() *state.Service {
	front := func(port uint16) state.Frontend {
		return state.Frontend{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: port}
	}
	to := func(endpoints ...state.Endpoint) state.Traffic {
		r := state.Route{Verdict: state.Forward, Endpoints: endpoints}
		return state.Traffic{Inside: r, Outside: r}
	}
	one, two := netip.MustParseAddrPort("10.1.0.1:80"), netip.MustParseAddrPort("10.1.0.2:80")
	port := func(name string, f state.Frontend) state.Port {
		return state.Port{Name: name, Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{f}, Internal: to(state.Endpoint{Addr: one})}
	}
	s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "svc"}, HealthCheck: state.HealthCheck{Port: 30000},
		Ports: []state.Port{port("balance", front(1)), port("drain", front(2)), port("eject", front(3)), port("ping", front(4)), port("plain", front(5)), port("range", front(6)), port("weights", front(1006)),
			port("x-edge", state.Frontend{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80})}}
	s.Ports[0].Balance = state.HashClient
	s.Ports[1].DrainSeconds = 30
	s.Ports[2].Ejection = true
	s.Ports[3].Frontends[0].Ping = true
	s.Ports[5].Frontends[0].LastPort = 1005
	s.Ports[6].Internal = to(state.Endpoint{Addr: one, Weight: 3}, state.Endpoint{Addr: two, Weight: 1})
	s.Ports[6].Internal.Inside.Refused = 5
	s.Ports[7].Internal, s.Ports[7].External = state.Traffic{}, s.Ports[7].Internal
	s.Ports[7].Edge = &state.Edge{Shares: []state.EdgeShare{{Node: 7, Weight: 1}}, Local: to(state.Endpoint{Addr: one, Local: true}).Inside, Except: state.KindsOf(state.NodePort)}
	return s
}

// TestForKeepsShares: a consumer that knows edges and no weights gets an even Local. Shares stay, because other nodes have the same.
func TestForKeepsShares(t *testing.T) {
	s := featured()
	edge := s.Ports[7].Edge
	edge.Local.Endpoints = []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Local: true, Weight: 3}, {Addr: netip.MustParseAddrPort("10.1.0.2:80"), Local: true, Weight: 1}}
	edge.Shares = []state.EdgeShare{{Node: 7, Weight: 4}}
	only := &state.Service{Ports: s.Ports[7:]}
	if got := only.Features(); got != state.Weights|state.EdgeShares {
		t.Errorf("the record uses %v", got)
	}
	got, missing := only.For(state.EdgeShares)
	if e := got.Ports[0].Edge; missing != state.Weights || e.Local.Weighted() || len(e.Local.Endpoints) != 2 || e.Shares[0].Weight != 4 {
		t.Errorf("without %v: %+v", missing, e)
	}
	if !edge.Local.Weighted() {
		t.Error("the original has changed")
	}
}

// TestNodeFor: a consumer without the edge gets the node without its peers.
func TestNodeFor(t *testing.T) {
	n := &state.Node{Name: "a", Peers: []state.Peer{{ID: state.PeerID("a"), Name: "a"}}}
	plain := &state.Node{Name: "a"}
	if n.For(state.EdgeShares) != n || plain.For(0) != plain || (*state.Node)(nil).For(0) != nil {
		t.Error("a node that does not change is another one")
	}
	if got := n.For(state.AllFeatures &^ state.EdgeShares); !got.Equal(plain) || len(n.Peers) != 1 {
		t.Errorf("got %+v of %+v", got, n)
	}
	u := &state.Update{Node: n, Changed: []*state.Service{{}}}
	if u.For(state.EdgeShares|state.Weights) != u {
		t.Error("an update that does not change is another one")
	}
	if v := u.For(0); v == u || len(v.Node.Peers) != 0 || v.Changed[0] != u.Changed[0] || len(u.Node.Peers) != 1 {
		t.Errorf("got %+v of %+v", v, u)
	}
}

// TestFor converts a record for every set of features.
func TestFor(t *testing.T) {
	whole := featured()
	if got := whole.Features(); got != state.AllFeatures {
		t.Fatalf("the record uses %v", got)
	}
	for accepted := range state.AllFeatures + 1 {
		got, missing := whole.For(accepted)
		if want := state.AllFeatures &^ accepted; missing != want || got.Features() != accepted {
			t.Errorf("for %v: it uses %v, without %v, want without %v", accepted, got.Features(), missing, want)
		}
		if again, missing := got.For(accepted); again != got || missing != 0 {
			t.Errorf("for %v: a converted record is converted again, without %v", accepted, missing)
		}
		if !whole.Equal(featured()) {
			t.Fatalf("for %v: the original has changed: %+v", accepted, whole)
		}
	}
	if same, missing := whole.For(^state.Features(0)); same != whole || missing != 0 {
		t.Error("a consumer that knows more does not get the record itself")
	}
}

// TestForNone: a consumer without features gets the record without the features, and nothing else is lost.
func TestForNone(t *testing.T) {
	got, _ := featured().For(0)
	want := featured()
	want.Ports[0].Balance, want.Ports[1].DrainSeconds, want.Ports[2].Ejection, want.Ports[3].Frontends[0].Ping = state.Random, 0, false, false
	want.Ports[7].Edge = nil
	for i := range want.Ports[6].Internal.Inside.Endpoints {
		want.Ports[6].Internal.Inside.Endpoints[i].Weight = 0
	}
	want.Ports[6].Internal.Inside.Refused = 0
	want.Ports = append(want.Ports[:5], want.Ports[6:]...)
	if !got.Equal(want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if in, out := got.Ports[5].Internal.Inside.Endpoints, got.Ports[5].Internal.Outside.Endpoints; &in[0] != &out[0] {
		t.Error("routes that shared their endpoints no longer do")
	}
}

// TestStrandedEndpointsHaveNoWeight: the endpoints of a route that no frontend leads to linger, and weights belong to routes.
func TestStrandedEndpointsHaveNoWeight(t *testing.T) {
	s := featured()
	p := &s.Ports[6]
	p.Protocol = state.UDP
	p.External = p.Internal
	p.Internal = state.Traffic{}
	p.External.Inside.Endpoints = p.External.Inside.Endpoints[:1]
	p.External.Outside = p.External.Inside
	p.Frontends = append(p.Frontends, state.Frontend{Kind: state.NodePort, Port: 30080})
	p.Internal = state.Traffic{Inside: state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.9:80"), Weight: 7}}}}
	left := s.Without(map[state.FrontendKey]bool{p.Key(&p.Frontends[0]): true})
	for _, e := range left.Ports[6].Lingering {
		if e.Weight != 0 {
			t.Errorf("%+v lingers with a weight", e)
		}
	}
	if len(left.Ports[6].Lingering) != 1 || !left.Ports[6].External.Inside.Weighted() {
		t.Errorf("got %+v", left.Ports[6])
	}
}

// TestFeaturesNames: the names are in metrics and logs.
func TestFeaturesNames(t *testing.T) {
	for f, want := range map[state.Features]string{
		0: "none", state.Weights: "weights", state.Balances: "balance", state.Ranges: "ranges", state.Ping: "ping",
		state.Ejection: "ejection", state.DrainDeadline: "drain-deadline", state.EdgeShares: "edge", state.Weights | state.Ping: "weights,ping", 1 << 7: "unknown",
	} {
		if got := f.String(); got != want {
			t.Errorf("%b is %q, want %q", uint8(f), got, want)
		}
	}
}

// TestRecordsKeepTheirSize: a node has many records, and few of them use a feature. Without features, a port had 224 bytes. The pointer to its edge takes 8.
func TestRecordsKeepTheirSize(t *testing.T) {
	if reflect.TypeFor[uintptr]().Size() != 8 {
		t.Skip("sizes are pinned for addresses of 64 bits")
	}
	for _, c := range []struct {
		of   reflect.Type
		want uintptr
	}{
		{reflect.TypeFor[state.Service](), 80}, {reflect.TypeFor[state.Port](), 232}, {reflect.TypeFor[state.Frontend](), 64},
		{reflect.TypeFor[state.Route](), 32}, {reflect.TypeFor[state.Endpoint](), 40},
	} {
		if got := c.of.Size(); got != c.want {
			t.Errorf("%v has %d bytes, want %d", c.of, got, c.want)
		}
	}
}

// BenchmarkFeatures is what a server does for each record and each client that does not accept all features.
func BenchmarkFeatures(b *testing.B) {
	s := featured()
	for b.Loop() {
		s.Features()
	}
}
