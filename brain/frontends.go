package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// frame returns the ports of svc, in both families, with their frontends (pkg/proxy/serviceport.go, newBaseServiceInfo):
//
//   - the cluster IPs,
//   - for type LoadBalancer its IPs, restricted by source ranges,
//   - the externalIPs, for any type,
//   - for types NodePort and LoadBalancer the node port, if there is one.
//
// No frontend occurs twice in a service. Of the ports that want the same one, the first in spec order gets it. Ports that b has no
// room for are left out. The ports are in spec order, IPv4 before IPv6.
func frame(svc *model.Service, admitted Families, b *budget) []state.Port {
	var addresses [2]vips
	families := 0
	buf := make([]state.Frontend, 0, 4) // A constant keeps it off the heap; most services have no more.
	for _, family := range [...]state.Family{state.IPv4, state.IPv6} {
		if hasFamily(svc, family) {
			v := vipsOf(buf, svc, family, admitted.Has(family))
			buf = v.frontends[len(v.frontends):]
			addresses[families] = v
			families++
		}
	}
	ports := usablePorts(svc.Ports)
	out := make([]state.Port, 0, len(ports)*families)
	var numbers, nodePorts seen[portNumber]
	for i := range ports {
		port := &ports[i]
		// All ports of a service have the same addresses, so an earlier port with this number has taken them all.
		hasVIPs := numbers.add(portNumber{port.Protocol, port.Port})
		hasNodePort := wantsNodePort(svc, port) && nodePorts.add(portNumber{port.Protocol, port.NodePort})
		if !hasVIPs && !hasNodePort {
			continue
		}
		for _, v := range addresses[:families] {
			if !hasVIPs {
				v = vips{family: v.family}
			}
			nodePort := 0
			if hasNodePort {
				nodePort = 1
			}
			if !b.frontends(port, v.entries+int64(nodePort)) {
				continue
			}
			frontends := append(make([]state.Frontend, 0, len(v.frontends)+nodePort), v.frontends...)
			for k := range frontends {
				frontends[k].Port = port.Port
			}
			if hasNodePort {
				frontends = append(frontends, state.Frontend{Kind: state.NodePort, Port: port.NodePort})
			}
			out = append(out, state.Port{Name: port.Name, Protocol: port.Protocol, Family: v.family, Frontends: frontends})
		}
	}
	return out
}

// portNumber is what one port of a service can have at an address.
type portNumber struct {
	protocol state.Protocol
	number   uint16
}

// wantsNodePort says whether port is to be reachable on a node port. It has none if allocateLoadBalancerNodePorts is false.
func wantsNodePort(svc *model.Service, port *model.ServicePort) bool {
	return port.NodePort != 0 && (svc.Type == model.TypeNodePort || svc.Type == model.TypeLoadBalancer)
}

// vips are the frontends with an address that each port of a service has in one family, in order, without their port number.
type vips struct {
	family    state.Family
	frontends []state.Frontend
	entries   int64 // which the frontends take; if it is more than MaxEntries, not all of them are there
}

// vipsOf returns the frontends with an address of svc in family, perhaps in buf. admitsNode is as for newSourceGuard.
//
// ClusterIP comes first, because each service must be reachable on its cluster IP by the internal policy; then LoadBalancer
// before ExternalIP, because the other way round an externalIP would lift the load balancer's source ranges.
func vipsOf(buf []state.Frontend, svc *model.Service, family state.Family, admitsNode bool) vips {
	v := vips{family: family, frontends: buf}
	guard := newSourceGuard(svc, admitsNode, family)
	var known seen[netip.Addr]
	add := func(kind state.FrontendKind, ips []netip.Addr) {
		for _, ip := range ips {
			if v.entries > MaxEntries || familyOf(ip) != family || !known.add(ip) {
				continue
			}
			v.entries++
			f := state.Frontend{Kind: kind, Addr: ip}
			if kind == state.LoadBalancer && guard.restricted {
				// One more, because it may be among its own sources on some nodes.
				if v.entries += int64(len(guard.sources)) + 1; v.entries > MaxEntries {
					continue
				}
				f.Restricted, f.Sources = true, guard.sourcesFor(ip)
			}
			v.frontends = append(v.frontends, f)
		}
	}
	add(state.ClusterIP, svc.ClusterIPs)
	if svc.Type == model.TypeLoadBalancer {
		add(state.LoadBalancer, svc.LoadBalancerIPs)
	}
	add(state.ExternalIP, svc.ExternalIPs)
	slices.SortFunc(v.frontends, state.Frontend.Compare)
	return v
}

// sourceGuard is what spec.loadBalancerSourceRanges means for the load balancer IPs of one family.
type sourceGuard struct {
	restricted bool
	// sources are the ranges of the family, masked, sorted, without duplicates.
	sources []netip.Prefix
	// admitsNode says that a range contains an address of this node.
	admitsNode bool
}

// newSourceGuard reads the source ranges of svc for family, one of which contains an address of this node if admitsNode. A /0
// of the family admits everybody.
//
// The ranges are filtered by family first, and a family that is left without any is not restricted, although the service
// has ranges of the other family: so does kube-proxy (pkg/proxy/serviceport.go, newBaseServiceInfo; then
// len(LoadBalancerSourceRanges()) == 0 makes no firewall chain), and IPv4 ranges written before a service became
// dual-stack must not cut off its IPv6 clients.
func newSourceGuard(svc *model.Service, admitsNode bool, family state.Family) sourceGuard {
	g := sourceGuard{admitsNode: admitsNode}
	for _, r := range svc.SourceRanges {
		if !r.IsValid() || familyOf(r.Addr()) != family {
			continue
		}
		if r.Bits() == 0 {
			return sourceGuard{}
		}
		g.restricted = true
		g.sources = append(g.sources, r.Masked())
	}
	g.sources = sortedPrefixes(g.sources)
	return g
}

// sourcesFor returns the clients that may connect to the load balancer IP vip.
//
// If the node may connect, so may vip itself: it is often an address of the node too (added by the load balancer's agent),
// and connections from the node to it then have it as source (pkg/proxy/nftables/proxier.go, allowFromNode).
func (g sourceGuard) sourcesFor(vip netip.Addr) []netip.Prefix {
	if !g.admitsNode {
		return g.sources
	}
	return sortedPrefixes(append(slices.Clone(g.sources), netip.PrefixFrom(vip, vip.BitLen())))
}

// sortedPrefixes sorts p in place and drops duplicates.
func sortedPrefixes(p []netip.Prefix) []netip.Prefix {
	slices.SortFunc(p, netip.Prefix.Compare)
	return slices.Compact(p)
}
