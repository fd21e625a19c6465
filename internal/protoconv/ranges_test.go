package protoconv_test

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// restricted is the record of a Service with a load balancer whose ports all have the same source ranges.
func restricted(tb testing.TB, ports, ranges int) *state.Service {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "restricted"}, Type: model.TypeLoadBalancer,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
	}
	for i := range ports {
		svc.Ports = append(svc.Ports, model.ServicePort{Name: fmt.Sprintf("p%03d", i), Protocol: state.TCP, Port: uint16(i + 1)})
	}
	for i := range ranges {
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 172<<24|uint32(i)<<8)
		svc.SourceRanges = append(svc.SourceRanges, netip.PrefixFrom(netip.AddrFrom4(a), 24))
	}
	s := brain.Compute(&brain.Config{}, &model.Node{Name: "node"}, svc, nil)
	if s == nil || len(s.Ports) != ports || len(s.Ports[0].Frontends) != 2 || len(s.Ports[0].Frontends[1].Sources) != ranges {
		tb.Fatalf("the record is %+v", s)
	}
	return s
}

// TestPortsShareSourceRanges: in messages, and in the records that are read from them.
func TestPortsShareSourceRanges(t *testing.T) {
	s := restricted(t, 3, 100)
	m := transmit(t, protoconv.Service(s))
	if n := len(m.SourceRanges); n != 1 {
		t.Errorf("there are %d lists, want 1 for all ports", n)
	}
	got, err := protoconv.ParseService(m)
	if err != nil || !got.Equal(s) {
		t.Fatalf("went %+v\ncame %+v, %v", s, got, err)
	}
	for _, p := range got.Ports {
		if &p.Frontends[1].Sources[0] != &got.Ports[0].Frontends[1].Sources[0] {
			t.Errorf("port %s has a copy of its own", p.Name)
		}
	}
}

// TestAddressesShareSourceRanges: also if the ranges admit the node, and with it each load balancer IP.
func TestAddressesShareSourceRanges(t *testing.T) {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "restricted"}, Type: model.TypeLoadBalancer,
		ClusterIPs:      addrs("10.96.0.1", "fd96::1"),
		LoadBalancerIPs: addrs("192.0.2.1", "192.0.2.2", "192.0.2.3", "2001:db8::1"),
		SourceRanges:    prefixes("10.0.0.0/8", "192.0.2.1/32", "192.0.2.2/32", "2001:db8:1::/48"),
		Ports:           []model.ServicePort{{Name: "a", Protocol: state.TCP, Port: 80}, {Name: "b", Protocol: state.TCP, Port: 81}},
	}
	s := brain.Compute(&brain.Config{}, &model.Node{Name: "node", Addresses: addrs("10.0.0.1")}, svc, nil)
	m := transmit(t, protoconv.Service(s))
	// The contents of the ranges, the same with 192.0.2.3, and the IPv6 ranges.
	if n := len(m.GetSourceRanges()); n != 3 {
		t.Errorf("there are %d lists, want 3: %v", n, m.GetSourceRanges())
	}
	if got, err := protoconv.ParseService(m); err != nil || !got.Equal(s) {
		t.Fatalf("went %+v\ncame %+v, %v", s, got, err)
	}
}

// BenchmarkSourceRanges sends and reads a record at the bound of entries of one Service.
func BenchmarkSourceRanges(b *testing.B) {
	s := restricted(b, 190, 1000)
	data := protoconv.Marshal(protoconv.Service(s))
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			protoconv.Marshal(protoconv.Service(s))
		}
		b.ReportMetric(float64(len(data)), "bytes")
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			var m localnetv1.ServiceEndpoints
			if err := proto.Unmarshal(data, &m); err != nil {
				b.Fatal(err)
			}
			if _, err := protoconv.ParseService(&m); err != nil {
				b.Fatal(err)
			}
		}
	})
}
