package brain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Reason is a word for why a Service, a part of it, an EndpointSlice or an endpoint does not get connections. An object
// that gets connections has the empty Reason.
type Reason string

// The reasons.
const (
	// NoService: there is no Service object.
	NoService Reason = "NoService"
	// Headless: the Service has no cluster IP on purpose (clusterIP: None), or the slice is one of such a Service.
	Headless Reason = "Headless"
	// ExternalName: the Service is an alias in DNS.
	ExternalName Reason = "ExternalName"
	// OtherProxy: by its label service.kubernetes.io/service-proxy-name, the Service or slice is for another service proxy.
	OtherProxy Reason = "OtherProxy"
	// NothingToRoute: the Service has no port or no cluster IP that could be routed, or there is no room for it.
	NothingToRoute Reason = "NothingToRoute"
	// NoClusterIP: the Service has no cluster IP of the family of the address.
	NoClusterIP Reason = "NoClusterIP"
	// NotLoadBalancer: the address is in status.loadBalancer of a Service of another type.
	NotLoadBalancer Reason = "NotLoadBalancer"
	// Refused: an externalIP must not be routed. See [AdmitExternalIPs].
	Refused Reason = "Refused"
	// Invalid: the port has no number, or an unknown protocol.
	Invalid Reason = "Invalid"
	// Duplicate: the Service has the address or port already, or another endpoint has the same address and port and goes before this one.
	Duplicate Reason = "Duplicate"
	// NumberTaken: an earlier port of the Service has the number and protocol.
	NumberTaken Reason = "NumberTaken"
	// NoRoom: the Service has more entries or frontends than it may have. See [MaxEntries] and [Config.MaxFrontends].
	NoRoom Reason = "NoRoom"

	// OtherFamily: the slice or endpoint is of another IP family, or of none.
	OtherFamily Reason = "OtherFamily"
	// NoSuchPort: the slice has no port with the name and protocol of the Service's.
	NoSuchPort Reason = "NoSuchPort"
	// Special: no endpoint can have the address. See [model.Special].
	Special Reason = "Special"
	// NotReady: the endpoint is not ready.
	NotReady Reason = "NotReady"
	// Terminating: the endpoint terminates, and others are ready.
	Terminating Reason = "Terminating"
	// NotServing: the endpoint terminates and no longer serves.
	NotServing Reason = "NotServing"
	// OtherNode: the endpoint is on another node, or on no known one, and the policy is Local.
	OtherNode Reason = "OtherNode"
	// NoWeight: the annotation of the slice with its weight is 0.
	NoWeight Reason = "NoWeight"
	// NoZoneWeight: the weight of the zone of the endpoint is 0 for this node, and endpoints of the other kind of zone are ready.
	NoZoneWeight Reason = "NoZoneWeight"
	// NodeUnready: the Node of the endpoint is unready ([NodeHealth]), and there are endpoints on other Nodes.
	NodeUnready Reason = "NodeUnready"
	// HintedElsewhere: the hints of the endpoint name other nodes or zones, and hints are in use.
	HintedElsewhere Reason = "HintedElsewhere"
)

// HintUse is a word for whether hints of a kind choose among endpoints.
type HintUse string

// The uses of hints.
const (
	// NoHints: no ready endpoint has hints of the kind.
	NoHints HintUse = "NoHints"
	// SomeUnhinted: some ready endpoints have them and others have not, so that they do not count.
	SomeUnhinted HintUse = "SomeUnhinted"
	// NoneForHere: all ready endpoints have them, but none is for here, so that they do not count.
	NoneForHere HintUse = "NoneForHere"
	// HintsUsed: only endpoints that are hinted for here get connections.
	HintsUsed HintUse = "Used"
)

// Policy is a traffic policy as it is in force.
type Policy uint8

// The policies.
const (
	// PolicyUnused: there is no frontend to which the policy applies.
	PolicyUnused Policy = iota
	PolicyCluster
	PolicyLocal
)

func (p Policy) String() string { return [...]string{"Unused", "Cluster", "Local"}[p] }

// Explanation is why the record of a Service is as it is on a node.
type Explanation struct {
	// Record is what [Compute] returns.
	Record *state.Service
	// NotRouted is why there is no record.
	NotRouted Reason
	// Zone is the zone of the node, empty if it is not known.
	Zone string
	// Addresses and UnroutedPorts are left out of the record.
	Addresses     []UnroutedAddress
	UnroutedPorts []UnroutedPort
	// Settings are what the annotations of the Service ask for.
	Settings Settings
	// Ports has one item for each port of the record, in no order.
	Ports []PortReasons
}

// UnroutedAddress is an address of a Service that is no frontend.
type UnroutedAddress struct {
	Kind   state.FrontendKind
	Addr   netip.Addr
	Reason Reason
}

// UnroutedPort is a port of a Service that is not reached at its addresses.
type UnroutedPort struct {
	Port model.ServicePort
	// Family is 0 for all families.
	Family state.Family
	Reason Reason
}

// PortReasons is why connections to a port go where they go.
type PortReasons struct {
	Name     string
	Protocol state.Protocol
	Family   state.Family
	// NoRoom reports whether all endpoints are left out because there is no room for them.
	NoRoom bool
	// Internal and External are by what policy connections to cluster IPs, and to all other frontends, find their endpoints. The
	// External policy Local is for clients outside of the cluster; all others find theirs by policy Cluster.
	Internal, External Policy
	// ClusterTerminates and LocalTerminates report whether no endpoint that the policy could choose is ready, so that it takes those that
	// are serving while they terminate.
	ClusterTerminates, LocalTerminates bool
	// NodeHints and ZoneHints are whether hints choose among the endpoints of policy Cluster, except for endpoints with the reason NodeUnready. ZoneHints
	// is empty if NodeHints are used, and if the Service has zone weights, which replace them.
	NodeHints, ZoneHints HintUse
	// Zones is whether zone weights count for policy Cluster, with the zones of endpoints for hints. It is empty without zone weights, and if NodeHints
	// are used.
	Zones HintUse
	// Edge is why nodes do not hand connections from outside over to each other, empty if they do. EdgeNode is the node of the reason [EdgeNodeApart].
	Edge     EdgeReason
	EdgeNode string
	// Endpoints are all that slices name for the port.
	Endpoints []EndpointReasons
	// Slices name no endpoint for the port.
	Slices []SliceReasons
}

// EndpointReasons is why an endpoint gets connections or not.
type EndpointReasons struct {
	Addr     netip.AddrPort
	Slice    *model.EndpointSlice
	Endpoint *model.Endpoint
	// Unusable is why no policy can choose the endpoint.
	Unusable Reason
	// Cluster and Local are why the policy does not choose it. They are empty if it does, and if the policy is not in use.
	Cluster, Local []Reason
	// Weight is the weight of the endpoint, if Weighted reports that the endpoints of the port have weights. With zone weights or a slow start, it is the
	// weight in the route of connections to cluster IPs. If the endpoint is not in that route, it is the weight in the other one.
	Weight   int
	Weighted bool
	// ZoneWeight is a factor of that weight for policy Cluster. It is 0 if zone weights do not count.
	ZoneWeight uint16
	// SlowStart is a factor of that weight from 0.1 to 1. It is 0 for an endpoint that is not new.
	SlowStart float64

	index int // of Endpoint in Slice
}

// Pod returns the name of the endpoint's pod, which is in the namespace of the slice. It is empty if it is not known.
func (r *EndpointReasons) Pod() string { return r.Slice.Pods.At(r.index) }

// SliceReasons is why a slice has no endpoint for a port.
type SliceReasons struct {
	Slice  *model.EndpointSlice
	Reason Reason
}

// Explain is [Compute] with its reasons.
func Explain(cfg *Config, node *model.Node, svc *model.Service, slices []*model.EndpointSlice) *Explanation {
	e := &Explanation{Zone: locate(cfg, node).zone}
	e.Record = computeOn(cfg, node, svc, slices, e)
	return e
}

// Port returns the reasons of a port of the record, nil if it has none such.
func (e *Explanation) Port(p *state.Port) *PortReasons {
	i := slices.IndexFunc(e.Ports, func(r PortReasons) bool {
		return r.Name == p.Name && r.Protocol == p.Protocol && r.Family == p.Family
	})
	if i < 0 {
		return nil
	}
	return &e.Ports[i]
}

// In reports whether a policy chooses the endpoint, if the policy is in use.
func (r *EndpointReasons) In(p Policy) bool { return r.Unusable == "" && len(r.Out(p)) == 0 }

// Out returns why a policy does not choose the endpoint.
func (r *EndpointReasons) Out(p Policy) []Reason {
	switch {
	case r.Unusable != "":
		return []Reason{r.Unusable}
	case p == PolicyLocal:
		return r.Local
	}
	return r.Cluster
}

// The notes below are for callers that ask for reasons; for all others e is nil.

func (e *Explanation) notRouted(reason Reason) {
	if e != nil {
		e.NotRouted = reason
	}
}

func (e *Explanation) settings(s Settings) {
	if e != nil {
		e.Settings = s
	}
}

func (e *Explanation) unroutedAddress(kind state.FrontendKind, addr netip.Addr, reason Reason) {
	if e != nil {
		e.Addresses = append(e.Addresses, UnroutedAddress{kind, addr, reason})
	}
}

// unroutedPort notes a port that is left out in a family, 0 for all.
func (e *Explanation) unroutedPort(port *model.ServicePort, family state.Family, reason Reason) {
	if e != nil {
		e.UnroutedPorts = append(e.UnroutedPorts, UnroutedPort{*port, family, reason})
	}
}

// withoutFamily notes the addresses of a family in which the Service has no cluster IP.
func (e *Explanation) withoutFamily(svc *model.Service, family state.Family) {
	if e != nil {
		e.unroutedAddresses(state.LoadBalancer, svc.LoadBalancerIPs, family, NoClusterIP)
		e.unroutedAddresses(state.ExternalIP, svc.ExternalIPs, family, NoClusterIP)
	}
}

// notLoadBalancer notes the load balancer IPs of a Service of another type.
func (e *Explanation) notLoadBalancer(svc *model.Service, family state.Family) {
	if e != nil {
		e.unroutedAddresses(state.LoadBalancer, svc.LoadBalancerIPs, family, NotLoadBalancer)
	}
}

func (e *Explanation) unroutedAddresses(kind state.FrontendKind, addrs []netip.Addr, family state.Family, reason Reason) {
	for _, addr := range addrs {
		if familyOf(addr) == family {
			e.unroutedAddress(kind, addr, reason)
		}
	}
}

// port notes how the routes of a claim were chosen from the endpoints that slices have.
func (e *Explanation) port(
	c *claim, fits bool, here location, from *supply, parts []part, eps, active candidates, sh shares, by choice, apart EdgeReason, node string,
) {
	r := PortReasons{
		Name: c.port.Name, Protocol: c.port.Protocol, Family: c.family, NoRoom: !fits, Internal: by.internal, External: by.external,
		ClusterTerminates: by.cluster.mask != 0 && by.cluster.want&ready == 0,
		LocalTerminates:   by.local.mask != 0 && by.local.want&ready == 0,
		Edge:              apart, EdgeNode: node,
	}
	t := active.tally(active.ready())
	r.NodeHints = t.use(nodeHinted, nodeHere)
	switch {
	case r.NodeHints == HintsUsed:
	case here.weighs:
		r.Zones = t.use(zoned, near)
	default:
		r.ZoneHints = t.use(zoneHinted, zoneHere)
	}
	_, inCluster := sh.best(active)
	noted := make(map[netip.AddrPort]bool)
	weighted := isWeighted(parts)
	for _, part := range parts {
		for i := range part.slice.Endpoints {
			ep := &part.slice.Endpoints[i]
			at := EndpointReasons{Addr: netip.AddrPortFrom(ep.Addr, part.port), Slice: part.slice, Endpoint: ep, index: i, Weighted: weighted}
			at.Weight = max(int(part.among(weighted)), 0) // noWeight is 0
			is := here.traitsOf(ep)
			at.judge(is, c.family, noted, eps, by)
			if e.Settings.multiplies() && at.Unusable == "" {
				at.multiplied(is, inCluster, by)
			}
			r.Endpoints = append(r.Endpoints, at)
		}
	}
	slices.SortStableFunc(r.Endpoints, func(a, b EndpointReasons) int { return a.Addr.Compare(b.Addr) })
	for _, s := range from.slices {
		if reason := from.reason(c, s, parts); reason != "" {
			r.Slices = append(r.Slices, SliceReasons{s, reason})
		}
	}
	e.Ports = append(e.Ports, r)
}

// judge notes why an endpoint with these traits is not among eps, or was not chosen from them.
func (r *EndpointReasons) judge(is traits, family state.Family, noted map[netip.AddrPort]bool, eps candidates, by choice) {
	i, found := slices.BinarySearchFunc(eps, r.Addr, func(c candidate, at netip.AddrPort) int { return c.addr.Compare(at) })
	switch {
	case !found && familyOf(r.Addr.Addr()) != family:
		r.Unusable = OtherFamily
	case !found && model.Special(r.Addr.Addr()) != "":
		r.Unusable = Special
	case !found:
		r.Unusable = NoRoom
	case eps[i].is != is || noted[r.Addr]:
		r.Unusable = Duplicate
	case eps[i].weight == noWeight:
		noted[r.Addr] = true
		r.Weight = 0
		r.Unusable = NoWeight
	default:
		noted[r.Addr] = true
		r.Weight = int(eps[i].weight) // of several slices, the largest
		r.Cluster, r.Local = by.cluster.reasons(is), by.local.reasons(is)
	}
}

// multiplied notes the weight in the routes of an endpoint with these traits, and its factors. sh are for policy Cluster.
func (r *EndpointReasons) multiplied(is traits, sh shares, by choice) {
	inCluster, inLocal := weightIn(by.clusterTo, r.Addr), weightIn(by.localTo, r.Addr)
	r.Weighted, r.Weight = true, cmp.Or(inCluster, inLocal)
	if by.internal == PolicyLocal && inLocal > 0 {
		r.Weight = inLocal
	}
	if r.Weight == 0 || is&ready == 0 {
		return
	}
	if inCluster > 0 && sh.zones != (ZoneWeights{}) {
		r.ZoneWeight = uint16(sh.zones.of(is))
	}
	if i, found := slices.BinarySearchFunc(sh.young, r.Addr.Addr(), func(y Young, at netip.Addr) int { return y.Addr.Compare(at) }); found {
		r.SlowStart = sh.young[i].Factor()
	}
}

// weightIn returns the weight of an endpoint of a route, 1 if it has none, and 0 if it is not in the route.
func weightIn(route []state.Endpoint, addr netip.AddrPort) int {
	i, found := slices.BinarySearchFunc(route, state.Endpoint{Addr: addr}, state.Endpoint.Compare)
	if !found {
		return 0
	}
	return max(1, int(route[i].Weight))
}

// reasons returns why an endpoint is not selected, in the order of the constants. Only of ready endpoints do hints matter.
func (s selection) reasons(is traits) (why []Reason) {
	misses := s.misses(is)
	if is&ready == 0 && misses&(ready|serving|lasting) != 0 {
		switch {
		case is&lasting != 0:
			why = append(why, NotReady)
		case is&serving != 0:
			why = append(why, Terminating)
		default:
			why = append(why, NotServing)
		}
	}
	if misses&local != 0 {
		why = append(why, OtherNode)
	}
	switch {
	case len(why) == 0 && misses&nodeUp != 0:
		why = append(why, NodeUnready) // which hints are not about
	case is&ready != 0 && misses&(nodeHere|zoneHere) != 0:
		why = append(why, HintedElsewhere)
	case is&ready != 0 && misses&near != 0:
		why = append(why, NoZoneWeight)
	}
	return why
}

// reason returns why a slice is none of the parts of a claim, empty if it is one.
func (su *supply) reason(c *claim, s *model.EndpointSlice, parts []part) Reason {
	if s == nil || slices.ContainsFunc(parts, func(p part) bool { return p.slice == s }) {
		return ""
	}
	if reason := skipsSlice(su.cfg, s); reason != "" {
		return reason
	}
	if s.Family != c.family {
		return OtherFamily
	}
	return NoSuchPort
}
