// Package oracle answers what must happen to a connection straight from the cluster's objects, slowly and plainly.
//
// It is the yardstick for everything fast: the brain and the store are checked against it in random histories,
// backends with real packets. It is written from the rules of Kubernetes' service proxies, one short function per
// rule, and shares nothing with the code that it checks. Each question walks over all objects again, and nothing is
// remembered.
//
// One rule is not here, because it needs memory: the service default/kubernetes keeps its last endpoints when it would fall to none.
package oracle

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// World is a cluster as one of its nodes sees it. The order of the objects does not matter; no two may have the same Ref.
type World struct {
	// NodeName is the node on which packets arrive.
	NodeName string
	// ServiceProxyName is the instance name whose services are handled, empty for those without any.
	ServiceProxyName string
	// DetectLocal reports whether the node detects pods by their source addresses.
	DetectLocal bool
	// MasqueradeAll reports whether all connections to cluster IPs get a new source address.
	MasqueradeAll bool
	// ExternalIPs are the ranges that external IPs may be in, none for all addresses. NodeExternalIPs reports whether they may be
	// addresses of nodes.
	ExternalIPs     []netip.Prefix
	NodeExternalIPs bool
	// IgnoreExternalIPs reports that the feature gate AllowServiceExternalIPs is off.
	IgnoreExternalIPs bool
	// Budgets bound the routed Services.
	Budgets Budgets
	// NodeHealth is when endpoints on a node come last.
	NodeHealth NodeHealth
	// NodePortAddrs reports whether node ports are served on an address. nil means on none.
	NodePortAddrs func(netip.Addr) bool

	Services     []*model.Service
	Slices       []*model.EndpointSlice
	Nodes        []*model.Node
	Namespaces   []*model.Namespace
	ServiceCIDRs []*model.ServiceCIDR
}

// Ask specifies what must happen to a connection.
func (w *World) Ask(p probe.Packet) probe.Answer {
	c, ok := w.addressClaim(p)
	if !ok {
		c, ok = w.nodePortClaim(p)
	}
	if !ok {
		c, ok = w.rangeClaim(p)
	}
	if !ok {
		return probe.Answer{Outcome: w.stray(p.Dst.Addr())}
	}
	if c.kind == state.LoadBalancer && !w.sourceAllowed(c.service, p) {
		return probe.Answer{Outcome: probe.Drop}
	}

	var eps []endpoint
	if !c.refuses {
		eps = takers(w.endpointsAt(c, state.FamilyOf(p.Dst.Addr())))
	}
	cluster := w.clusterEndpoints(eps)
	if len(cluster) == 0 {
		return probe.Answer{Outcome: probe.Reject}
	}
	chosen := cluster
	if w.usesLocal(c, p) {
		chosen = w.localEndpoints(eps)
	}
	if len(chosen) == 0 {
		return probe.Answer{Outcome: probe.Drop}
	}

	answer := probe.Answer{Outcome: probe.Forward, Balance: balanceOf(c.service), Ping: c.kind != state.NodePort && answersPing(c.service)}
	if c.ranged && answer.Balance == state.LeastConnections {
		answer.Balance = state.Random
	}
	if p.Protocol == state.TCP && !c.ranged {
		answer.Ejection, answer.DrainSeconds = annotation(c.service, "eject") == "true", drainOf(c.service)
	}
	if c.service.Affinity > 0 {
		answer.Affinity = probe.ServicePort(c.service.Name, c.port.Name, c.port.Protocol, state.FamilyOf(p.Dst.Addr()))
	}
	even := all(chosen, func(ep endpoint) bool { return ep.weight == chosen[0].weight })
	for _, ep := range chosen {
		hairpin := ep.at.Addr() == p.Src
		choice := probe.Choice{Endpoint: ep.at, Masquerade: hairpin || w.masquerades(c, p)}
		if !even {
			choice.Weight = uint16(ep.weight)
		}
		answer.Choices = append(answer.Choices, choice)
	}
	slices.SortFunc(answer.Choices, func(a, b probe.Choice) int { return a.Endpoint.Compare(b.Endpoint) })
	return answer
}

// stray: a packet to no frontend is rejected if a handled service has the address as a cluster IP. It is dropped if the address is in a
// service CIDR. The proxy ignores all other packets.
func (w *World) stray(dst netip.Addr) probe.Outcome {
	for _, s := range w.Services {
		hasVIPs := func(p portPart) bool { return p.hasVIPs }
		if slices.Contains(s.ClusterIPs, dst) && slices.ContainsFunc(w.routed(s, state.FamilyOf(dst)), hasVIPs) {
			return probe.Reject
		}
	}
	for _, c := range w.ServiceCIDRs {
		for _, cidr := range c.CIDRs {
			if cidr.Contains(dst) {
				return probe.Drop
			}
		}
	}
	return probe.Pass
}

// usesLocal reports whether a connection may only go to endpoints on this node. internalTrafficPolicy Local applies
// to any client that connects to the cluster IP. externalTrafficPolicy Local applies to connections to the other
// frontends, except connections of pods and of this node.
func (w *World) usesLocal(c claim, p probe.Packet) bool {
	if c.kind == state.ClusterIP {
		return c.service.InternalLocal
	}
	return w.externalLocal(c.service) && !w.fromPod(p) && p.From != probe.FromNode
}

// masquerades reports whether a connection gets a source address of this node, hairpins aside.
func (w *World) masquerades(c claim, p probe.Packet) bool {
	if c.kind == state.ClusterIP {
		if w.MasqueradeAll {
			return true
		}
		return w.DetectLocal && !w.fromPod(p)
	}
	if w.externalLocal(c.service) {
		return p.From == probe.FromNode
	}
	return true
}

// fromPod reports whether the node takes the client for a pod: it never does without a detector.
func (w *World) fromPod(p probe.Packet) bool {
	return w.DetectLocal && p.From == probe.FromPod
}

// externalLocal: externalTrafficPolicy Local is only honoured on services that can be reached from outside.
func (w *World) externalLocal(s *model.Service) bool {
	accessible := s.Type == model.TypeNodePort || s.Type == model.TypeLoadBalancer || len(s.ExternalIPs) > 0
	return s.ExternalLocal && accessible
}

// sourceAllowed: loadBalancerSourceRanges of the packet's family admit its source. All sources are admitted if there is no such range, or
// by a /0. A range with an address of this node also admits the load balancer's own address, because this node's connections may have it as
// their source.
func (w *World) sourceAllowed(s *model.Service, p probe.Packet) bool {
	family := state.FamilyOf(p.Dst.Addr())
	var ranges []netip.Prefix
	for _, r := range s.SourceRanges {
		if state.FamilyOf(r.Addr()) == family {
			ranges = append(ranges, r)
		}
	}
	if len(ranges) == 0 {
		return true
	}
	for _, r := range ranges {
		if r.Contains(p.Src) {
			return true
		}
	}
	return p.Src == p.Dst.Addr() && slices.ContainsFunc(ranges, w.holdsThisNode)
}

// holdsThisNode reports whether an address of this node is in r.
func (w *World) holdsThisNode(r netip.Prefix) bool {
	for _, n := range w.Nodes {
		if n.Name == w.NodeName && slices.ContainsFunc(n.Addresses, r.Contains) {
			return true
		}
	}
	return false
}
