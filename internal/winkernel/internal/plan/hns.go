// Package plan works out which HNS endpoints and load balancers a node's services need, and which calls lead there from what HNS
// holds. It is pure.
//
// [Policies] has the load balancers of one service. A [Table] compares the load balancers of all services with the
// objects that HNS holds. It hands out the remaining calls in stages: endpoints first, then load balancers, then the
// removal of unused objects.
package plan

import (
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/state"
)

// The errors of HNS that a dataplane has to distinguish. Others wrap them.
var (
	// ErrNoNetwork: there is no HNS network of that name.
	ErrNoNetwork = errors.New("HNS has no such network")
	// ErrNotFound: the object of a call does not exist, or one that it refers to.
	ErrNotFound = errors.New("HNS has no such object")
	// ErrExists: another load balancer has the address and port, or another endpoint the address.
	ErrExists = errors.New("HNS has such an object already")
	// ErrNotImplemented: this version of Windows cannot do it, whatever its features say.
	ErrNotImplemented = errors.New("this version of HNS cannot do that")
)

// Features are what a version of HNS can do.
type Features struct {
	// DSR: load balancers that leave the client's address as it is.
	DSR bool
	// RemoteSubnet: overlay networks.
	RemoteSubnet bool
	// SessionAffinity: load balancers that keep a client with its endpoint.
	SessionAffinity bool
	// IPv6: load balancers for IPv6.
	IPv6 bool
	// Modify: load balancers can be changed. Otherwise they are deleted and created again.
	Modify bool
}

// Network is an HNS network.
type Network struct {
	ID, Name string
	// Overlay: its packets to other nodes are encapsulated. Other networks (l2bridge) have routes.
	Overlay bool
	// Subnets are the ranges of other nodes in overlay networks.
	Subnets []Subnet
	// Features are the features of the service.
	Features Features
	// HostMACs are the addresses of this machine's interfaces, with their MAC addresses in the notation of HNS (00-15-5D-01-02-03).
	HostMACs map[netip.Addr]string
}

// Subnet is a range of pod addresses on another node.
type Subnet struct {
	Prefix netip.Prefix
	// Provider is the node's own address.
	Provider netip.Addr
}

// Endpoint is an HNS endpoint.
type Endpoint struct {
	// ID is a GUID in lower case.
	ID, Name string
	// Network is the ID of its network.
	Network string
	Addrs   []netip.Addr
	MAC     string
	// Remote: it stands for an address that is not on this node.
	Remote bool
	// Provider is the address of the node that has it, in overlay networks. HNS does not always report it.
	Provider netip.Addr
}

// LoadBalancer is an HNS load balancer with its one port mapping.
type LoadBalancer struct {
	// ID is a GUID in lower case.
	ID string
	// VIPs are its addresses, none for node ports. Switchyard gives it one at most.
	VIPs []netip.Addr
	// SourceVIP is the source address of forwarded connections without FlagDSR; the zero Addr leaves that to HNS.
	SourceVIP netip.Addr
	Flags     uint32
	// Endpoints are IDs, sorted.
	Endpoints []string
	Mappings  []Mapping
}

// Mapping is the port mapping of a load balancer.
type Mapping struct {
	Protocol               state.Protocol
	External, Internal     uint16
	Distribution, MapFlags uint32
}

// The numbers of HNS (hcn.LoadBalancerFlags, LoadBalancerPortMappingFlags and LoadBalancerDistribution).
const (
	FlagDSR  uint32 = 1
	FlagIPv6 uint32 = 2

	MapLocalRoutedVIP uint32 = 2
	MapVIPExternalIP  uint32 = 16

	DistributeBySourceIP uint32 = 2
)

// Key returns the frontend that a load balancer serves. ok is false if it is none that a service proxy makes.
func (lb *LoadBalancer) Key() (key state.FrontendKey, ok bool) {
	if len(lb.VIPs) > 1 || len(lb.Mappings) != 1 {
		return key, false
	}
	key = state.FrontendKey{Family: state.IPv4, Protocol: lb.Mappings[0].Protocol, Port: lb.Mappings[0].External}
	if lb.Flags&FlagIPv6 != 0 {
		key.Family = state.IPv6
	}
	if len(lb.VIPs) == 1 {
		key.Addr, key.Family = lb.VIPs[0], state.FamilyOf(lb.VIPs[0])
	}
	return key, true
}

// Equal reports whether two load balancers are the same in all but their IDs.
func (lb *LoadBalancer) Equal(o *LoadBalancer) bool {
	return slices.Equal(lb.VIPs, o.VIPs) && lb.SourceVIP == o.SourceVIP && lb.Flags == o.Flags &&
		slices.Equal(lb.Endpoints, o.Endpoints) && slices.Equal(lb.Mappings, o.Mappings)
}

// routes reports whether two load balancers have the same frontend, and lead to the same endpoints at the same port. HNS may report other
// values in another way than it was given them, but not these.
func (lb *LoadBalancer) routes(o *LoadBalancer) bool {
	key, ok := lb.Key()
	other, also := o.Key()
	return ok && also && key == other && slices.Equal(lb.Endpoints, o.Endpoints) && lb.Mappings[0].Internal == o.Mappings[0].Internal
}

// Op is what a call does.
type Op uint8

// The calls that change something.
const (
	CreateEndpoint Op = iota + 1
	DeleteEndpoint
	CreateLoadBalancer
	ModifyLoadBalancer
	DeleteLoadBalancer
)

func (o Op) String() string {
	switch o {
	case CreateEndpoint:
		return "create endpoint"
	case DeleteEndpoint:
		return "delete endpoint"
	case CreateLoadBalancer:
		return "create load balancer"
	case ModifyLoadBalancer:
		return "modify load balancer"
	case DeleteLoadBalancer:
		return "delete load balancer"
	}
	return "unknown call"
}

// Call is one call of HNS. Endpoint or LoadBalancer is its object: whole, also where it is deleted.
type Call struct {
	Op           Op
	Endpoint     Endpoint
	LoadBalancer LoadBalancer
}

func (c *Call) String() string {
	switch c.Op {
	case CreateEndpoint, DeleteEndpoint:
		return c.Op.String() + " " + join(c.Endpoint.Addrs)
	}
	key, _ := c.LoadBalancer.Key()
	return c.Op.String() + " " + key.String()
}

func join(addrs []netip.Addr) string {
	var texts []string
	for _, a := range addrs {
		texts = append(texts, a.String())
	}
	return strings.Join(texts, ",")
}
