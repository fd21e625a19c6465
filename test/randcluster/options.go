package randcluster

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
)

// Options specifies what a history's objects are made of. Small pools make objects collide and interact often, which is the
// point. Every pool that is empty gets a default; addresses of both families may be mixed in one pool.
type Options struct {
	// NodeName is the node that is looked at. Default: the name of the first of Nodes.
	NodeName string
	// Nodes are the nodes of the cluster.
	Nodes []Node
	// FixedNodes keeps all Nodes in the cluster with all their addresses. Otherwise they come and go. Zones always change.
	FixedNodes bool
	// Endpoints are what slices may list: each is an address and port on a node. An address is always on the same node,
	// though it may have several ports. Rarely a slice lists an address that no endpoint can have, such as 127.0.0.1.
	Endpoints []Endpoint
	// ServiceCIDRs come and go, one object each. Those that are there at a time may be none.
	ServiceCIDRs []netip.Prefix
	// FixedServiceCIDRs keeps all ServiceCIDRs in the cluster.
	FixedServiceCIDRs bool
	// Admissible makes only objects that a real API server admits, and no two services that want the same address. The pools
	// must have six ClusterIPs of each family, in ServiceCIDRs, and 24 NodePorts, from 30000 to 31999.
	Admissible bool
	// Annotations gives slices weights, endpoints zones, and services ways to balance connections, zone weights, ejection, deadlines and answers to echo
	// requests. Some have values that count as absent. No other proxy knows these annotations.
	Annotations bool
	// SlowStarts are values of the annotation for a slow start. Services have none of it if there are none, and half of them otherwise.
	SlowStarts []string
	// Ranges gives services ranges of ports, too, if Annotations is set. All of them have the same ports.
	Ranges bool
	// ClusterIPs are given to services, to several at once where the dice report it.
	ClusterIPs []netip.Addr
	// LoadBalancerIPs and ExternalIPs are shared between services. The default for ExternalIPs has load balancer IPs, a
	// cluster IP, addresses of nodes and a multicast address in it.
	LoadBalancerIPs []netip.Addr
	ExternalIPs     []netip.Addr
	// SourceRanges are for load balancers.
	SourceRanges []netip.Prefix
	// Ports and NodePorts are port numbers of services.
	Ports     []uint16
	NodePorts []uint16
	// Protocols are the protocols of service ports and packets. Default: TCP, UDP and SCTP.
	Protocols []state.Protocol
	// PodClients and OutsideClients are sources of packets, in addition to the endpoints and this node.
	PodClients     []netip.Addr
	OutsideClients []netip.Addr
	// Foreign are destinations that have nothing to do with any service.
	Foreign []netip.Addr

	// The rest is how the node is set up, as in oracle.World. NodePortAddrs has as its default the first address of each
	// family that Nodes gives to NodeName.
	ServiceProxyName string
	DetectLocal      bool
	MasqueradeAll    bool
	// AllowedExternalIPs are the ranges that external IPs may be in, none for all addresses.
	AllowedExternalIPs []netip.Prefix
	NodeExternalIPs    bool
	// IgnoreExternalIPs is the feature gate AllowServiceExternalIPs, off.
	IgnoreExternalIPs bool
	Budgets           oracle.Budgets
	// NodeHealth lets Nodes become unready, if its rule is on: some long ago, others just now.
	NodeHealth oracle.NodeHealth
	// Edge lets Nodes take part in the edge, and Services be asked for it. Some annotations are bad.
	Edge          bool
	NodePortAddrs func(netip.Addr) bool
}

// Node is a node of the cluster.
type Node struct {
	Name      string
	Addresses []netip.Addr
}

// Endpoint is an address and port on a node at which a pod serves.
type Endpoint struct {
	Addr netip.AddrPort
	Node string
}

// pod is all that Options.Endpoints say about one address.
type pod struct {
	addr  netip.Addr
	node  string
	ports []uint16
}

// pods puts endpoints together by address.
func pods(endpoints []Endpoint) []pod {
	var list []pod
	for _, ep := range endpoints {
		i := slices.IndexFunc(list, func(p pod) bool { return p.addr == ep.Addr.Addr() })
		if i < 0 {
			i = len(list)
			list = append(list, pod{addr: ep.Addr.Addr(), node: ep.Node})
		}
		list[i].ports = append(list[i].ports, ep.Addr.Port())
	}
	return list
}

// withDefaults returns o with every empty pool filled.
func (o Options) withDefaults() Options {
	orDefault(&o.Nodes, []Node{
		{"node-a", addrs("172.16.0.1", "fd00:16::1", "172.16.9.1", "fd00:16:9::1")},
		{"node-b", addrs("172.16.0.2", "fd00:16::2")},
		{"node-c", addrs("172.16.0.3", "fd00:16::3")},
	})
	if o.NodeName == "" {
		o.NodeName = o.Nodes[0].Name
	}
	orDefault(&o.Endpoints, defaultEndpoints(o.Nodes))
	orDefault(&o.ServiceCIDRs, prefixes("10.96.0.0/24", "fd00:96::/112", "10.97.0.0/28"))
	orDefault(&o.ClusterIPs, addrs("10.96.0.1", "10.96.0.2", "10.96.0.3", "10.96.0.4", "10.97.0.1", "10.98.0.1",
		"fd00:96::1", "fd00:96::2", "fd00:96::3", "fd00:98::1"))
	orDefault(&o.LoadBalancerIPs, addrs("203.0.113.1", "203.0.113.2", "fd00:113::1", "fd00:113::2"))
	orDefault(&o.ExternalIPs, slices.Concat(addrs("203.0.113.9", "fd00:113::9"), o.LoadBalancerIPs, o.ClusterIPs[:1],
		o.Nodes[0].Addresses[:1], o.Nodes[len(o.Nodes)-1].Addresses[:1], addrs("239.1.1.1")))
	orDefault(&o.SourceRanges, prefixes("0.0.0.0/0", "::/0", "192.0.2.0/24", "192.0.2.5/32", "192.0.2.77/25",
		"172.16.0.0/24", "172.16.0.0/16", "172.16.9.1/32", "10.244.0.0/16", "203.0.113.0/24", "fd00:2::/64", "fd00:2::5/128",
		"fd00:16::/64", "fd00:16::/32", "fd00:244::/32"))
	orDefault(&o.Ports, []uint16{53, 80, 81})
	orDefault(&o.NodePorts, []uint16{30080, 30081, 30082, 80})
	orDefault(&o.Protocols, []state.Protocol{state.TCP, state.UDP, state.SCTP})
	orDefault(&o.PodClients, addrs("10.244.0.99", "fd00:244::99"))
	orDefault(&o.OutsideClients, addrs("192.0.2.5", "192.0.2.6", "198.51.100.7", "fd00:2::5", "fd00:2::6", "fd00:51::7"))
	orDefault(&o.Foreign, addrs("198.51.100.200", "fd00:51::200"))
	if o.NodePortAddrs == nil {
		o.NodePortAddrs = o.primaryAddress
	}
	return o
}

// primaryAddress reports whether addr is the first address of its family that the pools have for this node.
func (o *Options) primaryAddress(addr netip.Addr) bool {
	for _, first := range o.nodeAddresses() {
		if state.FamilyOf(first) == state.FamilyOf(addr) {
			return first == addr
		}
	}
	return false
}

// nodeAddresses are the addresses that the pools have for this node.
func (o *Options) nodeAddresses() []netip.Addr {
	for _, n := range o.Nodes {
		if n.Name == o.NodeName {
			return n.Addresses
		}
	}
	return nil
}

// defaultEndpoints are seven pods in each family, on the nodes in turn, and one in the network of each node, each with
// three ports.
func defaultEndpoints(nodes []Node) []Endpoint {
	ips := addrs("10.244.0.1", "10.244.0.2", "10.244.0.3", "10.244.0.4", "10.244.0.5", "10.244.0.6", "10.244.0.7",
		"fd00:244::1", "fd00:244::2", "fd00:244::3", "fd00:244::4", "fd00:244::5", "fd00:244::6", "fd00:244::7")
	var eps []Endpoint
	add := func(ip netip.Addr, node string) {
		for _, port := range []uint16{53, 8080, 8081} {
			eps = append(eps, Endpoint{netip.AddrPortFrom(ip, port), node})
		}
	}
	for i, ip := range ips {
		add(ip, nodes[i%len(nodes)].Name)
	}
	for _, n := range nodes {
		for _, f := range families {
			if ips := ofFamily(n.Addresses, f); len(ips) > 0 {
				add(ips[0], n.Name)
			}
		}
	}
	return eps
}

func orDefault[T any](pool *[]T, def []T) {
	if len(*pool) == 0 {
		*pool = def
	}
}

func addrs(texts ...string) []netip.Addr {
	list := make([]netip.Addr, 0, len(texts))
	for _, t := range texts {
		list = append(list, netip.MustParseAddr(t))
	}
	return list
}

func prefixes(texts ...string) []netip.Prefix {
	list := make([]netip.Prefix, 0, len(texts))
	for _, t := range texts {
		list = append(list, netip.MustParsePrefix(t))
	}
	return list
}
