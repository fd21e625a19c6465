package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// handles reports whether this node's proxy has anything to do with a service.
func (w *World) handles(s *model.Service) bool {
	return w.isOurs(s) && len(s.ClusterIPs) > 0 && (len(s.Ports) > 0 || len(rangesOf(s)) > 0)
}

// isOurs reports whether a service is for this proxy, if it has anything to route.
func (w *World) isOurs(s *model.Service) bool {
	switch {
	case w.disabled(s.Name.Namespace):
		return false
	case w.ServiceProxyName == "" && s.HasProxyName:
		return false
	case w.ServiceProxyName != "" && !(s.HasProxyName && s.ProxyName == w.ServiceProxyName):
		return false
	case s.Type == model.TypeExternalName:
		return false
	case s.Headless:
		return false
	}
	return true
}

// disabled: a namespace may ask service proxies to ignore all that is in it.
func (w *World) disabled(namespace string) bool {
	for _, n := range w.Namespaces {
		if n.Name == namespace {
			return n.ProxyDisabled
		}
	}
	return false
}

// hasFamily: a service lives in the families of its cluster IPs.
func hasFamily(s *model.Service, f state.Family) bool {
	for _, ip := range s.ClusterIPs {
		if state.FamilyOf(ip) == f {
			return true
		}
	}
	return false
}

// claim is one service port that would like to have a packet.
type claim struct {
	service *model.Service
	port    model.ServicePort
	index   int // of port in service.Ports
	kind    state.FrontendKind
	refuses bool // there is no room for its endpoints
	ranged  bool // port is one of a range
}

// addressClaim finds the service port that gets packets to p's destination address.
func (w *World) addressClaim(p probe.Packet) (claim, bool) { return winner(w.addressClaims(p)) }

// addressClaims lists the service ports that have p's destination as their cluster IP, load balancer IP or external IP.
func (w *World) addressClaims(p probe.Packet) (claims []claim) {
	dst := p.Dst.Addr()
	for _, s := range w.Services {
		if !slices.Contains(slices.Concat(s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs), dst) {
			continue
		}
		for _, part := range w.routed(s, state.FamilyOf(dst)) {
			port := part.port
			if !part.hasVIPs || part.last > 0 || port.Port != p.Dst.Port() || port.Protocol != p.Protocol {
				continue
			}
			if slices.Contains(s.ClusterIPs, dst) {
				claims = append(claims, claim{s, port, part.index, state.ClusterIP, part.refuses, false})
			}
			if slices.Contains(s.LoadBalancerIPs, dst) {
				claims = append(claims, claim{s, port, part.index, state.LoadBalancer, part.refuses, false})
			}
			if slices.Contains(s.ExternalIPs, dst) && w.mayBeExternal(dst) {
				claims = append(claims, claim{s, port, part.index, state.ExternalIP, part.refuses, false})
			}
		}
	}
	return claims
}

// mayBeExternal: external IPs have not been switched off. An external IP is the address of a host somewhere, in the
// ranges that the operator gives to services. It is no node's address unless the operator allows that.
func (w *World) mayBeExternal(addr netip.Addr) bool {
	if w.IgnoreExternalIPs || isSpecial(addr) {
		return false
	}
	if len(w.ExternalIPs) > 0 && !slices.ContainsFunc(w.ExternalIPs, func(r netip.Prefix) bool { return r.Contains(addr) }) {
		return false
	}
	for _, n := range w.Nodes {
		if slices.Contains(n.Addresses, addr) && !w.NodeExternalIPs {
			return false
		}
	}
	return true
}

// nodePortClaim finds the service port that gets packets to p's destination as a node port.
func (w *World) nodePortClaim(p probe.Packet) (claim, bool) { return winner(w.nodePortClaims(p)) }

// nodePortClaims lists the service ports that have p's destination as their node port.
func (w *World) nodePortClaims(p probe.Packet) (claims []claim) {
	if w.NodePortAddrs == nil || !w.NodePortAddrs(p.Dst.Addr()) {
		return nil
	}
	for _, s := range w.Services {
		wants := func(port model.ServicePort) bool {
			return port.NodePort != 0 && port.NodePort == p.Dst.Port() && port.Protocol == p.Protocol
		}
		if !slices.ContainsFunc(s.Ports, wants) {
			continue
		}
		for _, part := range w.routed(s, state.FamilyOf(p.Dst.Addr())) {
			if port := part.port; part.hasNodePort && wants(port) {
				claims = append(claims, claim{s, port, part.index, state.NodePort, part.refuses, false})
			}
		}
	}
	return claims
}

// winner decides between claims on one frontend. A cluster IP beats a load balancer IP, which beats an external IP.
// Then the oldest service wins, and a service whose age is not known is the youngest. Then the first by name wins,
// then the first of its ports.
func winner(claims []claim) (claim, bool) {
	if len(claims) == 0 {
		return claim{}, false
	}
	return slices.MinFunc(claims, func(a, b claim) int {
		return cmp.Or(
			cmp.Compare(rank(a.kind == state.ClusterIP), rank(b.kind == state.ClusterIP)),
			cmp.Compare(rank(a.kind == state.LoadBalancer), rank(b.kind == state.LoadBalancer)),
			older(a.service, b.service),
			a.service.Name.Compare(b.service.Name),
			cmp.Compare(a.index, b.index),
		)
	}), true
}

// older orders services by age, the oldest first.
func older(a, b *model.Service) int {
	return cmp.Or(
		cmp.Compare(rank(!a.Created.IsZero()), rank(!b.Created.IsZero())),
		a.Created.Compare(b.Created),
	)
}

// rank orders those that have a preferred property before those that do not.
func rank(preferred bool) int {
	if preferred {
		return 0
	}
	return 1
}
