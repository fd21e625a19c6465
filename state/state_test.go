package state_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

func TestFamilyOf(t *testing.T) {
	for addr, want := range map[netip.Addr]state.Family{
		{}:                                     0,
		netip.MustParseAddr("10.0.0.1"):        state.IPv4,
		netip.MustParseAddr("fd00::1"):         state.IPv6,
		netip.MustParseAddr("::ffff:10.0.0.1"): state.IPv6,
	} {
		if got := state.FamilyOf(addr); got != want {
			t.Errorf("FamilyOf(%v) = %v, want %v", addr, got, want)
		}
	}
}

// Names are what people read in logs and explanations. Values that do not exist are still distinct.
func TestNames(t *testing.T) {
	for _, c := range []struct {
		value fmt.Stringer
		want  string
	}{
		{state.IPv4, "IPv4"}, {state.IPv6, "IPv6"}, {state.Family(9), "Family(9)"},
		{state.TCP, "TCP"}, {state.UDP, "UDP"}, {state.SCTP, "SCTP"}, {state.Protocol(1), "Protocol(1)"},
		{state.ClusterIP, "ClusterIP"}, {state.ExternalIP, "ExternalIP"}, {state.LoadBalancer, "LoadBalancer"},
		{state.NodePort, "NodePort"}, {state.FrontendKind(0), "FrontendKind(0)"},
		{state.Unused, "Unused"}, {state.Forward, "Forward"}, {state.Reject, "Reject"}, {state.Drop, "Drop"},
		{state.Verdict(9), "Verdict(9)"},
		{state.MasqueradeNever, "Never"}, {state.MasqueradeAlways, "Always"}, {state.MasqueradeUnlessPod, "UnlessPod"},
		{state.MasqueradeNode, "Node"}, {state.Masquerade(9), "Masquerade(9)"},
		{state.ServiceName{Namespace: "ns", Name: "svc"}, "ns/svc"},
	} {
		if got := c.value.String(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}

// TestFrontends: they come in order, each with its port, and a caller may stop early. A service that is nil has none.
func TestFrontends(t *testing.T) {
	s := &state.Service{Ports: []state.Port{
		{Name: "a", Frontends: []state.Frontend{{Kind: state.ClusterIP, Port: 1}, {Kind: state.NodePort, Port: 2}}},
		{Name: "b"},
		{Name: "c", Frontends: []state.Frontend{{Kind: state.ClusterIP, Port: 3}}},
	}}
	var got strings.Builder
	for p, f := range s.Frontends() {
		got.WriteString(fmt.Sprintf("%s%d ", p.Name, f.Port))
	}
	if want := "a1 a2 c3 "; got.String() != want {
		t.Errorf("got %q, want %q", got.String(), want)
	}
	for p, f := range s.Frontends() {
		if f != &s.Ports[0].Frontends[0] || p != &s.Ports[0] {
			t.Errorf("the first is %v of %v, which is not the record's own", f, p)
		}
		break
	}
	for range (*state.Service)(nil).Frontends() {
		t.Error("a service that is nil has frontends")
	}
}
