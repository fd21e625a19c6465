package oracle

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Budgets bound how many entries a service, the services of a namespace, and all services may have. 0 stands for no bound.
//
// An entry is a source that a frontend admits, or an endpoint behind it. A frontend counts as five, one of a range of ports as 35, and a port as five more, in
// each family. Where a slice of a port gives a weight, or annotations of the service may, endpoints count as two. An address that answers echo requests counts as one more for each port, and its sources as two.
type Budgets struct{ Service, Namespace, Node int64 }

// portPart is one port of a service in one family.
type portPart struct {
	index       int // in service.Ports, or behind the last for a range
	port        model.ServicePort
	last        uint16       // the last port of a range, which begins with port, 0 for a single port
	known       []netip.Addr // the addresses at which it is reached
	family      state.Family
	hasVIPs     bool  // it is reached at the addresses of the service
	hasNodePort bool  // it is reached at its node port
	frontends   int64 // the cost of being reached at all
	endpoints   int64 // the additional cost of reaching something
	routed      bool
	refuses     bool // although it may have endpoints
}

// portParts are all ports of a service, in the order in which they get room. First all ports get room for their
// frontends, then each gets room for its endpoints, as far as there is room for all of them.
func (w *World) portParts(s *model.Service, room int64) (parts []portPart, taken int64) {
	if !w.handles(s) {
		return nil, 0
	}
	takes := func(n int64) bool {
		if room > 0 && taken+n > room {
			return false
		}
		taken += n
		return true
	}
	for i := range s.Ports {
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			if p, ok := w.portPart(s, i, f); ok {
				p.routed = takes(p.frontends)
				parts = append(parts, p)
			}
		}
	}
	for _, r := range rangesOf(s) {
		for _, f := range []state.Family{state.IPv4, state.IPv6} {
			if p, ok := w.rangePart(s, r, f); ok {
				p.routed = takes(p.frontends)
				parts = append(parts, p)
			}
		}
	}
	for i := range parts {
		if p := &parts[i]; p.routed {
			p.refuses = !takes(p.endpoints)
		}
	}
	return parts, taken
}

// portPart counts what a port takes in a family. There is none if the service is not in the family, or earlier ports have all that it
// could be reached at.
func (w *World) portPart(s *model.Service, index int, f state.Family) (p portPart, ok bool) {
	port := s.Ports[index]
	earlier := func(has func(model.ServicePort) bool) bool {
		return slices.ContainsFunc(s.Ports[:index], func(o model.ServicePort) bool { return o.Protocol == port.Protocol && has(o) })
	}
	p = portPart{family: f, frontends: 5}
	frontends := int64(0)
	if !earlier(func(o model.ServicePort) bool { return o.Port == port.Port }) {
		p = w.addressCosts(s, f)
		p.hasVIPs, frontends = true, int64(len(p.known))
	}
	p.index, p.port = index, port
	if port.NodePort != 0 && !earlier(func(o model.ServicePort) bool { return o.NodePort == port.NodePort }) {
		p.hasNodePort = true
		frontends++
		p.frontends += 5
	}
	var behind []*model.EndpointSlice // once for each of their ports
	for _, slice := range w.slicesOf(s.Name, f) {
		for _, sp := range slice.Ports {
			if sp.Name == port.Name && sp.Protocol == port.Protocol {
				behind = append(behind, slice)
			}
		}
	}
	p.endpoints = frontends * endpointCosts(s, behind)
	return p, hasFamily(s, f) && frontends > 0
}

// endpointCosts counts what the endpoints of slices take behind a frontend of a service.
func endpointCosts(s *model.Service, behind []*model.EndpointSlice) (n int64) {
	weighted := mayHaveWeights(s)
	for _, slice := range behind {
		n += int64(len(slice.Endpoints))
		_, given := weightOf(slice)
		weighted = weighted || given
	}
	if weighted {
		n *= 2
	}
	return n
}

// addressCosts counts what a port takes that is reached at the addresses of a service in a family, and these addresses.
func (w *World) addressCosts(s *model.Service, f state.Family) (p portPart) {
	p = portPart{family: f, frontends: 5}
	for _, addr := range slices.Concat(s.ClusterIPs, s.LoadBalancerIPs, s.ExternalIPs) {
		isLoadBalancer := !slices.Contains(s.ClusterIPs, addr) && slices.Contains(s.LoadBalancerIPs, addr)
		isExternal := !slices.Contains(s.ClusterIPs, addr) && !isLoadBalancer
		if state.FamilyOf(addr) != f || slices.Contains(p.known, addr) || isExternal && !w.mayBeExternal(addr) {
			continue
		}
		p.known = append(p.known, addr)
		p.frontends += 5
		answers := answersPing(s)
		if answers {
			p.frontends++
		}
		if isLoadBalancer {
			p.frontends += w.sourcesOf(s, f)
			if answers {
				p.frontends += w.sourcesOf(s, f)
			}
		}
	}
	return p
}

// sourcesOf is the number of sources of a load balancer's address: the ranges, and the address itself, unless everybody may connect.
func (w *World) sourcesOf(s *model.Service, f state.Family) int64 {
	var ranges []netip.Prefix
	for _, r := range s.SourceRanges {
		if state.FamilyOf(r.Addr()) != f {
			continue
		}
		if r.Bits() == 0 {
			return 0
		}
		if !slices.Contains(ranges, r.Masked()) {
			ranges = append(ranges, r.Masked())
		}
	}
	if len(ranges) == 0 {
		return 0
	}
	return int64(len(ranges)) + 1
}

// room is how many entries a service may have, and whether it may have any.
func (w *World) room(s *model.Service) (room int64, some bool) {
	limit, bounded := w.namespaceLimit()
	if !bounded {
		return w.Budgets.Service, true
	}
	for _, other := range w.inOrder(s.Name.Namespace) {
		_, taken := w.portParts(other, w.Budgets.Service)
		if other == s {
			if taken <= limit {
				return w.Budgets.Service, true
			}
			return limit, limit > 0
		}
		limit = max(0, limit-taken)
	}
	return 0, false
}

// inOrder lists the services of a namespace, the oldest first.
func (w *World) inOrder(namespace string) []*model.Service {
	var list []*model.Service
	for _, s := range w.Services {
		if s.Name.Namespace == namespace {
			list = append(list, s)
		}
	}
	slices.SortFunc(list, func(a, b *model.Service) int { return cmp.Or(older(a, b), cmp.Compare(a.Name.Name, b.Name.Name)) })
	return list
}

// namespaceLimit is the limit of each namespace: its budget, lowered by a quarter until the total of all namespaces
// is within the node's budget.
func (w *World) namespaceLimit() (limit int64, bounded bool) {
	limit = w.Budgets.Namespace
	if w.Budgets.Node == 0 {
		return limit, limit > 0
	}
	if limit == 0 {
		limit = w.Budgets.Node
	}
	wants := make(map[string]int64)
	for _, s := range w.Services {
		_, taken := w.portParts(s, w.Budgets.Service)
		wants[s.Name.Namespace] += taken
	}
	for {
		var all int64
		for _, n := range wants {
			all += min(n, limit)
		}
		if all <= w.Budgets.Node {
			return limit, true
		}
		limit -= max(1, limit/4)
	}
}

// routed returns the ports of a service in one family for which there is room.
func (w *World) routed(s *model.Service, f state.Family) (parts []portPart) {
	room, some := w.room(s)
	if !some {
		return nil
	}
	all, _ := w.portParts(s, room)
	for _, p := range all {
		if p.routed && p.family == f {
			parts = append(parts, p)
		}
	}
	return parts
}
