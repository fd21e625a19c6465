// Package state is the vocabulary of Switchyard: the finished routing state of one node.
//
// A [Service] is everything this node must do for one Kubernetes Service. All of Kubernetes' rules (traffic policies, topology hints,
// terminating endpoints, source ranges, ...) have been applied already. A dataplane programs what it reads. It never needs to know, and
// must never re-interpret, a field of a Kubernetes object.
//
// Every value in this package is plain data. A record that has been published is shared between goroutines and must not be
// modified. Every field of a record takes part in [Service.Equal].
package state

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"time"
)

// Family is an IP family.
type Family uint8

// The IP families, numbered as in the IP header's version field.
const (
	IPv4 Family = 4
	IPv6 Family = 6
)

// FamilyOf returns the family of addr, or 0 for the zero Addr. An IPv4-mapped IPv6 address counts as IPv6; sources unmap
// addresses on arrival, so none occurs in a record.
func FamilyOf(addr netip.Addr) Family {
	switch {
	case addr.Is4():
		return IPv4
	case addr.Is6():
		return IPv6
	}
	return 0
}

func (f Family) String() string {
	switch f {
	case IPv4:
		return "IPv4"
	case IPv6:
		return "IPv6"
	}
	return fmt.Sprintf("Family(%d)", uint8(f))
}

// Protocol is a transport protocol, by its IANA protocol number.
type Protocol uint8

// The protocols a Service port may have.
const (
	TCP  Protocol = 6
	UDP  Protocol = 17
	SCTP Protocol = 132
)

func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return fmt.Sprintf("Protocol(%d)", uint8(p))
}

// ServiceName identifies a Service in the cluster.
type ServiceName struct {
	Namespace string
	Name      string
}

// String returns "namespace/name".
func (n ServiceName) String() string { return n.Namespace + "/" + n.Name }

// Compare orders by namespace, then by name.
func (n ServiceName) Compare(o ServiceName) int {
	if c := cmp.Compare(n.Namespace, o.Namespace); c != 0 {
		return c
	}
	return cmp.Compare(n.Name, o.Name)
}

// Service is what this node must do for one Service. In one published state no two services hold the same frontend.
type Service struct {
	Name ServiceName
	// Ports has one item for each port and IP family, ordered by [Port.Compare].
	Ports []Port
	// HealthCheck is set for services with a healthCheckNodePort.
	HealthCheck HealthCheck
}

// Port is one port of a Service in one IP family. All addresses in it are of that family.
type Port struct {
	// Name is the port's name in the Service; it may be empty if the service has only one.
	Name     string
	Protocol Protocol
	Family   Family
	// Balance is how new connections are shared between endpoints. Affinity wins over it.
	Balance Balance
	// Ejection means that endpoints which do not answer get no new connections while they are silent. A dataplane decides for its node. Only for TCP, and
	// never for a range of ports.
	Ejection bool
	// DrainSeconds is how long connections to an endpoint may stay after it has ceased to get new ones. 0 sets no deadline, as for a range of ports.
	DrainSeconds uint32
	// Frontends are the addresses that clients connect to, ordered by [Frontend.Compare], never empty.
	Frontends []Frontend
	// Internal is for connections to frontends of kind ClusterIP.
	Internal Traffic
	// External is for connections to all other kinds of frontend. Its routes are [Unused] if there are none.
	External Traffic
	// Affinity is how long a client address (ClientIP affinity) stays with its endpoint after its last new connection to any of the
	// port's frontends. It is a whole number of seconds. 0 means none.
	Affinity time.Duration
	// Lingering are serving endpoints of a UDP port that are in no route of Internal and External. They get no new connections there, but UDP flows that they
	// already have must not be deleted. A TCP port also has such endpoints if connections to removed endpoints are to be reset, or if DrainSeconds is set.
	// Empty otherwise, ordered as [Route.Endpoints]. They have no weights.
	Lingering []Endpoint
	// Edge is set for a port whose connections from outside nodes hand over to each other, nil for all others. Such a port is of TCP or UDP, and Edge takes
	// one of its frontends. It has no affinity, no [Balance] other than Random, no refused share in External, no ejection, no deadline and no ranges. Its
	// pointer is shared: a copy of the port has the same Edge.
	Edge *Edge
}

// Frontends yields the frontends of all ports, each with its port, in order. It yields nothing if s is nil.
func (s *Service) Frontends() iter.Seq2[*Port, *Frontend] {
	return func(yield func(*Port, *Frontend) bool) {
		if s == nil {
			return
		}
		for i := range s.Ports {
			p := &s.Ports[i]
			for j := range p.Frontends {
				if !yield(p, &p.Frontends[j]) {
					return
				}
			}
		}
	}
}

// Traffic returns what happens to connections to frontends of a kind. It is the port's own.
func (p *Port) Traffic(kind FrontendKind) *Traffic {
	if kind == ClusterIP {
		return &p.Internal
	}
	return &p.External
}

// Routes returns the four routes of the port, which are its own: of Internal, then of External, Inside first.
func (p *Port) Routes() [4]*Route {
	return [4]*Route{&p.Internal.Inside, &p.Internal.Outside, &p.External.Inside, &p.External.Outside}
}

// Serving returns the lists of all endpoints that may have connections to the port, each ordered by [Endpoint.Compare]: of its routes, of Edge, and
// Lingering. A connection stays valid as long as its endpoint is in one of them. The lists are the port's own.
func (p *Port) Serving() [6][]Endpoint {
	var handedOver []Endpoint
	if p.Edge != nil {
		handedOver = p.Edge.Local.Endpoints
	}
	return [...][]Endpoint{
		p.Internal.Inside.Endpoints, p.Internal.Outside.Endpoints, p.External.Inside.Endpoints, p.External.Outside.Endpoints, handedOver, p.Lingering,
	}
}

// WithPorts returns a copy of the record with other ports. It shares the ports with the caller, and all other memory with s.
func (s *Service) WithPorts(ports []Port) *Service {
	with := *s
	with.Ports = ports
	return &with
}

// Key identifies one of the port's frontends among all.
func (p *Port) Key(f *Frontend) FrontendKey {
	return FrontendKey{p.Family, p.Protocol, f.Addr, f.Port, f.LastPort}
}

// FrontendKey is what at most one Service has in the state of a node: an address and port, or a node port of one family. A single port may be in a
// range of another Service, or of the same one, and wins there. Two ranges of an address and protocol have no port in common.
type FrontendKey struct {
	Family   Family
	Protocol Protocol
	// Addr is the zero Addr for node ports.
	Addr netip.Addr
	Port uint16
	// LastPort is the last port of a range that begins with Port, 0 for a single port.
	LastPort uint16
}

func (k FrontendKey) String() string {
	ports := ""
	if k.LastPort != 0 {
		ports = fmt.Sprintf("-%d", k.LastPort)
	}
	if !k.Addr.IsValid() {
		return fmt.Sprintf("%v node port %d%s/%v", k.Family, k.Port, ports, k.Protocol)
	}
	return fmt.Sprintf("%v%s/%v", netip.AddrPortFrom(k.Addr, k.Port), ports, k.Protocol)
}

// Has reports whether the frontend, which has an address, takes connections to a port of that address.
func (k FrontendKey) Has(port uint16) bool { return k.Port <= port && port <= max(k.Port, k.LastPort) }

// Compare orders the ports of a service: by name, then by protocol, then by family.
func (p *Port) Compare(o *Port) int {
	return cmp.Or(cmp.Compare(p.Name, o.Name), cmp.Compare(p.Protocol, o.Protocol), cmp.Compare(p.Family, o.Family))
}

// FrontendKind specifies where a frontend comes from.
type FrontendKind uint8

// The kinds of frontend.
const (
	ClusterIP FrontendKind = iota + 1
	ExternalIP
	LoadBalancer
	NodePort
)

func (k FrontendKind) String() string {
	switch k {
	case ClusterIP:
		return "ClusterIP"
	case ExternalIP:
		return "ExternalIP"
	case LoadBalancer:
		return "LoadBalancer"
	case NodePort:
		return "NodePort"
	}
	return fmt.Sprintf("FrontendKind(%d)", uint8(k))
}

// Frontend is an address and port that clients connect to.
type Frontend struct {
	Kind FrontendKind
	// Addr is the zero Addr for kind NodePort. The frontend then exists on every node port address of the node, by [Node.NodePorts] and
	// the interfaces that the node has now. A dataplane that listens on sockets waits for an address that no interface has, without a failure.
	// A cluster IP may be a loopback address, which dataplanes of the kernel do not serve.
	Addr netip.Addr
	Port uint16
	// LastPort is the last port of a range that begins with Port, 0 for a single port. Either all frontends of a port are ranges, or none. The
	// endpoints of ranges have port 0: connections keep the port that the client has chosen.
	LastPort uint16
	// Ping means that the node answers echo requests of ICMP to the address, from the clients that the frontend admits and whose connections it
	// forwards. An address answers a client if one of its frontends does. Other clients get no answer. Never set for kind NodePort.
	Ping bool
	// Restricted means that only clients in Sources may connect. New connections of all others are dropped before
	// anything else is looked at, also before a reject verdict. An empty Sources then admits no client.
	Restricted bool
	// Sources are the allowed client addresses of a restricted frontend, masked, sorted, without duplicates.
	Sources []netip.Prefix
}

// Compare orders frontends by kind, address, port and last port.
func (f Frontend) Compare(o Frontend) int {
	return cmp.Or(cmp.Compare(f.Kind, o.Kind), f.Addr.Compare(o.Addr), cmp.Compare(f.Port, o.Port), cmp.Compare(f.LastPort, o.LastPort))
}

// Traffic describes what happens to new connections to a frontend, by where they come from. There are three kinds of client:
//
//   - pods: the source address is one of a pod in the cluster, as the node's local-traffic detector sees it ([Node.LocalDetector]). A
//     node without a detector takes no client for a pod.
//   - the node: the source address is a local address of this node, and it is not a pod.
//   - outside: everybody else.
type Traffic struct {
	// Inside is for connections from pods and from this node.
	Inside Route
	// Outside is for all other connections.
	Outside Route
	// Masquerade specifies which connections get a new source address. A connection of an endpoint to itself through the
	// service (hairpin) is masqueraded in any case.
	Masquerade Masquerade
}

// Balance is how a new connection gets its endpoint.
type Balance uint8

// The ways to balance.
const (
	// Random draws an endpoint for each connection.
	Random Balance = iota
	// HashClient gives all connections of a client address the same endpoint, on all nodes, as long as the endpoint is there.
	HashClient
	// HashConnection does so for each connection by its addresses and ports.
	HashConnection
	// LeastConnections prefers endpoints with fewer connections. A range of ports never has it.
	LeastConnections
)

func (b Balance) String() string {
	switch b {
	case Random:
		return "Random"
	case HashClient:
		return "HashClient"
	case HashConnection:
		return "HashConnection"
	case LeastConnections:
		return "LeastConnections"
	}
	return fmt.Sprintf("Balance(%d)", uint8(b))
}

// Route is where new connections go.
type Route struct {
	// Verdict is [Forward] exactly if Endpoints is not empty.
	Verdict Verdict
	// Refused is the weight of the connections that are rejected, next to the weights of the endpoints. It is 0 unless the route is weighted.
	Refused uint32
	// Endpoints share new connections evenly, or by their weights if the route is weighted. They are ordered by [Endpoint.Compare] and distinct.
	Endpoints []Endpoint
}

// Weighted reports whether the endpoints have weights. Either all have one, or none.
func (r *Route) Weighted() bool { return len(r.Endpoints) > 0 && r.Endpoints[0].Weight != 0 }

// Has reports whether the route has an endpoint.
func (r *Route) Has(a netip.AddrPort) bool {
	_, has := slices.BinarySearchFunc(r.Endpoints, a, func(e Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return has
}

// Even reports whether the endpoints share all connections evenly.
func (r *Route) Even() bool {
	return r.Refused == 0 && !slices.ContainsFunc(r.Endpoints, func(e Endpoint) bool { return e.Weight != r.Endpoints[0].Weight })
}

// Weights returns the weights of the endpoints, 1 each if the route is not weighted, and last Refused if it is not 0. The caller owns the list.
func (r *Route) Weights() []uint32 {
	weights := make([]uint32, len(r.Endpoints), len(r.Endpoints)+1)
	for i, e := range r.Endpoints {
		weights[i] = uint32(max(1, e.Weight))
	}
	if r.Refused > 0 {
		weights = append(weights, r.Refused)
	}
	return weights
}

// Verdict is what happens to a new connection.
type Verdict uint8

// The verdicts.
const (
	// Unused: there is no frontend to which this route applies.
	Unused Verdict = iota
	// Forward to one of the route's endpoints.
	Forward
	// Reject: TCP gets a reset, everything else an ICMP port unreachable.
	Reject
	// Drop silently.
	Drop
)

func (v Verdict) String() string {
	switch v {
	case Unused:
		return "Unused"
	case Forward:
		return "Forward"
	case Reject:
		return "Reject"
	case Drop:
		return "Drop"
	}
	return fmt.Sprintf("Verdict(%d)", uint8(v))
}

// Masquerade specifies which forwarded connections get a source address of this node.
type Masquerade uint8

// The masquerade rules.
const (
	MasqueradeNever Masquerade = iota
	MasqueradeAlways
	// MasqueradeUnlessPod is for connections from the node and from outside, not for those from pods.
	MasqueradeUnlessPod
	// MasqueradeNode is for connections from this node only.
	MasqueradeNode
)

func (m Masquerade) String() string {
	switch m {
	case MasqueradeNever:
		return "Never"
	case MasqueradeAlways:
		return "Always"
	case MasqueradeUnlessPod:
		return "UnlessPod"
	case MasqueradeNode:
		return "Node"
	}
	return fmt.Sprintf("Masquerade(%d)", uint8(m))
}

// Endpoint is one address and port that serves connections. Its key is (service, port, family, address, port).
type Endpoint struct {
	Addr netip.AddrPort
	// Local is true for endpoints on this node.
	Local bool
	// Weight is the endpoint's share of the connections of the route in which it is listed, in proportion to the other weights there. It is 0 in
	// a route that is not weighted. An endpoint that is to get no connections is in no route.
	Weight uint16
}

// Compare orders endpoints by address and port.
func (e Endpoint) Compare(o Endpoint) int { return e.Addr.Compare(o.Addr) }

// HealthCheck is what the health check node port of a Service must answer. Dataplanes ignore it: package node answers the port.
type HealthCheck struct {
	// Port is the TCP port on the node, 0 if the service has none. In one published state no two services have the same, and it is no node port of TCP.
	Port uint16
	// LocalIPv4 and LocalIPv6 are the numbers of distinct addresses of ready endpoints on this node, by family.
	LocalIPv4 int
	LocalIPv6 int
}

// Node has the facts about this node that dataplanes need in addition to its services.
type Node struct {
	Name string
	// Addresses are the node's own addresses as the cluster knows them, the primary address of each family first.
	Addresses []netip.Addr
	// PodCIDRs are the ranges from which this node's pods get addresses, sorted.
	PodCIDRs []netip.Prefix
	// ServiceCIDRs are the ranges from which cluster IPs are taken, sorted. It may be empty if they are not known.
	ServiceCIDRs []netip.Prefix
	// LocalDetector distinguishes connections of pods from all other connections. It is nil in states that do not say, such as the
	// states of a server of an earlier version. Then the dataplane goes by its own configuration.
	LocalDetector *LocalDetector
	// NodePorts are the addresses on which frontends of kind NodePort are served. It is nil as LocalDetector is.
	NodePorts *NodePortAddresses
	// Peers are the nodes of the cluster with this one, ordered by [Peer.Compare]. It is empty unless the edge is on.
	Peers []Peer
}

// Equal reports whether two records are the same in every field. Empty and nil slices are the same.
func (s *Service) Equal(o *Service) bool {
	return s.Name == o.Name && s.HealthCheck == o.HealthCheck &&
		slices.EqualFunc(s.Ports, o.Ports, func(a, b Port) bool { return a.Equal(&b) })
}

// Equal reports whether two ports are the same in every field.
func (p *Port) Equal(o *Port) bool {
	return p.Name == o.Name && p.Protocol == o.Protocol && p.Family == o.Family && p.Affinity == o.Affinity &&
		p.Balance == o.Balance && p.Ejection == o.Ejection && p.DrainSeconds == o.DrainSeconds &&
		slices.EqualFunc(p.Frontends, o.Frontends, Frontend.Equal) &&
		p.Internal.Equal(&o.Internal) && p.External.Equal(&o.External) &&
		slices.Equal(p.Lingering, o.Lingering) && equal(p.Edge, o.Edge)
}

// Equal reports whether two frontends are the same in every field.
func (f Frontend) Equal(o Frontend) bool {
	return f.Kind == o.Kind && f.Addr == o.Addr && f.Port == o.Port && f.LastPort == o.LastPort && f.Ping == o.Ping && f.Restricted == o.Restricted &&
		slices.Equal(f.Sources, o.Sources)
}

// Equal reports whether two traffic rules are the same in every field.
func (t *Traffic) Equal(o *Traffic) bool {
	return t.Masquerade == o.Masquerade && t.Inside.Equal(&o.Inside) && t.Outside.Equal(&o.Outside)
}

// Equal reports whether two routes are the same in every field.
func (r *Route) Equal(o *Route) bool {
	// Nearly always, the memory is the same: most Services treat all clients alike.
	return r.Verdict == o.Verdict && r.Refused == o.Refused && (sameList(r.Endpoints, o.Endpoints) || slices.Equal(r.Endpoints, o.Endpoints))
}

// Equal reports whether two nodes are the same in every field. Empty and nil slices are the same.
func (n *Node) Equal(o *Node) bool {
	if n == o {
		return true // as nearly always: a node may have many addresses
	}
	return n.Name == o.Name && slices.Equal(n.Addresses, o.Addresses) && slices.Equal(n.PodCIDRs, o.PodCIDRs) &&
		slices.Equal(n.ServiceCIDRs, o.ServiceCIDRs) && equal(n.LocalDetector, o.LocalDetector) && equal(n.NodePorts, o.NodePorts) &&
		(sameList(n.Peers, o.Peers) || slices.EqualFunc(n.Peers, o.Peers, func(a, b Peer) bool { return a.Equal(&b) }))
}

// equal compares settings that may be missing.
func equal[T interface{ Equal(T) bool }](a, b *T) bool {
	return a == b || a != nil && b != nil && (*a).Equal(*b)
}
