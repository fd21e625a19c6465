//go:build !race

// A record with all that it may have takes the race detector a minute, and its tests start no goroutine.

package protoconv

import (
	"encoding/binary"
	"net/netip"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestLargestRecordFits: a record as large as the brain makes any fits into a message that clients take.
func TestLargestRecordFits(t *testing.T) {
	if testing.Short() {
		t.Skip("makes seven records of up to 64 MiB")
	}
	const maxMessage, otherParts = 64 << 20, 1 << 20 // package client's, and more than what else is in a message with a record
	for name, ports := range map[string][]state.Port{
		"endpoints": {largePort("", 1, 0, brain.MaxEntries-10)},
		"weights":   {weighted(largePort("", 1, 0, (brain.MaxEntries-10)/2))},
		"frontends": {largePort("", (brain.MaxEntries-5)/5, 0, 0)},
		"sources":   {largePort("", 1, brain.MaxEntries-11, 0)},
		"ports":     manyPorts(brain.MaxEntries/10, 1, 0),
		"local":     {withEdge(largePort("", 1, 0, brain.MaxEntries-10), 0)},
		"shares":    {withEdge(largePort("", 1, 0, brain.MaxEntries-10), 65536)},
	} {
		n := proto.Size(Service(&state.Service{Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Ports: ports}))
		t.Logf("%s: %d bytes", name, n)
		if n > maxMessage-otherParts {
			t.Errorf("%s: %d bytes, which is more than clients take", name, n)
		}
	}
}

// withEdge gives a port an edge with so many shares. All other endpoints are on this node.
func withEdge(p state.Port, shares int) state.Port {
	p.Edge = &state.Edge{Local: state.Route{Verdict: state.Forward, Endpoints: p.External.Outside.Endpoints[shares:]}, Except: state.KindsOf(state.NodePort)}
	for i := range shares {
		p.Edge.Shares = append(p.Edge.Shares, state.EdgeShare{Node: uint32(i), Weight: 24})
		p.External.Outside.Endpoints[i].Local = false
	}
	return p
}

func weighted(p state.Port) state.Port {
	for i := range p.Internal.Inside.Endpoints {
		p.Internal.Inside.Endpoints[i].Weight = 65535
	}
	return p
}

func manyPorts(n, sources, endpoints int) []state.Port {
	ports := make([]state.Port, n)
	for i := range ports {
		ports[i] = largePort(strings.Repeat("n", 63), 1, sources, endpoints)
	}
	return ports
}

// largePort is a port in IPv6 whose fields take as much as they can.
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

// TestLargestNamesFit: any names of all services fit into an update that clients accept, and any names of one service
// fit into a message.
func TestLargestNamesFit(t *testing.T) {
	const maxMessage, maxUpdate, otherParts = 64 << 20, 256 << 20, 1 << 20 // as above
	label, name := strings.Repeat("n", 63), strings.Repeat("n", 253)
	removed := revlog.Limit * proto.Size(&localnetv1.NextNamesResponse{Removed: []*localnetv1.ServiceName{{Namespace: label, Name: name}}})
	slice := func(ports, endpoints int) *model.EndpointSlice {
		s := &model.EndpointSlice{Family: state.IPv6}
		for i := range ports {
			s.Ports = append(s.Ports, model.EndpointPort{Name: label, Protocol: state.SCTP, Port: uint16(65535 - i)})
		}
		for i := range endpoints {
			a := [16]byte{0: 0xfd, 14: byte(i >> 8), 15: byte(i)}
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom16(a), Ready: true})
			s.Hostnames = append(s.Hostnames, label)
		}
		return s
	}
	var ofManyPorts []*model.EndpointSlice
	for i := range 1000 {
		ofManyPorts = append(ofManyPorts, slice(1, 1))
		ofManyPorts[i].Ports[0].Port = uint16(i + 1)
	}
	for what, c := range map[string]struct {
		svc  model.Service
		from []*model.EndpointSlice
	}{
		"external name": {svc: model.Service{Type: model.TypeExternalName, ExternalName: name}},
		"ports":         {svc: model.Service{Ports: manyServicePorts(label, 1000)}},
		"cluster IPs":   {svc: model.Service{ClusterIPs: []netip.Addr{netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd00::2")}}},
		"no endpoints":  {svc: model.Service{Headless: true}},
		"one endpoint":  {svc: model.Service{Headless: true}, from: []*model.EndpointSlice{slice(0, 1)}},
		"endpoints":     {svc: model.Service{Headless: true}, from: []*model.EndpointSlice{slice(1, 10_000)}},
		"slices' ports": {svc: model.Service{Headless: true}, from: []*model.EndpointSlice{slice(10_000, 1)}},
		"groups":        {svc: model.Service{Headless: true}, from: ofManyPorts},
	} {
		c.svc.Name = state.ServiceName{Namespace: label, Name: name}
		entries := int(brain.NamesEntries(&c.svc, c.from))
		part := &localnetv1.NextNamesResponse{Changed: []*localnetv1.ServiceNames{Names(brain.Names(&c.svc, c.from, brain.MaxNames))}}
		perEntry := float64(proto.Size(part)) / float64(entries)
		t.Logf("%s: %.1f bytes an entry", what, perEntry)
		if all := int(perEntry*store.MaxNames) + removed + otherParts; all > maxUpdate {
			t.Errorf("%s: with an update of %d bytes, clients take %d", what, all, maxUpdate)
		}
		if one := int(perEntry*brain.MaxNames) + otherParts; one > maxMessage {
			t.Errorf("%s: with a message of %d bytes, clients take %d", what, one, maxMessage)
		}
	}
}

func manyServicePorts(name string, n int) (ports []model.ServicePort) {
	for i := range n {
		ports = append(ports, model.ServicePort{Name: name, Protocol: state.SCTP, Port: uint16(65535 - i)})
	}
	return ports
}
