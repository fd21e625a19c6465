package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// frontendsOf returns the frontends of ports[i] in family, in order (pkg/proxy/serviceport.go, newBaseServiceInfo):
//
//   - the cluster IPs,
//   - for type LoadBalancer its IPs, restricted by guard,
//   - the externalIPs, for any type,
//   - for types NodePort and LoadBalancer the node port, if there is one.
//
// No frontend occurs twice in a service. Of the ports that want the same one, the first in spec order gets it. Within a
// port, ClusterIP comes first, because each service must be reachable on its cluster IP by the internal policy; then
// LoadBalancer before ExternalIP, because the other way round an externalIP would lift the load balancer's source ranges.
func frontendsOf(svc *model.Service, ports []model.ServicePort, i int, family state.Family, guard sourceGuard) []state.Frontend {
	port, earlier := &ports[i], ports[:i]
	var out []state.Frontend
	add := func(kind state.FrontendKind, ip netip.Addr) {
		if familyOf(ip) != family || slices.ContainsFunc(out, func(f state.Frontend) bool { return f.Addr == ip }) {
			return
		}
		f := state.Frontend{Kind: kind, Addr: ip, Port: port.Port}
		if kind == state.LoadBalancer {
			f.Restricted, f.Sources = guard.restricted, guard.sourcesFor(ip)
		}
		out = append(out, f)
	}
	// All ports of a service have the same addresses, so an earlier port with this number has taken them all.
	taken := slices.ContainsFunc(earlier, func(e model.ServicePort) bool {
		return e.Protocol == port.Protocol && e.Port == port.Port
	})
	if !taken {
		for _, ip := range svc.ClusterIPs {
			add(state.ClusterIP, ip)
		}
		if svc.Type == model.TypeLoadBalancer {
			for _, ip := range svc.LoadBalancerIPs {
				add(state.LoadBalancer, ip)
			}
		}
		for _, ip := range svc.ExternalIPs {
			add(state.ExternalIP, ip)
		}
	}
	if hasNodePort(svc, earlier, port) {
		out = append(out, state.Frontend{Kind: state.NodePort, Port: port.NodePort})
	}
	slices.SortFunc(out, state.Frontend.Compare)
	return out
}

// hasNodePort says whether port is reachable on a node port of its own. It has none if
// allocateLoadBalancerNodePorts is false.
func hasNodePort(svc *model.Service, earlier []model.ServicePort, port *model.ServicePort) bool {
	if port.NodePort == 0 || svc.Type != model.TypeNodePort && svc.Type != model.TypeLoadBalancer {
		return false
	}
	return !slices.ContainsFunc(earlier, func(e model.ServicePort) bool {
		return e.Protocol == port.Protocol && e.NodePort == port.NodePort
	})
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
