package node

import (
	"log/slog"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/kernel/namespace"
	"github.com/switchyard-net/switchyard/state"
)

// TestTakenLocalPort has another process listen on a NodePort. It is tried again at each verification and for another Service, and not at each change
// of any Service. The log names it when the failure changes.
func TestTakenLocalPort(t *testing.T) {
	taken, err := net.Listen("tcp6", "[::1]:0")
	if err != nil {
		t.Skipf("IPv6 is needed: %v", err)
	}
	defer taken.Close()
	inside, err := namespace.Current()
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	l := newLocalPorts(inside, slog.New(slog.NewTextHandler(&log, nil)))
	defer l.close()
	service := func(name string, port uint16) *state.Service {
		route := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("[fd00::1]:8080")}}}
		return &state.Service{Name: state.ServiceName{Name: name}, Ports: []state.Port{{
			Family: state.IPv6, Protocol: state.TCP, Frontends: []state.Frontend{{Kind: state.NodePort, Port: port}}, External: state.Traffic{Inside: route, Outside: route},
		}}}
	}
	apply := func(changed *state.Service, removed ...string) {
		u := &state.Update{Changed: []*state.Service{changed}, Node: &state.Node{NodePorts: &state.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("::1/128")}}}}
		for _, name := range removed {
			u.Removed = append(u.Removed, state.ServiceName{Name: name})
		}
		l.apply(u, true)
	}
	port := netip.MustParseAddrPort(taken.Addr().String()).Port()
	for _, step := range []struct {
		what            string
		do              func()
		failures, lines int
	}{
		{"a Service", func() { apply(service("a", port)) }, 1, 1},
		{"the same Service", func() { apply(service("a", port)) }, 1, 1},
		{"another change", func() { apply(&state.Service{Name: state.ServiceName{Name: "b"}}) }, 1, 1},
		{"a verification", l.retry, 2, 1},
		{"another Service at the port", func() { apply(service("c", port), "a") }, 3, 2},
		{"no Service at the port", func() { apply(&state.Service{Name: state.ServiceName{Name: "c"}}) }, 3, 2},
		{"the Service again", func() { apply(service("c", port)) }, 4, 3},
	} {
		step.do()
		if lines := strings.Count(log.String(), "cannot serve a NodePort"); l.failures != uint64(step.failures) || lines != step.lines {
			t.Errorf("%s: %d failures and %d lines, want %d and %d", step.what, l.failures, lines, step.failures, step.lines)
		}
	}
	taken.Close()
	l.retry()
	if listeners, _ := l.amounts(); listeners != 1 {
		t.Errorf("there are %d listeners once the port is free", listeners)
	}
}
