package wire_test

import (
	"net/netip"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/wire"
	"github.com/switchyard-net/switchyard/state"
)

func TestServiceComesBack(t *testing.T) {
	eps := []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80")}, {Addr: netip.MustParseAddrPort("10.1.0.2:80"), Local: true}}
	to := state.Route{Verdict: state.Forward, Endpoints: eps}
	s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: "a"}, Ports: []state.Port{{
		Name: "http", Protocol: state.TCP, Family: state.IPv4, Affinity: 3 * time.Hour,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}},
		Internal:  state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeUnlessPod},
	}}, HealthCheck: state.HealthCheck{Port: 30000, LocalIPv4: 1}}
	got, err := wire.ParseService(wire.Service(s))
	if err != nil || !got.Equal(s) {
		t.Errorf("got %+v, %v\nwant %+v", got, err, s)
	}
}
