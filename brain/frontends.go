package brain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// frame returns the ports of claims, with their frontends. addresses are the addresses of the service, by family.
func frame(cfg *Config, claims []claim, addresses *[2]vips) []state.Port {
	out := make([]state.Port, 0, len(claims))
	for i := range claims {
		c := &claims[i]
		frontends := make([]state.Frontend, 0, c.frontends)
		switch vips := &addresses[indexOf(c.family)]; {
		case c.last != 0:
			frontends = append(frontends, cfg.rangeFrontends(vips.frontends)...)
		case c.hasVIPs:
			frontends = append(frontends, vips.frontends...)
		}
		for k := range frontends {
			frontends[k].Port, frontends[k].LastPort = c.port.Port, c.last
		}
		if c.hasNodePort {
			frontends = append(frontends, state.Frontend{Kind: state.NodePort, Port: c.port.NodePort})
		}
		out = append(out, state.Port{Name: c.port.Name, Protocol: c.port.Protocol, Family: c.family, Frontends: frontends})
	}
	return out
}

// indexOf is the place of a family in arrays of both.
func indexOf(family state.Family) int {
	if family == state.IPv4 {
		return 0
	}
	return 1
}

// claimsOf appends to buf the ports of svc, in both families, with their frontends (pkg/proxy/serviceport.go,
// newBaseServiceInfo):
//
//   - the cluster IPs,
//   - for type LoadBalancer its IPs, restricted by source ranges,
//   - the externalIPs that cfg allows, for any type,
//   - for types NodePort and LoadBalancer the node port, if there is one.
//
// A frontend occurs once in a service. If several ports want the same frontend, the first in spec order gets it. The ranges of ports follow, which
// have no node ports. Ports that b has no room for are left out. The ports are in spec order, IPv4 before IPv6. The addresses, by family, may be
// in frontends. why may be nil.
func claimsOf(
	buf []claim, frontends []state.Frontend, cfg *Config, svc *model.Service, settings *Settings, admitted Families, b *budget, why *Explanation,
) ([]claim, [2]vips) {
	var addresses [2]vips
	families := make([]state.Family, 0, 2)
	for _, family := range [...]state.Family{state.IPv4, state.IPv6} {
		if !hasFamily(svc, family) {
			why.withoutFamily(svc, family)
			continue
		}
		v := vipsOf(frontends, cfg, svc, family, admitted.Has(family), settings.Ping.or(cfg.Ping), b.max, why)
		frontends = v.frontends[len(v.frontends):]
		addresses[indexOf(family)] = v
		families = append(families, family)
	}
	ports := usablePorts(svc.Ports, why)
	var numbers, nodePorts seen[portNumber]
	for i := range ports {
		port := &ports[i]
		// All ports of a service have the same addresses, so an earlier port with this number has taken them all.
		hasVIPs := numbers.add(portNumber{port.Protocol, port.Port})
		hasNodePort := wantsNodePort(svc, port) && nodePorts.add(portNumber{port.Protocol, port.NodePort})
		if !hasVIPs {
			why.unroutedPort(port, 0, NumberTaken)
		}
		if !hasVIPs && !hasNodePort {
			continue
		}
		for _, family := range families {
			c := claim{port: port, family: family, hasVIPs: hasVIPs, hasNodePort: hasNodePort}
			var n int64
			if hasVIPs {
				v := &addresses[indexOf(family)]
				c.frontends, n = len(v.frontends), v.entries
			}
			if hasNodePort {
				c.frontends++
				n += frontendEntries
			}
			if !b.frontends(port, int64(c.frontends), n) {
				why.unroutedPort(port, family, NoRoom)
				continue
			}
			buf = append(buf, c)
		}
	}
	return rangeClaims(buf, cfg, settings.Ranges, families, &addresses, b, why), addresses
}

// portNumber is what one port of a service can have at an address.
type portNumber struct {
	protocol state.Protocol
	number   uint16
}

// wantsNodePort reports whether port is to be reachable on a node port. It has none if allocateLoadBalancerNodePorts is false.
func wantsNodePort(svc *model.Service, port *model.ServicePort) bool {
	return port.NodePort != 0 && (svc.Type == model.TypeNodePort || svc.Type == model.TypeLoadBalancer)
}

// vips are the frontends with an address that each port of a service has in one family, in order, without their port number.
type vips struct {
	frontends []state.Frontend
	entries   int64 // which the frontends take; if it is more than a service may have, not all of them are there
}

// vipsOf returns the frontends with an address of svc in family, perhaps in buf. admitsNode has the same meaning as for
// newSourceGuard. With ping, the node answers echo requests to the addresses. It stops at the limit most of entries.
// why may be nil.
//
// ClusterIP comes first, because each service must be reachable on its cluster IP by the internal policy. LoadBalancer
// comes before ExternalIP, because otherwise an externalIP would lift the load balancer's source ranges.
func vipsOf(
	buf []state.Frontend, cfg *Config, svc *model.Service, family state.Family, admitsNode, ping bool, most int64, why *Explanation,
) vips {
	v := vips{frontends: buf}
	guard := newSourceGuard(svc, admitsNode, family)
	var known seen[netip.Addr]
	add := func(kind state.FrontendKind, ips []netip.Addr) {
		for _, ip := range ips {
			if familyOf(ip) != family {
				continue
			}
			if reason := v.leavesOut(kind, ip, cfg, &known, most); reason != "" {
				why.unroutedAddress(kind, ip, reason)
				continue
			}
			v.entries += frontendEntries
			f := state.Frontend{Kind: kind, Addr: ip, Ping: ping}
			if ping {
				v.entries++
			}
			if kind == state.LoadBalancer && guard.restricted {
				// One more, because it may be among its own sources on some nodes.
				sources := int64(len(guard.sources)) + 1
				if ping {
					sources *= 2 // dataplanes have them once more for echo requests
				}
				if v.entries += sources; v.entries > most {
					why.unroutedAddress(kind, ip, NoRoom)
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
	} else {
		why.notLoadBalancer(svc, family)
	}
	add(state.ExternalIP, svc.ExternalIPs)
	slices.SortFunc(v.frontends, state.Frontend.Compare)
	return v
}

// leavesOut returns why an address of the family is not one more frontend, empty if it is. known are those that were asked for before.
func (v *vips) leavesOut(kind state.FrontendKind, ip netip.Addr, cfg *Config, known *seen[netip.Addr], most int64) Reason {
	switch {
	case v.entries > most:
		return NoRoom
	case kind == state.ExternalIP && !cfg.routesExternalIP(ip):
		return Refused
	case !known.add(ip):
		return Duplicate
	}
	return ""
}

// sourceGuard is what spec.loadBalancerSourceRanges means for the load balancer IPs of one family.
type sourceGuard struct {
	restricted bool
	// sources are the ranges of the family, masked, sorted, without duplicates.
	sources []netip.Prefix
	// admitsNode is set if a range contains an address of this node.
	admitsNode bool
}

// newSourceGuard reads the source ranges of svc for family. With admitsNode, one of the ranges contains an address of
// this node. A /0 of the family admits all clients.
//
// The ranges are filtered by family first. A family without any range is not restricted, even if the service has ranges
// of the other family. kube-proxy does the same (pkg/proxy/serviceport.go, newBaseServiceInfo;
// len(LoadBalancerSourceRanges()) == 0 then makes no firewall chain). IPv4 ranges that were written before a service
// became dual-stack must not cut off its IPv6 clients.
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
// If the node may connect, vip itself may connect. The load balancer's agent often adds vip to the node, and
// connections from the node to vip then have it as source (pkg/proxy/nftables/proxier.go, allowFromNode).
func (g sourceGuard) sourcesFor(vip netip.Addr) []netip.Prefix {
	own := netip.PrefixFrom(vip, vip.BitLen())
	if _, has := slices.BinarySearchFunc(g.sources, own, comparePrefixes); has || !g.admitsNode {
		return g.sources // one list for all, which messages have once
	}
	return sortedPrefixes(append(slices.Clone(g.sources), own))
}

// sortedPrefixes sorts p in place, in the order of [netip.Prefix.Compare], and drops duplicates. The prefixes are masked already, which
// that function would do again for each comparison.
func sortedPrefixes(p []netip.Prefix) []netip.Prefix {
	slices.SortFunc(p, comparePrefixes)
	return slices.Compact(p)
}

func comparePrefixes(a, b netip.Prefix) int {
	return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
}
