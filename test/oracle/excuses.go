package oracle

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// The reasons why a service gets no packet to an address or node port that it names, in addition to [OtherFamily] and
// [NoRoom].
const (
	Headless         = "Headless"         // it has no cluster IP on purpose
	ExternalName     = "ExternalName"     // it is an alias in DNS
	OtherProxy       = "OtherProxy"       // it is another proxy's
	OptedOut         = "OptedOut"         // its namespace has opted out
	NoClusterIP      = "NoClusterIP"      // it has no cluster IP at all
	NoPorts          = "NoPorts"          // it has no port at all
	Refused          = "Refused"          // the address must not be an external IP
	OtherProtocol    = "OtherProtocol"    // it has a port with the number, and another protocol
	NoSuchPort       = "NoSuchPort"       // it has no port with the number
	NodePortProtocol = "NodePortProtocol" // it has a node port with the number, and another protocol
	NotHere          = "NotHere"          // node ports are not served at the address
	NumberTaken      = "NumberTaken"      // an earlier port of it has the number
)

// Naming lists the services that name the destination of a packet, by name. A service names it as an address, or as a node port if the
// destination is an address of this node.
func (w *World) Naming(p probe.Packet) []*model.Service {
	dst := p.Dst.Addr()
	ofNode := w.NodePortAddrs != nil && w.NodePortAddrs(dst) || w.HasAddress(dst)
	var list []*model.Service
	for _, s := range w.Services {
		isNodePort := func(port model.ServicePort) bool { return port.NodePort == p.Dst.Port() }
		if slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), dst) || ofNode && slices.ContainsFunc(s.Ports, isNodePort) {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *model.Service) int { return a.Name.Compare(b.Name) })
	return list
}

// HasAddress reports whether the Node object of this node has an address.
func (w *World) HasAddress(addr netip.Addr) bool {
	return slices.ContainsFunc(w.Nodes, func(n *model.Node) bool { return n.Name == w.NodeName && slices.Contains(n.Addresses, addr) })
}

// Holds reports whether a service is routed, and has an address as a cluster IP.
func (w *World) Holds(s *model.Service, addr netip.Addr) bool {
	return slices.Contains(s.ClusterIPs, addr) && len(w.routed(s, state.FamilyOf(addr))) > 0
}

// Excuses lists all that keeps a service from getting a packet, in the order of the constants.
func (w *World) Excuses(s *model.Service, p probe.Packet) (list []string) {
	dst, number, family := p.Dst.Addr(), p.Dst.Port(), state.FamilyOf(p.Dst.Addr())
	has := func(is func(model.ServicePort) bool) bool { return slices.ContainsFunc(s.Ports, is) }
	earlier := func(same func(a, b model.ServicePort) bool) bool {
		for i, port := range s.Ports {
			if slices.ContainsFunc(s.Ports[:i], func(o model.ServicePort) bool { return o.Protocol == port.Protocol && same(o, port) }) {
				return true
			}
		}
		return false
	}
	ours := s.ProxyName == w.ServiceProxyName && s.HasProxyName == (w.ServiceProxyName != "")
	for _, e := range []struct {
		excuse string
		holds  bool
	}{
		{OtherFamily, len(s.ClusterIPs) > 0 && !hasFamily(s, family)},
		{NoRoom, w.lacksRoom(s)},
		{Headless, s.Headless},
		{ExternalName, s.Type == model.TypeExternalName},
		{OtherProxy, !ours},
		{OptedOut, w.disabled(s.Name.Namespace)},
		{NoClusterIP, len(s.ClusterIPs) == 0},
		{NoPorts, len(s.Ports) == 0},
		{Refused, slices.Contains(s.ExternalIPs, dst) && !w.mayBeExternal(dst)},
		{OtherProtocol, has(func(o model.ServicePort) bool { return o.Port == number && o.Protocol != p.Protocol })},
		{NoSuchPort, !has(func(o model.ServicePort) bool { return o.Port == number })},
		{NodePortProtocol, has(func(o model.ServicePort) bool { return o.NodePort == number && o.Protocol != p.Protocol })},
		{NotHere, w.NodePortAddrs == nil || !w.NodePortAddrs(dst)},
		{NumberTaken, earlier(func(a, b model.ServicePort) bool { return a.Port == b.Port })},
	} {
		if e.holds {
			list = append(list, e.excuse)
		}
	}
	return list
}

// lacksRoom reports whether there is no room for some of what a service could be reached at.
func (w *World) lacksRoom(s *model.Service) bool {
	for _, f := range []state.Family{state.IPv4, state.IPv6} {
		all, _ := w.portParts(s, 0)
		wants := slices.DeleteFunc(all, func(p portPart) bool { return p.family != f })
		if len(w.routed(s, f)) < len(wants) {
			return true
		}
	}
	return false
}

// Losers lists the services that want what a packet is addressed to, and another service has, by name.
func (w *World) Losers(p probe.Packet) []state.ServiceName {
	claims := w.addressClaims(p)
	if len(claims) == 0 {
		claims = w.nodePortClaims(p)
	}
	holder, _ := winner(claims)
	var names []state.ServiceName
	for _, c := range claims {
		if c.service != holder.service {
			names = append(names, c.service.Name)
		}
	}
	slices.SortFunc(names, state.ServiceName.Compare)
	return slices.Compact(names)
}

// NotAdmitted reports whether the source of a packet is not among those that may connect.
func (w *World) NotAdmitted(p probe.Packet) bool {
	c, ok := w.addressClaim(p)
	return ok && c.kind == state.LoadBalancer && !w.sourceAllowed(c.service, p)
}

// Rules are those by which endpoints were chosen for a packet. They are empty if they had no part in it.
type Rules struct {
	// Policy is the traffic policy of the service, Local or Cluster, whether it concerns the client or not.
	Policy string
	// Unready are the nodes, in order, whose endpoints come last.
	Unready []string
	// NodeHints and ZoneHints are what hints of endpoints did.
	NodeHints, ZoneHints string
	// ZoneWeights is the annotation of the service with its two weights, empty without a valid one, and Zones what it does for policy Cluster.
	ZoneWeights, Zones string
	// SlowStart is the annotation of the service, 0 without a valid one.
	SlowStart time.Duration
	// Terminating is set if endpoints get connections while they terminate, because no other one is ready.
	Terminating bool
	// Restricted is set if not everybody may connect.
	Restricted bool
	// Balance is the value of the annotation that asks for something other than random draws, also where session affinity wins over it. It is empty without
	// a valid one.
	Balance string
	// DrainSeconds is the deadline of connections, also where there are none. 0 is none.
	DrainSeconds uint32
	// Ping is set if the address would answer echo requests if its ports forwarded connections, and Answers if it answers the client.
	Ping, Answers bool
	// SlicesWithout are the slices of the service without the port that has the packet, each with the reason.
	SlicesWithout map[string]string
	// Twins is how many endpoints do not count because another one has the same address and port.
	Twins int
}

// The effects of hints.
const (
	HintsUsed    = "Used"         // only endpoints that are hinted for here get the packet
	SomeUnhinted = "SomeUnhinted" // not all ready endpoints have hints, so that they do not count
	NoneForHere  = "NoneForHere"  // all have, and none for here, so that they do not count
)

// Rules returns the rules for a packet, and whether a service has it.
func (w *World) Rules(p probe.Packet) (r Rules, ok bool) {
	c, ok := w.addressClaim(p)
	if !ok {
		c, ok = w.nodePortClaim(p)
	}
	if !ok {
		return r, false
	}
	family := state.FamilyOf(p.Dst.Addr())
	r.Policy = "Cluster"
	if c.kind == state.ClusterIP && c.service.InternalLocal || c.kind != state.ClusterIP && w.externalLocal(c.service) {
		r.Policy = "Local"
	}
	r.Restricted = c.kind == state.LoadBalancer && w.sourcesOf(c.service, family) > 0
	r.Balance, r.SlowStart = drawsOf(c.service), slowStartOf(c.service)
	if same, other, ok := zoneWeightsOf(c.service); ok {
		r.ZoneWeights = fmt.Sprintf("same=%d,other=%d", same, other)
	}
	if p.Protocol == state.TCP {
		r.DrainSeconds = drainOf(c.service)
	}
	r.Ping, r.Answers = w.pings(p)
	r.SlicesWithout = w.slicesWithout(c, family)
	if c.refuses {
		return r, true
	}
	eps := takers(w.endpointsOf(c.service, c.port, family))
	r.Twins = w.twins(c, family)
	pool, chosen := eps, w.clusterEndpoints(c.service, eps)
	if w.usesLocal(c, p) {
		pool, chosen = filter(eps, func(ep endpoint) bool { return ep.NodeName == w.NodeName }), w.localEndpoints(eps)
	}
	ready := filter(pool, isReady)
	r.Terminating = len(ready) == 0 && len(chosen) > 0
	if w.usesLocal(c, p) {
		return r, true
	}
	for _, ep := range eps {
		if w.comesLast(ep.NodeName) {
			r.Unready = append(r.Unready, ep.NodeName)
		}
	}
	slices.Sort(r.Unready)
	r.Unready = slices.Compact(r.Unready)
	ready = w.firstOnes(ready)
	r.NodeHints = useOfHints(ready, w.NodeName, func(ep endpoint) []string { return ep.NodeHints })
	if r.ZoneWeights != "" {
		r.Zones = w.zoneUse(ready)
	} else if r.NodeHints != HintsUsed {
		r.ZoneHints = useOfHints(ready, w.zone(), func(ep endpoint) []string { return ep.ZoneHints })
	}
	return r, true
}

func useOfHints(ready []endpoint, here string, hints func(endpoint) []string) string {
	hinted := filter(ready, func(ep endpoint) bool { return len(hints(ep)) > 0 })
	near := filter(hinted, func(ep endpoint) bool { return here != "" && slices.Contains(hints(ep), here) })
	switch {
	case len(hinted) == 0:
		return ""
	case len(hinted) < len(ready):
		return SomeUnhinted
	case len(near) == 0:
		return NoneForHere
	}
	return HintsUsed
}

// slicesWithout lists why slices of a service have no endpoint for one of its ports.
func (w *World) slicesWithout(c claim, f state.Family) map[string]string {
	without := map[string]string{}
	for _, slice := range w.Slices {
		has := slices.ContainsFunc(slice.Ports, func(sp model.EndpointPort) bool { return sp.Name == c.port.Name && sp.Protocol == c.port.Protocol })
		switch {
		case slice.Service == "" || slice.ServiceName() != c.service.Name:
		case slice.Headless:
			without[slice.Name] = Headless
		case w.ServiceProxyName != "" && slice.ProxyName != w.ServiceProxyName:
			without[slice.Name] = OtherProxy
		case slice.Family != f:
			without[slice.Name] = OtherFamily
		case !has:
			without[slice.Name] = NoSuchPort
		}
	}
	return without
}

// twins counts the endpoints behind a service port that have the address and port of another one.
func (w *World) twins(c claim, f state.Family) (n int) {
	for _, slice := range w.slicesOf(c.service.Name, f) {
		for _, sp := range slice.Ports {
			if sp.Name == c.port.Name && sp.Protocol == c.port.Protocol {
				n += len(slice.Endpoints)
			}
		}
	}
	return n - len(w.endpointsOf(c.service, c.port, f)) - len(w.impossible(c, f))
}
