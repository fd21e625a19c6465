package protoconv

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// TestLargestRecordFits: a record as large as the brain makes any fits into a message that clients take.
func TestLargestRecordFits(t *testing.T) {
	const maxMessage, otherParts = 64 << 20, 1 << 20 // package client's, and more than what else is in a message with a record
	for name, ports := range map[string][]state.Port{
		"endpoints": {largePort("", 1, 0, brain.MaxEntries-6)},
		"frontends": {largePort("", brain.MaxEntries-5, 0, 0)},
		"sources":   {largePort("", 1, brain.MaxEntries-7, 0)},
		"ports":     manyPorts(brain.MaxEntries/6, 1, 0),
	} {
		n := proto.Size(Service(&state.Service{Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Ports: ports}))
		t.Logf("%s: %d bytes", name, n)
		if n > maxMessage-otherParts {
			t.Errorf("%s: %d bytes, which is more than clients take", name, n)
		}
	}
}

func manyPorts(n, sources, endpoints int) []state.Port {
	ports := make([]state.Port, n)
	for i := range ports {
		ports[i] = largePort(strings.Repeat("n", 63), 1, sources, endpoints)
	}
	return ports
}

// largePort is a port in IPv6 of which everything takes as much as it can.
func largePort(name string, frontends, sources, endpoints int) state.Port {
	addr := func(i int) netip.Addr {
		a := [16]byte{0: 0xfd}
		binary.BigEndian.PutUint32(a[12:], uint32(i))
		return netip.AddrFrom16(a)
	}
	p := state.Port{Name: name, Protocol: state.SCTP, Family: state.IPv6, Affinity: 86400e9}
	for i := range frontends {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.LoadBalancer, Addr: addr(i), Port: 65535, Restricted: true})
	}
	for i := range sources {
		p.Frontends[0].Sources = append(p.Frontends[0].Sources, netip.PrefixFrom(addr(i), 128))
	}
	to := state.Route{Verdict: state.Drop}
	for i := range endpoints {
		to.Verdict = state.Forward
		to.Endpoints = append(to.Endpoints, state.Endpoint{Addr: netip.AddrPortFrom(addr(i), 65535), Local: true})
	}
	p.Internal = state.Traffic{Inside: to, Outside: to, Masquerade: state.MasqueradeNode}
	p.External = p.Internal
	return p
}
