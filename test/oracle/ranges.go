package oracle

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// portRange is a range of ports of a service. Connections keep their ports.
type portRange struct {
	name        string
	protocol    state.Protocol
	first, last uint16
}

// rangesOf are the ranges that the annotation of a service gives it, none if any of it is bad. A range without a protocol is one for each. Histories have
// a single range in the annotation, and no ranges that overlap only in part.
func rangesOf(s *model.Service) (list []portRange) {
	name, rest, _ := strings.Cut(annotation(s, "port-ranges"), "=")
	ports, only, _ := strings.Cut(rest, "/")
	from, to, _ := strings.Cut(ports, "-")
	first, errFirst := strconv.Atoi(from)
	last, errLast := strconv.Atoi(to)
	if errFirst != nil || errLast != nil || first >= last || strings.HasPrefix(from, "0") {
		return nil
	}
	for _, protocol := range []state.Protocol{state.TCP, state.UDP, state.SCTP} {
		if only != "" && only != protocol.String() {
			continue
		}
		if slices.ContainsFunc(s.Ports, func(p model.ServicePort) bool { return p.Name == name && p.Protocol == protocol }) {
			return nil
		}
		list = append(list, portRange{name, protocol, uint16(first), uint16(last)})
	}
	return list
}

// rangePart counts what a range takes in a family: 30 for each address in addition to a port without a node port. An address of a node has no ranges.
func (w *World) rangePart(s *model.Service, r portRange, f state.Family) (p portPart, ok bool) {
	p = w.addressCosts(s, f)
	p.known = slices.DeleteFunc(p.known, func(addr netip.Addr) bool { return w.isNodes(addr) && !slices.Contains(s.ClusterIPs, addr) })
	frontends := int64(len(p.known))
	p.port, p.last = model.ServicePort{Name: r.name, Protocol: r.protocol, Port: r.first}, r.last
	p.index, p.hasVIPs = len(s.Ports), true
	p.frontends += 30 * frontends
	p.endpoints = frontends * endpointCosts(s, w.slicesOf(s.Name, f))
	return p, hasFamily(s, f) && frontends > 0
}

// isNodes reports whether an address is a node's.
func (w *World) isNodes(addr netip.Addr) bool {
	return slices.ContainsFunc(w.Nodes, func(n *model.Node) bool { return slices.Contains(n.Addresses, addr) })
}

// rangeClaim finds the service whose range gets packets to p's destination. Single ports go before it.
func (w *World) rangeClaim(p probe.Packet) (claim, bool) {
	var claims []claim
	dst := p.Dst.Addr()
	for _, s := range w.Services {
		for _, part := range w.routed(s, state.FamilyOf(dst)) {
			if part.last == 0 || part.port.Protocol != p.Protocol || p.Dst.Port() < part.port.Port || p.Dst.Port() > part.last || !slices.Contains(part.known, dst) {
				continue
			}
			kind := state.ExternalIP
			switch {
			case slices.Contains(s.ClusterIPs, dst):
				kind = state.ClusterIP
			case slices.Contains(s.LoadBalancerIPs, dst):
				kind = state.LoadBalancer
			}
			c := claim{s, part.port, part.index, kind, part.refuses, true}
			c.port.Port = p.Dst.Port()
			claims = append(claims, c)
		}
	}
	return winner(claims)
}

// endpointsAt lists the endpoints of a claim. A range has all endpoints of its service, at the port of the packet.
func (w *World) endpointsAt(c claim, f state.Family) []endpoint {
	if !c.ranged {
		return w.endpointsOf(c.service, c.port, f)
	}
	return w.endpointsOfRange(c.service, c.port.Port, f)
}

func (w *World) endpointsOfRange(s *model.Service, port uint16, f state.Family) (eps []endpoint) {
	for _, slice := range w.slicesOf(s.Name, f) {
		weight, _ := weightOf(slice)
		eps = addEndpoints(eps, slice, port, weight)
	}
	return eps
}
