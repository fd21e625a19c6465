package brain_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// BenchmarkCompute measures one Compute, single-threaded. "typical" is a service with one port and one cluster IP; each
// other case adds one thing to it.
func BenchmarkCompute(b *testing.B) {
	const typical = 5
	edge := func(s *model.Service) {
		s.Type, s.LoadBalancerIPs = model.TypeLoadBalancer, addrs("192.0.2.1")
		s.Annotations = []model.Annotation{{Name: model.EdgeAnnotation, Value: "true"}}
	}
	for _, c := range []struct {
		name      string
		endpoints int
		change    func(*model.Service)
	}{
		{"typical", typical, func(*model.Service) {}},
		{"loadbalancer-local", typical, func(s *model.Service) {
			s.Type = model.TypeLoadBalancer
			s.ExternalLocal = true
			s.HealthCheckNodePort = 32000
			s.Ports[0].NodePort = 30080
			s.LoadBalancerIPs = addrs("192.0.2.1")
			s.SourceRanges = prefixes("198.51.100.0/24")
		}},
		{"loadbalancer-edge", typical, edge},
		{"1000-endpoints", 1000, func(*model.Service) {}},
		{"1000-endpoints-edge", 1000, edge},
		{"10000-ports", typical, func(s *model.Service) { s.Ports = servicePorts(10_000) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			svc := service()
			c.change(svc)
			s := slice(state.IPv4)
			for i := range c.endpoints {
				s.Endpoints = append(s.Endpoints, model.Endpoint{
					Addr:  netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(1 + i%250)}),
					Ready: true, Serving: true, NodeName: fmt.Sprintf("node%d", i%10),
				})
			}
			slices := []*model.EndpointSlice{s}
			cfg, node := config(), thisNode()
			cfg.Edge = brain.Edge{Enabled: true, Annotated: true}
			b.ReportAllocs()
			for b.Loop() {
				brain.Compute(cfg, node, svc, slices)
			}
		})
	}
}

// BenchmarkComputeManySlices measures one Compute of a service with 190,000 endpoints in slices of 100. The first
// address comes last in order, as after a change of one endpoint. In "mixed", the addresses of all slices are mixed.
func BenchmarkComputeManySlices(b *testing.B) {
	const count, each = 1_900, 100
	for _, c := range []struct {
		name           string
		slice, address int // from one slice or address to the next
	}{{"one-after-another", each, 1}, {"mixed", 1, count}} {
		b.Run(c.name, func(b *testing.B) {
			var of []*model.EndpointSlice
			for i := range count {
				s := slice(state.IPv4)
				for j := range each {
					at := i*c.slice + j*c.address
					s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, byte(at >> 16), byte(at >> 8), byte(at)}), Ready: true, Serving: true})
				}
				of = append(of, s)
			}
			of[0].Endpoints[0].Addr = netip.AddrFrom4([4]byte{11})
			cfg, node, svc := config(), thisNode(), service()
			cfg.MaxEntries = 10 * count * each
			b.ReportAllocs()
			for b.Loop() {
				brain.Compute(cfg, node, svc, of)
			}
		})
	}
}

// BenchmarkSizeOf measures the time to compute the size of a service.
func BenchmarkSizeOf(b *testing.B) {
	svc, slices := service(), []*model.EndpointSlice{slice(state.IPv4, "10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4", "10.1.0.5")}
	cfg := config()
	b.ReportAllocs()
	for b.Loop() {
		brain.SizeOf(cfg, svc, slices)
	}
}
