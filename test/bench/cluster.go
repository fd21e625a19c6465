package bench

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// NodeName is the node of a synthetic cluster that is measured. It has one in fifty of the endpoints.
const NodeName = "node-00"

const (
	clusterNodes      = 50
	clusterNamespaces = 20
	// maxSliceEndpoints is how many endpoints Kubernetes puts into one slice by default.
	maxSliceEndpoints = 100
)

// Cluster returns the objects of a synthetic cluster, always the same for the same arguments: one node, a service range, and
// services of type ClusterIP with one TCP port, each with ready endpoints that are spread evenly over the cluster's nodes.
// There is room for 1,000,000 services and 8,000,000 endpoints.
func Cluster(services, endpoints int) []model.Object {
	return cluster(services, endpoints, state.IPv4)
}

// DualStackCluster is like [Cluster], with a cluster IP and endpoints of each family for each service.
func DualStackCluster(services, endpoints int) []model.Object {
	return cluster(services, endpoints, state.IPv4, state.IPv6)
}

func cluster(services, endpoints int, families ...state.Family) []model.Object {
	node := &model.Node{Name: NodeName, Zone: "zone-a"}
	serviceCIDR := &model.ServiceCIDR{Name: "kubernetes"}
	for _, f := range families {
		r := rangesOf(f)
		node.Addresses = append(node.Addresses, r.node)
		node.PodCIDRs = append(node.PodCIDRs, r.nodePods)
		serviceCIDR.CIDRs = append(serviceCIDR.CIDRs, r.services)
	}
	objects := make([]model.Object, 0, 2+services*(1+len(families)))
	objects = append(objects, node, serviceCIDR)

	var namespaces [clusterNamespaces]string
	for i := range namespaces {
		namespaces[i] = fmt.Sprintf("namespace-%02d", i)
	}
	for i := range services {
		svc := &model.Service{
			Name:  state.ServiceName{Namespace: namespaces[i%clusterNamespaces], Name: fmt.Sprintf("service-%06d", i)},
			Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}},
		}
		for _, f := range families {
			svc.ClusterIPs = append(svc.ClusterIPs, nth(rangesOf(f).services, i+1))
		}
		objects = append(objects, svc)
		for _, f := range families {
			for first := 0; first < endpoints; first += maxSliceEndpoints {
				objects = append(objects, endpointSlice(svc.Name, f, i*endpoints, first, min(first+maxSliceEndpoints, endpoints)))
			}
		}
	}
	return objects
}

// endpointSlice has the endpoints first to end of a service whose endpoint 0 is the cluster's endpoint base.
func endpointSlice(svc state.ServiceName, f state.Family, base, first, end int) *model.EndpointSlice {
	s := &model.EndpointSlice{
		Namespace: svc.Namespace,
		Name:      fmt.Sprintf("%s-%v-%d", svc.Name, f, first),
		Service:   svc.Name,
		Family:    f,
		Ports:     []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
		Endpoints: make([]model.Endpoint, 0, end-first),
	}
	for i := base + first; i < base+end; i++ {
		s.Endpoints = append(s.Endpoints, model.Endpoint{
			Addr: nth(rangesOf(f).pods, i+1), Ready: true, Serving: true, NodeName: nodeNames[i%clusterNodes],
		})
	}
	return s
}

// nodeNames are shared by all endpoints, as a source of objects would share them.
var nodeNames = func() (names [clusterNodes]string) {
	for i := range names {
		names[i] = fmt.Sprintf("node-%02d", i)
	}
	return names
}()

// ranges are the addresses of a cluster in one family.
type ranges struct {
	node                     netip.Addr
	nodePods, services, pods netip.Prefix
}

var (
	ranges4 = ranges{
		node:     netip.MustParseAddr("192.0.2.1"),
		nodePods: netip.MustParsePrefix("10.128.0.0/24"),
		services: netip.MustParsePrefix("10.96.0.0/12"),
		pods:     netip.MustParsePrefix("10.128.0.0/9"),
	}
	ranges6 = ranges{
		node:     netip.MustParseAddr("2001:db8::1"),
		nodePods: netip.MustParsePrefix("fd00:128::/112"),
		services: netip.MustParsePrefix("fd00:96::/108"),
		pods:     netip.MustParsePrefix("fd00:128::/104"),
	}
)

func rangesOf(f state.Family) *ranges {
	if f == state.IPv6 {
		return &ranges6
	}
	return &ranges4
}

// nth returns the address at distance n from the start of a range.
func nth(p netip.Prefix, n int) netip.Addr {
	b := p.Addr().AsSlice()
	low := b[len(b)-4:]
	binary.BigEndian.PutUint32(low, binary.BigEndian.Uint32(low)+uint32(n))
	addr, _ := netip.AddrFromSlice(b)
	return addr
}
