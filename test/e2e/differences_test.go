//go:build linux

package e2e

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

// difference is one that is meant. docs/differences.md says of each why Switchyard is right.
type difference struct {
	// name is the heading in docs/differences.md.
	name string
	// mode is the mode of upstream kube-proxy that differs, empty for both.
	mode string
	// is reports whether a packet's way differs for this reason; want is what the oracle says.
	is func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool
}

var differences = []difference{
	{
		name: "Namespaces that opt out",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			all := *w
			all.Namespaces = nil
			return !sameAnswer(want, all.Ask(p))
		},
	},
	{
		name: "Ports that a cluster IP does not have",
		mode: "iptables",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			return want.Outcome == probe.Reject && only(upstream, topology.TimedOut) && isStray(w, p)
		},
	},
	{
		name: "Source ranges of a load balancer without endpoints",
		mode: "iptables",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			return want.Outcome == probe.Drop && only(upstream, topology.Refused) && withoutRanges(w).Ask(p).Outcome == probe.Reject
		},
	},
	{
		name: "Refusals that the node itself does not see",
		mode: "iptables",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			return want.Outcome == probe.Reject && p.From == probe.FromNode && only(upstream, topology.TimedOut) && only(ours, topology.Refused)
		},
	},
	{
		name: "Other ports at external addresses of virtual servers",
		mode: "ipvs",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			return want.Outcome == probe.Pass && only(upstream, topology.Refused) && only(ours, topology.TimedOut) && isExternal(w, p.Dst.Addr()) && isStray(w, p)
		},
	},
	{
		name: "Hairpins over TCP in mode ebpf",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			return *dataplaneName == "ebpf" && p.Protocol == state.TCP && len(upstream.servers) == len(ours.servers) && isOwn(p.Src, upstream, ours)
		},
	},
	{
		name: "Hairpins of endpoints without a node",
		mode: "nftables",
		is: func(w *oracle.World, p probe.Packet, want probe.Answer, upstream, ours observation) bool {
			toItself := slices.ContainsFunc(want.Choices, func(c probe.Choice) bool {
				_, answered := upstream.servers[c.Endpoint.String()]
				return c.Endpoint.Addr() == p.Src && !answered
			})
			timedOut := len(upstream.others) == 1 && upstream.others[topology.TimedOut] > 0
			return toItself && timedOut && len(ours.others) == 0 && hasNoNode(w, p.Src)
		},
	},
}

// isOwn reports whether two observations differ in nothing but the source address that a client sees when it reaches itself.
func isOwn(client netip.Addr, upstream, ours observation) bool {
	found := false
	others := func(o observation) observation {
		o.servers = maps.Clone(o.servers)
		maps.DeleteFunc(o.servers, func(server, _ string) bool {
			addr, err := netip.ParseAddrPort(server)
			own := err == nil && addr.Addr() == client
			found = found || own
			return own
		})
		return o
	}
	return others(upstream).same(others(ours)) && found
}

// hasNoNode reports whether a slice does not name the node of an endpoint.
func hasNoNode(w *oracle.World, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Slices, func(s *model.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e model.Endpoint) bool { return e.Addr == addr && e.NodeName == "" })
	})
}

// withoutRanges is the cluster with load balancers that admit everybody.
func withoutRanges(w *oracle.World) *oracle.World {
	open := *w
	open.Services = nil
	for _, s := range w.Services {
		c := *s
		c.SourceRanges = nil
		open.Services = append(open.Services, &c)
	}
	return &open
}

// isExternal reports whether an address is one that a Service has for clients outside.
func isExternal(w *oracle.World, addr netip.Addr) bool {
	return slices.ContainsFunc(w.Services, func(s *model.Service) bool {
		return slices.Contains(slices.Concat(s.ExternalIPs, s.LoadBalancerIPs), addr)
	})
}

// isStray reports whether nobody has a frontend that fits a packet.
func isStray(w *oracle.World, p probe.Packet) bool {
	for _, s := range w.Services {
		for _, port := range s.Ports {
			has := slices.Contains(slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs), p.Dst.Addr())
			if has && port.Port == p.Dst.Port() && port.Protocol == p.Protocol {
				return false
			}
		}
	}
	return true
}

// only reports whether all connections had one outcome.
func only(o observation, outcome topology.Outcome) bool {
	return len(o.servers) == 0 && len(o.others) == 1 && o.others[outcome] > 0
}
