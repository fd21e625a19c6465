package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// endpoint is one address and port behind a service port.
type endpoint struct {
	at netip.AddrPort
	model.Endpoint
	weight int
}

// endpointsOf lists what the slices of a service say about one of its ports in one family, ready or not, each address and
// port once. Slices join by the port's name and protocol, and it is they who say the number.
func (w *World) endpointsOf(s *model.Service, port model.ServicePort, f state.Family) []endpoint {
	var eps []endpoint
	for _, slice := range w.slicesOf(s.Name, f) {
		for _, sp := range slice.Ports {
			if sp.Name != port.Name || sp.Protocol != port.Protocol {
				continue
			}
			weight, _ := weightOf(slice)
			eps = addEndpoints(eps, slice, sp.Port, weight)
		}
	}
	return eps
}

// slicesOf lists the slices of a service in one family, ordered by name.
func (w *World) slicesOf(name state.ServiceName, f state.Family) []*model.EndpointSlice {
	var found []*model.EndpointSlice
	for _, slice := range w.Slices {
		switch {
		case w.disabled(slice.Namespace):
		case slice.Headless:
		case w.ServiceProxyName != "" && slice.ProxyName != w.ServiceProxyName:
		case slice.Family != f:
		case slice.Service == "" || slice.ServiceName() != name:
		default:
			found = append(found, slice)
		}
	}
	slices.SortFunc(found, func(a, b *model.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// addEndpoints adds the endpoints of a slice on a port to those found before. Of two with the same address and port the one
// that is not terminating stays. If both or neither are, it is the one with the greater weight, and the earlier one of equal weights. An address
// that is not of the slice's family is no endpoint, and neither is one that no pod can have.
func addEndpoints(eps []endpoint, slice *model.EndpointSlice, port uint16, weight int) []endpoint {
	for _, ep := range slice.Endpoints {
		if state.FamilyOf(ep.Addr) != slice.Family || isSpecial(ep.Addr) {
			continue
		}
		at := netip.AddrPortFrom(ep.Addr, port)
		i := slices.IndexFunc(eps, func(other endpoint) bool { return other.at == at })
		switch {
		case i < 0:
			eps = append(eps, endpoint{at, ep, weight})
		case eps[i].Terminating && !ep.Terminating, eps[i].Terminating == ep.Terminating && eps[i].weight < weight:
			eps[i] = endpoint{at, ep, weight}
		}
	}
	return eps
}

// specialRanges are the addresses that neither pods nor externalIPs can have. They are for no host, for the using host itself, for one link
// only, or for multicast.
var specialRanges = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/32"), netip.MustParsePrefix("::/128"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"),
	netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("fe80::/10"),
	netip.MustParsePrefix("224.0.0.0/4"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("255.255.255.255/32"),
}

func isSpecial(addr netip.Addr) bool {
	return slices.ContainsFunc(specialRanges, func(r netip.Prefix) bool { return r.Contains(addr) })
}

// clusterEndpoints are those for traffic policy Cluster: the ready ones, by hints if these are of use. Zone weights replace hints for zones. Without any ready
// one those that are still serving while they terminate. Endpoints on unready nodes are left out where others are left.
func (w *World) clusterEndpoints(s *model.Service, eps []endpoint) []endpoint {
	ready := w.firstOnes(filter(eps, isReady))
	if len(ready) == 0 {
		return w.firstOnes(filter(eps, isServingTerminating))
	}
	if all(ready, func(ep endpoint) bool { return len(ep.NodeHints) > 0 }) {
		here := filter(ready, func(ep endpoint) bool { return slices.Contains(ep.NodeHints, w.NodeName) })
		if len(here) > 0 {
			return here
		}
	}
	if _, _, ok := zoneWeightsOf(s); ok {
		return w.byZone(s, ready)
	}
	zone := w.zone()
	if zone != "" && all(ready, func(ep endpoint) bool { return len(ep.ZoneHints) > 0 }) {
		near := filter(ready, func(ep endpoint) bool { return slices.Contains(ep.ZoneHints, zone) })
		if len(near) > 0 {
			return near
		}
	}
	return ready
}

// localEndpoints are the endpoints for traffic policy Local: the ready ones on this node. Without any, they are the ones on this node that
// still serve while they terminate. Hints do not matter.
func (w *World) localEndpoints(eps []endpoint) []endpoint {
	local := filter(eps, func(ep endpoint) bool { return ep.NodeName == w.NodeName })
	ready := filter(local, isReady)
	if len(ready) > 0 {
		return ready
	}
	return filter(local, isServingTerminating)
}

func isReady(ep endpoint) bool { return ep.Ready }

func isServingTerminating(ep endpoint) bool { return ep.Serving && ep.Terminating }

// zone is this node's zone, empty if it has none or is not known.
func (w *World) zone() string {
	for _, n := range w.Nodes {
		if n.Name == w.NodeName {
			return n.Zone
		}
	}
	return ""
}

// HealthCheckPort is the port on which the node must answer health checks of a service, 0 for none. A node port of any service goes before it, and
// so does the same port of an older service.
func (w *World) HealthCheckPort(name state.ServiceName) uint16 {
	families := []state.Family{state.IPv4, state.IPv6}
	wanted := func(s *model.Service) uint16 {
		if s.HealthCheckNodePort == 0 || s.Type != model.TypeLoadBalancer || !s.ExternalLocal || len(w.routed(s, state.IPv4))+len(w.routed(s, state.IPv6)) == 0 {
			return 0
		}
		return s.HealthCheckNodePort
	}
	i := slices.IndexFunc(w.Services, func(s *model.Service) bool { return s.Name == name })
	if i < 0 || wanted(w.Services[i]) == 0 {
		return 0
	}
	own, number := w.Services[i], wanted(w.Services[i])
	for _, s := range w.Services {
		is := func(port model.ServicePort) bool { return port.NodePort == number && port.Protocol == state.TCP }
		for _, f := range families {
			if !slices.ContainsFunc(s.Ports, is) {
				break
			}
			for _, part := range w.routed(s, f) {
				if part.hasNodePort && is(part.port) {
					return 0
				}
			}
		}
		if s != own && s.HealthCheckNodePort == number && wanted(s) == number && cmp.Or(older(s, own), s.Name.Compare(own.Name)) < 0 {
			return 0
		}
	}
	return number
}

// LocalReady is the number of addresses of a family on this node that have a ready port of a service. The service's health check reports
// this number. It is 0 for services that are not handled or are not in the family.
func (w *World) LocalReady(name state.ServiceName, f state.Family) int {
	addrs := make(map[netip.Addr]bool)
	for _, s := range w.Services {
		if s.Name != name {
			continue
		}
		for _, part := range w.routed(s, f) {
			if part.refuses {
				continue
			}
			eps := w.endpointsOf(s, part.port, f)
			if part.last > 0 {
				eps = w.endpointsOfRange(s, 0, f)
			}
			for _, ep := range takers(eps) {
				if ep.Ready && ep.NodeName == w.NodeName {
					addrs[ep.Addr] = true
				}
			}
		}
	}
	return len(addrs)
}

// Serving lists the serving endpoints of a service port in one family, terminating or not, ordered by address. Only
// they may keep their existing UDP flows. The service must be in the world.
func (w *World) Serving(name state.ServiceName, port string, proto state.Protocol, f state.Family) []netip.AddrPort {
	var serving []netip.AddrPort
	for _, s := range w.Services {
		if s.Name != name {
			continue
		}
		for _, part := range w.routed(s, f) {
			if part.refuses || part.port.Name != port || part.port.Protocol != proto {
				continue
			}
			eps := w.endpointsOf(s, part.port, f)
			if part.last > 0 { // at the port of each connection
				eps = w.endpointsOfRange(s, 0, f)
			}
			for _, ep := range eps {
				if ep.Serving {
					serving = append(serving, ep.at)
				}
			}
		}
	}
	slices.SortFunc(serving, netip.AddrPort.Compare)
	return serving
}

func filter(eps []endpoint, keep func(endpoint) bool) []endpoint {
	var kept []endpoint
	for _, ep := range eps {
		if keep(ep) {
			kept = append(kept, ep)
		}
	}
	return kept
}

func all(eps []endpoint, is func(endpoint) bool) bool {
	return !slices.ContainsFunc(eps, func(ep endpoint) bool { return !is(ep) })
}
