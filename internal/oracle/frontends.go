package oracle

import (
	"cmp"
	"slices"

	"github.com/switchyard-net/switchyard/internal/flow"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// handles says whether this node's proxy has anything to do with a service.
func (w *World) handles(s *model.Service) bool {
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
	return len(s.ClusterIPs) > 0 && len(s.Ports) > 0
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
}

// addressClaim finds the service port that gets packets to p's destination address: as its cluster IP, load balancer IP or
// external IP.
func (w *World) addressClaim(p flow.Packet) (claim, bool) {
	var claims []claim
	dst := p.Dst.Addr()
	for _, s := range w.Services {
		if !w.handles(s) || !hasFamily(s, state.FamilyOf(dst)) {
			continue
		}
		for i, port := range s.Ports {
			if port.Port != p.Dst.Port() || port.Protocol != p.Protocol {
				continue
			}
			if slices.Contains(s.ClusterIPs, dst) {
				claims = append(claims, claim{s, port, i, state.ClusterIP})
			}
			if slices.Contains(s.LoadBalancerIPs, dst) {
				claims = append(claims, claim{s, port, i, state.LoadBalancer})
			}
			if slices.Contains(s.ExternalIPs, dst) {
				claims = append(claims, claim{s, port, i, state.ExternalIP})
			}
		}
	}
	return winner(claims)
}

// nodePortClaim finds the service port that gets packets to p's destination as a node port.
func (w *World) nodePortClaim(p flow.Packet) (claim, bool) {
	if w.NodePortAddrs == nil || !w.NodePortAddrs(p.Dst.Addr()) {
		return claim{}, false
	}
	var claims []claim
	for _, s := range w.Services {
		if !w.handles(s) || !hasFamily(s, state.FamilyOf(p.Dst.Addr())) {
			continue
		}
		for i, port := range s.Ports {
			if port.NodePort != 0 && port.NodePort == p.Dst.Port() && port.Protocol == p.Protocol {
				claims = append(claims, claim{s, port, i, state.NodePort})
			}
		}
	}
	return winner(claims)
}

// winner decides between claims on one frontend: a cluster IP beats all other kinds; then the service that is first by
// name wins; then the first of its ports; then a load balancer IP beats an external IP.
func winner(claims []claim) (claim, bool) {
	if len(claims) == 0 {
		return claim{}, false
	}
	return slices.MinFunc(claims, func(a, b claim) int {
		return cmp.Or(
			cmp.Compare(rank(a.kind == state.ClusterIP), rank(b.kind == state.ClusterIP)),
			a.service.Name.Compare(b.service.Name),
			cmp.Compare(a.index, b.index),
			cmp.Compare(rank(a.kind == state.LoadBalancer), rank(b.kind == state.LoadBalancer)),
		)
	}), true
}

// rank orders those that have a preferred property before those that do not.
func rank(preferred bool) int {
	if preferred {
		return 0
	}
	return 1
}
