// Package trace answers what a node does with a connection, by reading the node's state as a dataplane would.
//
// It is the reference dataplane: it has no kernel, searches linearly and keeps nothing, so that each rule of package state
// can be read off it.
package trace

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/flow"
	"github.com/switchyard-net/switchyard/state"
)

// State is all that decides about connections on one node.
type State struct {
	Services map[state.ServiceName]*state.Service
	// Node may be nil.
	Node *state.Node
	// NodePortAddrs says whether node ports are served on an address. Nil: on none.
	NodePortAddrs func(netip.Addr) bool
}

// Trace returns what becomes of p.
func (s *State) Trace(p flow.Packet) flow.Answer {
	name, port, frontend := s.lookup(p)
	if frontend == nil {
		return flow.Answer{Outcome: s.stray(p.Dst.Addr())}
	}
	if frontend.Restricted && !contains(frontend.Sources, p.Src) {
		return flow.Answer{Outcome: flow.Drop}
	}
	traffic := &port.External
	if frontend.Kind == state.ClusterIP {
		traffic = &port.Internal
	}
	route := &traffic.Outside
	if p.From == flow.FromPod || p.From == flow.FromNode {
		route = &traffic.Inside
	}
	switch route.Verdict {
	case state.Forward:
		a := flow.Answer{Outcome: flow.Forward, Choices: choices(route.Endpoints, p, masquerades(traffic.Masquerade, p.From))}
		if port.Affinity > 0 {
			a.Affinity = flow.ServicePort(name, port.Name, port.Protocol, port.Family)
		}
		return a
	case state.Reject:
		return flow.Answer{Outcome: flow.Reject}
	case state.Drop:
		return flow.Answer{Outcome: flow.Drop}
	}
	return flow.Answer{Outcome: flow.Pass} // Nothing is programmed for an unused route.
}

// lookup finds the frontend that p connects to, its port and service, or nil. A frontend with an address goes before a node port.
func (s *State) lookup(p flow.Packet) (state.ServiceName, *state.Port, *state.Frontend) {
	if name, port, f := s.find(p.Protocol, state.FamilyOf(p.Dst.Addr()), func(f *state.Frontend) bool {
		return f.Kind != state.NodePort && netip.AddrPortFrom(f.Addr, f.Port) == p.Dst
	}); f != nil {
		return name, port, f
	}
	if s.NodePortAddrs == nil || !s.NodePortAddrs(p.Dst.Addr()) {
		return state.ServiceName{}, nil, nil
	}
	return s.find(p.Protocol, state.FamilyOf(p.Dst.Addr()), func(f *state.Frontend) bool {
		return f.Kind == state.NodePort && f.Port == p.Dst.Port()
	})
}

// find returns the frontend of a protocol and family that matches. In one state there is at most one.
func (s *State) find(
	protocol state.Protocol, family state.Family, match func(*state.Frontend) bool,
) (state.ServiceName, *state.Port, *state.Frontend) {
	for name, svc := range s.Services {
		for i := range svc.Ports {
			port := &svc.Ports[i]
			if port.Protocol != protocol || port.Family != family {
				continue
			}
			for j := range port.Frontends {
				if match(&port.Frontends[j]) {
					return name, port, &port.Frontends[j]
				}
			}
		}
	}
	return state.ServiceName{}, nil, nil
}

// stray is what becomes of a connection that no frontend takes: a cluster IP refuses the ports that it does not have, the
// rest of the service ranges swallows everything, and other addresses are none of the proxy's business.
func (s *State) stray(dst netip.Addr) flow.Outcome {
	for _, svc := range s.Services {
		for _, port := range svc.Ports {
			for _, f := range port.Frontends {
				if f.Kind == state.ClusterIP && f.Addr == dst {
					return flow.Reject
				}
			}
		}
	}
	if s.Node != nil && contains(s.Node.ServiceCIDRs, dst) {
		return flow.Drop
	}
	return flow.Pass
}

// choices are the endpoints that may get p. An endpoint that reaches itself through the service (hairpin) is always
// masqueraded: it would otherwise answer itself directly.
func choices(eps []state.Endpoint, p flow.Packet, masquerade bool) []flow.Choice {
	out := make([]flow.Choice, 0, len(eps))
	for _, ep := range eps {
		out = append(out, flow.Choice{Endpoint: ep.Addr, Masquerade: masquerade || ep.Addr.Addr() == p.Src})
	}
	return out
}

// masquerades says whether rule m masquerades a client of that kind.
func masquerades(m state.Masquerade, from flow.Client) bool {
	switch m {
	case state.MasqueradeAlways:
		return true
	case state.MasqueradeUnlessPod:
		return from != flow.FromPod
	case state.MasqueradeNode:
		return from == flow.FromNode
	}
	return false
}

func contains(ranges []netip.Prefix, ip netip.Addr) bool {
	return slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(ip) })
}
