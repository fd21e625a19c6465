package plan

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Settings are the inputs of all plans in addition to the records.
type Settings struct {
	// DSR has connections to cluster IPs keep the client's address.
	DSR bool
	// SourceVIP is the source address of other connections in overlay networks.
	SourceVIP netip.Addr
	// Root is the name of the endpoint to which the addresses of load balancers forward health checks. Empty: they do
	// not. The port is the service's health check port, or HealthzPort if it has none.
	Root        string
	HealthzPort uint16
	// Overlay, Subnets and Features describe the network.
	Overlay  bool
	Subnets  Subnets
	Features Features
	// HostMAC is the MAC address of the interface with the node's address, in overlay networks.
	HostMAC string
	// Node are the node's own addresses, the primary ones first.
	Node []netip.Addr
}

// Equal reports whether two settings are the same.
func (s *Settings) Equal(o *Settings) bool {
	return s.DSR == o.DSR && s.SourceVIP == o.SourceVIP && s.Root == o.Root && s.HealthzPort == o.HealthzPort &&
		s.Overlay == o.Overlay && s.Subnets.Equal(&o.Subnets) && s.Features == o.Features && s.HostMAC == o.HostMAC && slices.Equal(s.Node, o.Node)
}

// primary returns the node's address of a family, the zero Addr if it has none.
func (s *Settings) primary(f state.Family) netip.Addr {
	for _, addr := range s.Node {
		if state.FamilyOf(addr) == f {
			return addr
		}
	}
	return netip.Addr{}
}

// Subnets are the subnets of an overlay network, for looking up addresses. The zero value has none.
type Subnets struct {
	sorted    []Subnet
	providers map[netip.Addr]bool
}

// NewSubnets makes them of what HNS lists in no order.
func NewSubnets(list []Subnet) Subnets {
	s := Subnets{sorted: slices.Clone(list), providers: make(map[netip.Addr]bool, len(list))}
	slices.SortFunc(s.sorted, func(a, b Subnet) int {
		return cmp.Or(a.Prefix.Addr().Compare(b.Prefix.Addr()), cmp.Compare(a.Prefix.Bits(), b.Prefix.Bits()), a.Provider.Compare(b.Provider))
	})
	for _, n := range list {
		s.providers[n.Provider] = true
	}
	return s
}

// Equal reports whether two sets have the same subnets.
func (s *Subnets) Equal(o *Subnets) bool {
	return slices.Equal(s.sorted, o.sorted) && maps.Equal(s.providers, o.providers)
}

// Provider returns the address of the node that has addr, which may be addr itself. It returns the zero Addr if no node
// of the network has addr.
func (s *Subnets) Provider(addr netip.Addr) netip.Addr {
	if s.providers[addr] {
		return addr
	}
	after, _ := slices.BinarySearchFunc(s.sorted, addr, func(n Subnet, addr netip.Addr) int {
		return cmp.Or(n.Prefix.Addr().Compare(addr), -1) // the first one that begins beyond addr
	})
	if after > 0 && s.sorted[after-1].Prefix.Contains(addr) { // subnets of nodes do not overlap
		return s.sorted[after-1].Provider
	}
	return netip.Addr{}
}

// Lost are things that HNS cannot do for a service.
type Lost uint8

// The properties that a service may lose. With the first three, frontends or endpoints are not served at all.
const (
	// SourceRanges: frontends with source ranges are not served.
	SourceRanges Lost = 1 << iota
	// Protocols: frontends of SCTP are not served, nor frontends of IPv6 where HNS does not have it.
	Protocols
	// Endpoints: those that are left out have another port than the others, or an address of this node.
	Endpoints
	// Affinity is missing: HNS does not have it.
	Affinity
	// ClientAddress: endpoints do not see the addresses of clients from outside, because DSR is missing.
	ClientAddress
)

// All lists what may be lost.
func (l Lost) All() []Lost {
	var list []Lost
	for bit := SourceRanges; bit <= ClientAddress; bit <<= 1 {
		if l&bit != 0 {
			list = append(list, bit)
		}
	}
	return list
}

func (l Lost) String() string {
	switch l {
	case SourceRanges:
		return "frontends with loadBalancerSourceRanges are not served, since HNS would admit everybody: remove the ranges, and let the load balancer or a firewall enforce them"
	case Protocols:
		return "SCTP, or IPv6 on this version of Windows or in an overlay network, is not served: HNS does not have it"
	case Endpoints:
		return "endpoints are left out: HNS forwards a frontend to one port number, and not to this node's own address"
	case Affinity:
		return "session affinity has no effect: HNS 12 or later has it"
	case ClientAddress:
		return "endpoints do not see the addresses of clients: this version of HNS has no direct server return"
	}
	return "nothing"
}

// Policy is the load balancer that one frontend needs.
type Policy struct {
	Key  state.FrontendKey
	Kind state.FrontendKind
	// Health: it leads health checks to the root endpoint. Endpoints is empty then.
	Health bool
	// Endpoints are addresses, sorted, without duplicates. Those that are Local have an HNS endpoint already.
	Endpoints []Target
	// Port is the port of the endpoints.
	Port uint16
	// SourceVIP is the source address of what goes to pods of an overlay network. If some endpoints are none, it is the node's own.
	SourceVIP netip.Addr
	Flags     uint32
	MapFlags  uint32
	Affinity  bool
}

// Target is where a policy leads.
type Target struct {
	Addr  netip.Addr
	Local bool
}

// Policies appends the policies of a service to list. It also returns the properties that HNS cannot provide for the
// service.
func Policies(list []Policy, s *state.Service, set *Settings) ([]Policy, Lost) {
	var lost Lost
	first := len(list)
	for i := range s.Ports {
		p := &s.Ports[i]
		if !set.serves(p) {
			lost |= Protocols
			continue
		}
		for j := range p.Frontends {
			f := &p.Frontends[j]
			if f.Restricted {
				lost |= SourceRanges
				continue
			}
			var l Lost
			list, l = appendFrontend(list, p, f, set)
			lost |= l
		}
	}
	if set.Root != "" {
		list = appendHealthChecks(list, first, s, set)
	}
	return list, lost
}

// serves reports whether HNS can have load balancers for a port at all.
func (s *Settings) serves(p *state.Port) bool {
	if p.Protocol != state.TCP && p.Protocol != state.UDP {
		return false
	}
	if s.Overlay { // has one family, the family of its source VIP
		return state.FamilyOf(s.SourceVIP) == p.Family
	}
	return p.Family == state.IPv4 || s.Features.IPv6
}

func appendFrontend(list []Policy, p *state.Port, f *state.Frontend, set *Settings) ([]Policy, Lost) {
	// HNS has one set of endpoints for each frontend. That for outside is what loadBalancers count on: it keeps the clients' addresses.
	traffic := p.Traffic(f.Kind)
	route := &traffic.Outside
	if f.Kind == state.ClusterIP {
		route = &traffic.Inside
	}
	if route.Verdict != state.Forward {
		return list, 0
	}
	targets, port, lost := targetsOf(route.Endpoints, set)
	if len(targets) == 0 {
		return list, lost
	}
	policy := Policy{Key: p.Key(f), Kind: f.Kind, Endpoints: targets, Port: port}
	if policy.Affinity = p.Affinity > 0 && set.Features.SessionAffinity; p.Affinity > 0 && !policy.Affinity {
		lost |= Affinity
	}
	keeps := f.Kind == state.ClusterIP && set.DSR || f.Kind != state.ClusterIP
	if keeps && traffic.Masquerade != state.MasqueradeAlways {
		if set.Features.DSR {
			policy.Flags |= FlagDSR
		} else {
			lost |= ClientAddress
		}
	}
	if f.Kind != state.ClusterIP {
		policy.MapFlags |= MapVIPExternalIP
	}
	if f.Kind == state.NodePort {
		policy.MapFlags |= MapLocalRoutedVIP
	}
	set.finish(&policy)
	return append(list, policy), lost
}

// finish sets what a policy has by its family and network.
func (s *Settings) finish(p *Policy) {
	if p.Key.Family == state.IPv6 {
		p.Flags |= FlagIPv6
	}
	if s.Overlay {
		p.SourceVIP = s.SourceVIP
	}
}

// outside reports whether a remote address does not belong to a pod of an overlay network. A host with such an
// address answers to the node, not to the source VIP.
func (s *Settings) outside(addr netip.Addr) bool {
	provider := s.Subnets.Provider(addr)
	return s.Overlay && (!provider.IsValid() || provider == addr)
}

// targetsOf returns the addresses that HNS can forward to. They have one port: the one that most endpoints have, the lowest of several.
func targetsOf(endpoints []state.Endpoint, set *Settings) (targets []Target, port uint16, lost Lost) {
	count := map[uint16]int{}
	for _, e := range endpoints {
		if !set.ownAddress(e) {
			count[e.Addr.Port()]++
		}
	}
	for p, n := range count {
		if n > count[port] || n == count[port] && p < port {
			port = p
		}
	}
	for _, e := range endpoints { // in the order of their addresses
		if set.ownAddress(e) || e.Addr.Port() != port {
			lost |= Endpoints
			continue
		}
		targets = append(targets, Target{e.Addr.Addr(), e.Local})
	}
	return targets, port, lost
}

// ownAddress reports whether an endpoint is a process of this node itself, for which HNS has no endpoint.
func (s *Settings) ownAddress(e state.Endpoint) bool {
	return slices.Contains(s.Node, e.Addr.Addr())
}

// appendHealthChecks appends the policies that have load balancers' addresses answer health checks. list[first:] are
// the policies of the service.
func appendHealthChecks(list []Policy, first int, s *state.Service, set *Settings) []Policy {
	port := cmp.Or(s.HealthCheck.Port, set.HealthzPort)
	for p, f := range s.Frontends() {
		key := state.FrontendKey{Family: p.Family, Protocol: state.TCP, Addr: f.Addr, Port: port}
		has := func(p Policy) bool { return p.Key == key }
		if f.Kind != state.LoadBalancer || f.Restricted || port == 0 || !set.serves(p) || slices.ContainsFunc(list[first:], has) {
			continue
		}
		policy := Policy{Key: key, Kind: state.LoadBalancer, Health: true, Port: port}
		set.finish(&policy)
		list = append(list, policy)
	}
	return list
}
