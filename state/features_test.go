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
		Ports: []state.Port{port("balance", front(1)), port("drain", front(2)), port("eject", front(3)), port("ping", front(4)), port("plain", front(5)), port("range", front(6)), port("weights", front(1006))}}
	s.Ports[0].Balance = state.HashClient
	s.Ports[1].DrainSeconds = 30
	s.Ports[2].Ejection = true
	s.Ports[3].Frontends[0].Ping = true
	s.Ports[5].Frontends[0].LastPort = 1005
	s.Ports[6].Internal = to(state.Endpoint{Addr: one, Weight: 3}, state.Endpoint{Addr: two, Weight: 1})
	s.Ports[6].Internal.Inside.Refused = 5
	return s
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
	for i := range want.Ports[6].Internal.Inside.Endpoints {
		want.Ports[6].Internal.Inside.Endpoints[i].Weight = 0
	}
	want.Ports[6].Internal.Inside.Refused = 0
	want.Ports = append(want.Ports[:5], want.Ports[6])
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
		state.Ejection: "ejection", state.DrainDeadline: "drain-deadline", state.Weights | state.Ping: "weights,ping", 1 << 7: "unknown",
	} {
		if got := f.String(); got != want {
			t.Errorf("%b is %q, want %q", uint8(f), got, want)
		}
	}
}

// TestRecordsKeepTheirSize: a node has many records, and few of them use a feature.
func TestRecordsKeepTheirSize(t *testing.T) {
	if reflect.TypeFor[uintptr]().Size() != 8 {
		t.Skip("sizes are pinned for addresses of 64 bits")
	}
	for _, c := range []struct {
		of   reflect.Type
		want uintptr
	}{
		{reflect.TypeFor[state.Service](), 80}, {reflect.TypeFor[state.Port](), 224}, {reflect.TypeFor[state.Frontend](), 64},
		{reflect.TypeFor[state.Route](), 32}, {reflect.TypeFor[state.Endpoint](), 40},
	} {
		if got := c.of.Size(); got != c.want {
			t.Errorf("%v has %d bytes, want %d as before there were features", c.of, got, c.want)
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
