package protoconv_test

import (
	"bytes"
	"net/netip"
	"os"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/state"
)

// plainService has something in every field that belongs to no feature.
func plainService() *state.Service {
	to := func(verdict state.Verdict, list ...string) state.Route {
		r := state.Route{Verdict: verdict}
		for i, s := range list {
			r.Endpoints = append(r.Endpoints, state.Endpoint{Addr: netip.MustParseAddrPort(s), Local: i%2 == 0})
		}
		return r
	}
	return &state.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "dns"}, HealthCheck: state.HealthCheck{Port: 30000, LocalIPv4: 1, LocalIPv6: 2},
		Ports: []state.Port{
			{
				Name: "dns", Protocol: state.UDP, Family: state.IPv4, Affinity: 3 * time.Hour,
				Frontends: []state.Frontend{
					{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53},
					{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.4"), Port: 53, Restricted: true, Sources: prefixes("10.0.0.0/8")},
					{Kind: state.NodePort, Port: 30053},
				},
				Internal:  state.Traffic{Inside: to(state.Forward, "10.1.0.1:53", "10.1.0.3:53"), Outside: to(state.Forward, "10.1.0.1:53"), Masquerade: state.MasqueradeUnlessPod},
				External:  state.Traffic{Inside: to(state.Forward, "10.1.0.5:53"), Outside: to(state.Drop), Masquerade: state.MasqueradeAlways},
				Lingering: to(state.Forward, "10.1.0.7:53").Endpoints,
			},
			{
				Name: "http", Protocol: state.TCP, Family: state.IPv6,
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("fd96::1"), Port: 80}},
				Internal:  state.Traffic{Inside: to(state.Reject), Outside: to(state.Reject)},
				Lingering: to(state.Forward, "[fd01::7]:80").Endpoints,
			},
		},
	}
}

// TestPlainRecordsKeepTheirBytes: testdata/plain-service.binpb was made by the last commit without features.
func TestPlainRecordsKeepTheirBytes(t *testing.T) {
	want, err := os.ReadFile("testdata/plain-service.binpb")
	if err != nil {
		t.Fatal(err)
	}
	got, err := proto.MarshalOptions{Deterministic: true}.Marshal(protoconv.Service(plainService()))
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("got %x\nwant %x, %v", got, want, err)
	}
}
