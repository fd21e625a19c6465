//go:build linux

package bench

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// scaledCluster is a synthetic cluster in which anything may be many. 0 is as good as 1 for what there must be one of.
type scaledCluster struct {
	services  int
	ports     int // of each service
	endpoints int // of each service, in slices of perSlice, 100 by default
	perSlice  int
	ranges    int // source ranges of each service
	nodeAddrs int
	nodes     int // others, without addresses
	optedOut  int // namespaces that opt out, each with a service
	claimants int // services that all claim one external IP
	sticky    int // remembered clients of the services, which have affinity then
	flows     int // UDP flows to the last service
	followers int // clients of the API, or relays below
	nodePort  bool
	protocol  state.Protocol // TCP by default
	family    state.Family   // IPv4 by default
}

// scaledRanges has the source ranges, scaledExternal the external addresses.
var (
	scaledRanges   = netip.MustParsePrefix("20.0.0.0/8")
	scaledExternal = netip.MustParsePrefix("198.18.0.0/15")
)

func (c scaledCluster) filled() scaledCluster {
	c.services, c.ports, c.endpoints = max(c.services, 1), max(c.ports, 1), max(c.endpoints, 1)
	c.nodeAddrs = max(c.nodeAddrs, 1)
	if c.perSlice == 0 {
		c.perSlice = maxSliceEndpoints
	}
	if c.protocol == 0 {
		c.protocol = state.TCP
	}
	if c.family == 0 {
		c.family = state.IPv4
	}
	return c
}

// objects returns everything.
func (c scaledCluster) objects() []model.Object {
	c = c.filled()
	r := rangesOf(c.family)
	objects := []model.Object{c.node(), &model.ServiceCIDR{Name: "kubernetes", CIDRs: []netip.Prefix{r.services}}}
	for i := range c.nodes {
		objects = append(objects, &model.Node{Name: nodeNameOf(i), Zone: "zone-b"})
	}
	for i := range c.services {
		objects = append(objects, c.service(i, 0))
		for first := 0; first < c.endpoints; first += c.perSlice {
			objects = append(objects, c.slice(i, first, 0))
		}
	}
	for i := range c.optedOut {
		objects = append(objects, c.namespace(i, true), &model.Service{
			Name:       state.ServiceName{Namespace: optedOutName(i), Name: "service"},
			ClusterIPs: []netip.Addr{nth(r.services, c.services+1+i)}, Ports: c.servicePorts(),
		})
	}
	for i := range c.claimants {
		objects = append(objects, c.claimant(i))
	}
	return objects
}

func (c scaledCluster) node() *model.Node {
	c = c.filled()
	r := rangesOf(c.family)
	node := &model.Node{Name: NodeName, Zone: "zone-a", PodCIDRs: []netip.Prefix{r.nodePods}}
	for i := range c.nodeAddrs {
		node.Addresses = append(node.Addresses, nth(netip.PrefixFrom(r.node, r.node.BitLen()), i))
	}
	return node
}

func (c scaledCluster) servicePorts() []model.ServicePort {
	ports := make([]model.ServicePort, max(c.ports, 1))
	for i := range ports {
		ports[i] = model.ServicePort{Name: fmt.Sprint("p", i), Protocol: c.protocol, Port: uint16(80 + i)}
		if c.nodePort {
			ports[i].NodePort = uint16(30_000 + i)
		}
	}
	return ports
}

// service returns the i-th service. version changes its last source range, if it has any.
func (c scaledCluster) service(i, version int) *model.Service {
	c = c.filled()
	s := &model.Service{Name: scaledName(i), ClusterIPs: []netip.Addr{nth(rangesOf(c.family).services, i+1)}, Ports: c.servicePorts()}
	if c.nodePort {
		s.Type = model.TypeNodePort
	}
	if c.sticky > 0 {
		s.Affinity = 3 * time.Hour
	}
	for n := range c.ranges {
		if n == c.ranges-1 {
			n += version % 2
		}
		s.SourceRanges = append(s.SourceRanges, netip.PrefixFrom(nth(scaledRanges, 16*shuffled(n, c.ranges)), 28))
	}
	if c.ranges > 0 {
		s.Type, s.LoadBalancerIPs = model.TypeLoadBalancer, []netip.Addr{nth(scaledExternal, i+1)}
	}
	return s
}

func scaledName(i int) state.ServiceName {
	return state.ServiceName{Namespace: "namespace", Name: fmt.Sprintf("service-%06d", i)}
}

// slice returns the i-th service's slice with the endpoints from first on. version changes the first of them.
func (c scaledCluster) slice(i, first, version int) *model.EndpointSlice {
	c = c.filled()
	n := min(c.perSlice, c.endpoints-first)
	s := &model.EndpointSlice{
		Namespace: scaledName(i).Namespace, Name: fmt.Sprintf("%s-%d", scaledName(i).Name, first), Service: scaledName(i).Name,
		Family: c.family, Endpoints: make([]model.Endpoint, n),
	}
	for _, p := range c.servicePorts() {
		s.Ports = append(s.Ports, model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: 8000 + p.Port})
	}
	for e := range s.Endpoints {
		at := i*c.endpoints + shuffled(first+e, c.endpoints)
		if e == 0 && version%2 == 1 {
			at = c.services*c.endpoints + i // an address that none has
		}
		s.Endpoints[e] = model.Endpoint{
			Addr: nth(rangesOf(c.family).pods, at+1), Ready: true, Serving: true, NodeName: nodeNames[(at+1)%clusterNodes],
		}
	}
	return s
}

func optedOutName(i int) string { return fmt.Sprintf("opted-out-%06d", i) }

// shuffled returns the i-th of n numbers from 0 in an order of their own, as nobody lists addresses sorted, and n for the n-th.
func shuffled(i, n int) int {
	const stride = 7919 // a prime that divides no size, so that no number comes twice
	if i == n {
		return n
	}
	return i * stride % n
}

// namespace returns the i-th namespace that opts out, or did.
func (c scaledCluster) namespace(i int, disabled bool) *model.Namespace {
	return &model.Namespace{Name: optedOutName(i), ProxyDisabled: disabled}
}

// claimant returns the i-th service that claims the address that all of them want. The first one gets it.
func (c scaledCluster) claimant(i int) *model.Service {
	c = c.filled()
	return &model.Service{
		Name:       state.ServiceName{Namespace: "claimants", Name: fmt.Sprintf("claimant-%06d", i)},
		ClusterIPs: []netip.Addr{nth(rangesOf(c.family).services, c.services+1+i)}, ExternalIPs: []netip.Addr{nth(scaledExternal, 0)},
		Ports: c.servicePorts(),
	}
}

// state returns what a store makes of the cluster.
func (c scaledCluster) state(ctx context.Context) (*state.Update, error) {
	return stateOf(ctx, brain.Config{}, c.objects()...)
}

// record returns the record of the first service, with other versions of the service and of its first slice.
func (c scaledCluster) record(service, slice int) (*state.Service, error) {
	c = c.filled()
	slices := []*model.EndpointSlice{c.slice(0, 0, slice)}
	for first := c.perSlice; first < c.endpoints; first += c.perSlice {
		slices = append(slices, c.slice(0, first, 0))
	}
	r := brain.Compute(&brain.Config{NodeName: NodeName}, c.node(), c.service(0, service), slices)
	if r == nil {
		return nil, fmt.Errorf("the brain has no record of service %v", scaledName(0))
	}
	return r, nil
}
