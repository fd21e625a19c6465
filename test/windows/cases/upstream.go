package cases

import (
	"net/netip"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// The addresses of pods of this node and of other nodes, as in Pods. arrives belongs to another node until a pod of this node has it. nodeB
// is the address of a node, and no node has the address nowhere.
var (
	here1, here2            = addr("10.244.0.1"), addr("10.244.0.4")
	there1, there2, there3  = addr("10.244.0.2"), addr("10.244.0.5"), addr("10.244.0.3")
	nodeB, nowhere, arrives = addr("172.16.0.2"), addr("192.0.2.7"), addr("10.244.0.6")
)

// upstreams are the situations that the tests of upstream's package pkg/proxy/winkernel make, of the release in
// test/windows/upstream/go.mod. The tests look at the proxier's fields. Here the contents of HNS are compared. The
// situations are named after those tests.
//
// These tests make no situation of a cluster, and have no case:
//   - TestGetNetworkByName, TestGetAllEndpointsByNetwork, TestGetEndpointByID, TestGetEndpointByIpAddressAndName, TestCreateEndpointLocal,
//     TestCreateEndpointRemote, TestDeleteEndpoint, TestGetLoadBalancerExisting, TestGetLoadBalancerNew, TestDeleteLoadBalancer: single calls of a real
//     HNS, which upstream skips for the most part.
//   - TestHashEndpoints: the key under which the proxier finds its load balancers again.
//
// These are played in part:
//   - TestGetAllEndpointsByNetworkWithDupEP: that a local and a remote endpoint have one address is in TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP.
//   - TestETP...DualStack: the half of IPv4. IPv6 has a proxier of its own upstream, and Switchyard serves none in overlay networks.
//   - All: counts of references and IDs of objects are the proxier's own.
func upstreams() []Case {
	list := []Case{
		// A node port, an external IP and session affinity: without endpoints there is no load balancer yet, and the test has none.
		{Name: "TestCreateServiceVip", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1", sticky, func(s *model.Service) { s.ExternalIPs = []netip.Addr{addr("198.51.100.81")} }))},
			{Set: set(slice("svc1", there1))},
		}},
		// An endpoint that names no node, in an overlay network.
		{Name: "TestCreateRemoteEndpointOverlay", Overlay: true, Steps: []Step{{Set: set(service("svc1"), slice("svc1", there1))}}},
		// The same in an l2bridge network.
		{Name: "TestCreateRemoteEndpointL2Bridge", Steps: []Step{{Set: set(service("svc1"), slice("svc1", there1))}}},
		// A cluster IP alone, whose clients keep their address.
		{Name: "TestDsrEndpointsAreCreatedCorrectly", Overlay: true, DSR: true, Steps: []Step{{Set: set(service("svc1", internal), slice("svc1", there1))}}},
		// The test asks the proxier whether clients keep their address by externalTrafficPolicy; here a node port shows it, and has an endpoint.
		{Name: "TestDsrNotAppliedToClusterTrafficPolicy", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1"))},
			{Set: set(slice("svc1", there1))},
		}},
		// internalTrafficPolicy: Local. Endpoints on this node come one by one, then one elsewhere; the test's slices name no nodes.
		{Name: "TestClusterIPSvcWithITPLocal", DSR: true, Steps: []Step{
			{Set: set(service("svc1", internal, internalLocal), slice("svc1", here1))},
			{Set: set(slice("svc1", here1, here2))},
			{Set: set(slice("svc1", here1, here2, there1))},
		}},
		// The same, and the slices say where their endpoints are.
		{Name: "TestClusterIPSvcWithITPLocal, with nodes", DSR: true, Steps: []Step{
			{Set: set(service("svc1", internal, internalLocal), on(Node, slice("svc1", here1)))},
			{Set: set(on(Node, slice("svc1", here1, here2)))},
			{Set: set(on(Node, slice("svc1", here1, here2)), named("svc1-2", on("node-b", slice("svc1", there1))))},
		}},
		// Two Services share an endpoint, and one of them goes.
		{Name: "TestSharedRemoteEndpointDelete", DSR: true, Steps: []Step{
			{Set: set(service("svc1"), service("svc2"), slice("svc1", there1), slice("svc2", there1))},
			{Deleted: []model.Ref{service("svc2").Ref(), slice("svc2").Ref()}},
		}},
		// Another node port, and a port of the slice that the Service does not have.
		{Name: "TestSharedRemoteEndpointUpdate", DSR: true, Steps: []Step{
			{Set: set(service("svc1"), service("svc2"), slice("svc1", there1), slice("svc2", there1))},
			{Set: set(service("svc1", func(s *model.Service) { s.Ports[0].NodePort = 30099 }),
				changed(slice("svc1", there1), func(s *model.EndpointSlice) {
					s.Ports = append(s.Ports, model.EndpointPort{Name: "p443", Protocol: state.TCP, Port: 443})
				}))},
		}},
		// Clients of the cluster IP do not keep their address.
		{Name: "TestCreateLoadBalancerWithoutDSR", Overlay: true, Steps: []Step{{Set: set(service("svc1"), slice("svc1", there1))}}},
		// They do.
		{Name: "TestCreateLoadBalancerWithDSR", Overlay: true, DSR: true, Steps: []Step{{Set: set(service("svc1"), slice("svc1", there1))}}},
		// The replacing endpoint has the address of a node. HNS changes load balancers in place.
		{Name: "TestUpdateLoadBalancerWhenSupported", Overlay: true, DSR: true, Modify: true, Steps: []Step{
			{Set: set(service("svc1"), slice("svc1", there1))},
			{Set: set(slice("svc1", nodeB))},
		}},
		// The same, where HNS changes nothing in place.
		{Name: "TestUpdateLoadBalancerWhenUnsupported", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1"), slice("svc1", there1))},
			{Set: set(slice("svc1", nodeB))},
		}},
		// The address of a load balancer, its health checks, and an endpoint on this node.
		{Name: "TestCreateDsrLoadBalancer", Overlay: true, DSR: true, HealthVIPs: true, Steps: []Step{
			{Set: set(service("svc1", balanced, externalLocal), on(Node, slice("svc1", here1)))},
		}},
		// Only the cluster IP has an endpoint for its clients: it is on another node. There is nothing in HNS that answers health checks.
		{Name: "TestClusterIPLBInCreateDsrLoadBalancer", Overlay: true, Steps: []Step{
			{Set: set(service("svc1", balanced, externalLocal), on("node-b", slice("svc1", there1)))},
		}},
		// The endpoint listens at another port than the Service.
		{Name: "TestEndpointSliceWithInternalPortDifferentFromServicePort", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1", internal), changed(on("node-b", slice("svc1", there1)), func(s *model.EndpointSlice) { s.Ports[0].Port = 8080 }))},
		}},
		// The test leaves out the Service's port number, which no API server admits.
		{Name: "TestEndpointSlice", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1", internal), on("node-b", slice("svc1", there1)))},
		}},
		// A slice of no Service, without ports and endpoints, comes, is set again and goes. So does an empty slice of a Service.
		{Name: "TestNoopEndpointSlice", Steps: []Step{
			{Set: set(service("svc1"), slice("svc1", there1))},
			{Set: set(empty(""), empty("svc1"))},
			{Set: set(empty(""), empty("svc1"))},
			{Deleted: []model.Ref{empty("").Ref(), empty("svc1").Ref()}},
			{Deleted: []model.Ref{empty("").Ref(), empty("svc1").Ref()}},
		}},
		// The address of a node, of a pod behind it, and one that is behind no node: the source VIP follows from that.
		{Name: "TestFindRemoteSubnetProviderAddress", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1"), service("svc2"), service("svc3"), slice("svc1", nodeB), slice("svc2", there1), slice("svc3", nowhere))},
			{Set: set(slice("svc1", there1), slice("svc2", there1, nodeB), slice("svc3", there1, nowhere))},
		}},
		// The test's Service has no frontend for clients outside, and an API server refuses the policy there: an external IP makes it one.
		{Name: "TestWinDSRWithOverlayEnabled", Overlay: true, DSR: true, Steps: []Step{
			{Set: set(service("svc1", internal, externalLocal, func(s *model.Service) { s.ExternalIPs = []netip.Addr{addr("198.51.100.81")} }))},
			{Set: set(on(Node, slice("svc1", here1)))},
		}},
		// Addresses of a load balancer in both families, with health checks and either externalTrafficPolicy.
		dualStack("TestETPLocalIngressIPServiceWithPreferDualStack", true, true),
		dualStack("TestETPLocalIngressIPServiceWithRequireDualStack", true, false),
		dualStack("TestETPClusterIngressIPServiceWithPreferDualStack", false, true),
		dualStack("TestETPClusterIngressIPServiceWithRequireDualStack", false, false),
		// Two Services say of one address that it is on this node, and on another one.
		{Name: "TestRemoteAndLocalEndpointsSameIP", Steps: []Step{
			{Set: set(service("svc1", internal), service("svc2", internal), on(Node, slice("svc1", here1)), on("node-b", slice("svc2", here1)))},
		}},
		// A pod of this node comes with the address that others know of another node, then the others go.
		{Name: "TestRemoteEndpointDeleteDoesNotAffectLocalEndpointWithSameIP", Steps: []Step{
			{Set: set(service("svc1"), service("svc2"), shared("svc1", arrives), shared("svc2", arrives))},
			{Made: []netip.Addr{arrives}, Set: set(service("svc3", internal), on(Node, slice("svc3", arrives)))},
			{Deleted: []model.Ref{slice("svc1").Ref(), slice("svc2").Ref()}},
		}},
		// Two Services lose two of the endpoints that they share, and HNS refuses to delete their load balancers. The test ends there; here HNS recovers.
		{Name: "TestEndpointTransitionWithLBFailures", Steps: []Step{
			{Set: set(service("svc1"), service("svc2"), shared("svc1", there1, there2, there3), shared("svc2", there1, there2, there3))},
			{Refused: true, Set: set(shared("svc1", there1), shared("svc2", there1))},
			{},
		}},
	}
	for _, c := range list {
		c.Steps[0].Set = append(c.Steps[0].Set, &model.Node{Name: Node, Addresses: []netip.Addr{addr(NodeAddr)}})
	}
	return list
}

// dualStack is a load balancer of both families. A Service that prefers to have both has one at first here.
func dualStack(name string, local, prefer bool) Case {
	one, both := service("svc1", balanced), service("svc1", balanced)
	both.ClusterIPs = append(both.ClusterIPs, addr("fd00:96::41"))
	v4 := shared("svc1", there1)
	v6 := changed(slice("svc1", addr("fd00:10::1")), func(s *model.EndpointSlice) { s.Name, s.Family = "svc1-v6", state.IPv6 })
	if local {
		one.ExternalLocal, both.ExternalLocal, v4 = true, true, on(Node, slice("svc1", here1))
	} else {
		one.HealthCheckNodePort, both.HealthCheckNodePort = 0, 0 // only a Service with the policy Local has one
	}
	c := Case{Name: name, Overlay: true, DSR: local, HealthVIPs: true, Steps: []Step{{Set: set(both, v4, v6)}}}
	if prefer {
		c.Steps = []Step{{Set: set(one, v4)}, {Set: set(both, v6)}}
	}
	return c
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }

func set(list ...model.Object) []model.Object { return list }

// service is one of type NodePort, changed. Its addresses follow from the last letter of its name.
func service(name string, changes ...func(*model.Service)) *model.Service {
	n := name[len(name)-1] - '0'
	s := &model.Service{
		Name: state.ServiceName{Namespace: "ns1", Name: name}, Type: model.TypeNodePort, ClusterIPs: []netip.Addr{netip.AddrFrom4([4]byte{10, 96, 0, 40 + n})},
		Ports: []model.ServicePort{{Name: "p80", Protocol: state.TCP, Port: 80, NodePort: 30080 + uint16(n)}},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// internal makes a Service one of type ClusterIP.
func internal(s *model.Service) { s.Type, s.Ports[0].NodePort = model.TypeClusterIP, 0 }

func internalLocal(s *model.Service) { s.InternalLocal = true }
func externalLocal(s *model.Service) { s.ExternalLocal = true }
func sticky(s *model.Service)        { s.Affinity = 3 * time.Hour }

// balanced gives a Service the address of a load balancer.
func balanced(s *model.Service) {
	s.Type, s.LoadBalancerIPs, s.HealthCheckNodePort = model.TypeLoadBalancer, []netip.Addr{addr("203.0.113.41")}, 32000
}

// slice is one of a Service, with endpoints that are ready and name no node.
func slice(service string, addrs ...netip.Addr) *model.EndpointSlice {
	s := empty(service)
	s.Name = service + "-1"
	s.Ports = []model.EndpointPort{{Name: "p80", Protocol: state.TCP, Port: 80}}
	for _, a := range addrs {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: a, Ready: true, Serving: true})
	}
	return s
}

// shared is a slice with an endpoint on this node, and others that name no node.
func shared(service string, addrs ...netip.Addr) *model.EndpointSlice {
	s := slice(service, append([]netip.Addr{here1}, addrs...)...)
	s.Endpoints[0].NodeName = Node
	return s
}

func empty(service string) *model.EndpointSlice {
	return &model.EndpointSlice{Namespace: "ns1", Name: "empty-" + service, Service: service, Family: state.IPv4}
}

func on(node string, s *model.EndpointSlice) *model.EndpointSlice {
	for i := range s.Endpoints {
		s.Endpoints[i].NodeName = node
	}
	return s
}

func named(name string, s *model.EndpointSlice) *model.EndpointSlice {
	s.Name = name
	return s
}

func changed(s *model.EndpointSlice, change func(*model.EndpointSlice)) *model.EndpointSlice {
	change(s)
	return s
}
