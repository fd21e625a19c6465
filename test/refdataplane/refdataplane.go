// Package refdataplane answers what a node does with a connection, by reading the node's state as a dataplane would.
//
// It is the reference dataplane. It has no kernel, searches linearly and keeps nothing, so that its code shows each rule of package state.
package refdataplane

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// State is all that decides about connections on one node.
type State struct {
	Services map[state.ServiceName]*state.Service
	// Node may be nil.
	Node *state.Node
	// NodePortAddrs reports whether node ports are served on an address. Nil: on none.
	NodePortAddrs func(netip.Addr) bool
}

// Trace returns the outcome of p.
func (s *State) Trace(p probe.Packet) probe.Answer {
	name, port, frontend := s.lookup(p)
	if frontend == nil {
		return probe.Answer{Outcome: s.stray(p.Dst.Addr())}
	}
	if frontend.Restricted && !contains(frontend.Sources, p.Src) {
		return probe.Answer{Outcome: probe.Drop}
	}
	traffic := port.Traffic(frontend.Kind)
	route := &traffic.Outside
	if p.From == probe.FromPod || p.From == probe.FromNode {
		route = &traffic.Inside
	}
	switch route.Verdict {
	case state.Forward:
		a := probe.Answer{
			Outcome: probe.Forward, Balance: port.Balance, Choices: choices(route.Endpoints, p, masquerades(traffic.Masquerade, p.From)),
			Ejection: port.Ejection, DrainSeconds: port.DrainSeconds, Ping: frontend.Ping,
		}
		if port.Affinity > 0 {
			a.Affinity = probe.ServicePort(name, port.Name, port.Protocol, port.Family)
		}
		return a
	case state.Reject:
		return probe.Answer{Outcome: probe.Reject}
	case state.Drop:
		return probe.Answer{Outcome: probe.Drop}
	}
	return probe.Answer{Outcome: probe.Pass} // Nothing is programmed for an unused route.
}

// lookup finds the frontend that p connects to, its port and service, or nil. A frontend with an address goes before a node port, and both before a range of ports.
func (s *State) lookup(p probe.Packet) (state.ServiceName, *state.Port, *state.Frontend) {
	if name, port, f := s.find(p.Protocol, state.FamilyOf(p.Dst.Addr()), func(f *state.Frontend) bool {
		return f.Kind != state.NodePort && f.LastPort == 0 && netip.AddrPortFrom(f.Addr, f.Port) == p.Dst
	}); f != nil {
		return name, port, f
	}
	if s.NodePortAddrs != nil && s.NodePortAddrs(p.Dst.Addr()) {
		if name, port, f := s.find(p.Protocol, state.FamilyOf(p.Dst.Addr()), func(f *state.Frontend) bool {
			return f.Kind == state.NodePort && f.Port == p.Dst.Port()
		}); f != nil {
			return name, port, f
		}
	}
	return s.find(p.Protocol, state.FamilyOf(p.Dst.Addr()), func(f *state.Frontend) bool {
		return f.LastPort != 0 && f.Addr == p.Dst.Addr() && f.Port <= p.Dst.Port() && p.Dst.Port() <= f.LastPort
	})
}

// find returns the frontend of a protocol and family that matches. In one state there is at most one.
func (s *State) find(
	protocol state.Protocol, family state.Family, match func(*state.Frontend) bool,
) (state.ServiceName, *state.Port, *state.Frontend) {
	for name, svc := range s.Services {
		for port, f := range svc.Frontends() {
			if port.Protocol == protocol && port.Family == family && match(f) {
				return name, port, f
			}
		}
	}
	return state.ServiceName{}, nil, nil
}

// stray is the outcome of a connection that no frontend takes. A cluster IP refuses its other ports, and the rest of the service ranges
// drops everything. The proxy ignores other addresses.
func (s *State) stray(dst netip.Addr) probe.Outcome {
	for _, svc := range s.Services {
		for _, f := range svc.Frontends() {
			if f.Kind == state.ClusterIP && f.Addr == dst {
				return probe.Reject
			}
		}
	}
	if s.Node != nil && contains(s.Node.ServiceCIDRs, dst) {
		return probe.Drop
	}
	return probe.Pass
}

// choices are the endpoints that may get p. An endpoint that reaches itself through the service (hairpin) is always
// masqueraded: it would otherwise answer itself directly.
func choices(eps []state.Endpoint, p probe.Packet, masquerade bool) []probe.Choice {
	out := make([]probe.Choice, 0, len(eps))
	for _, ep := range eps {
		if ep.Addr.Port() == 0 { // of a range: the connection keeps its port
			ep.Addr = netip.AddrPortFrom(ep.Addr.Addr(), p.Dst.Port())
		}
		out = append(out, probe.Choice{Endpoint: ep.Addr, Masquerade: masquerade || ep.Addr.Addr() == p.Src, Weight: ep.Weight})
	}
	return out
}

// masquerades reports whether rule m masquerades a client of that kind.
func masquerades(m state.Masquerade, from probe.Client) bool {
	switch m {
	case state.MasqueradeAlways:
		return true
	case state.MasqueradeUnlessPod:
		return from != probe.FromPod
	case state.MasqueradeNode:
		return from == probe.FromNode
	}
	return false
}

func contains(ranges []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip) })
}
