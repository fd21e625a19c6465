package randcluster

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
)

// Packets lists packets that are worth asking about in the current cluster. All kinds of clients connect to every
// frontend that a service may have, including services that are not handled. Near misses are ports next to a
// frontend's, other protocols, cluster IPs that nobody owns, and addresses that have nothing to do with services.
// Some sources are hard to send from with real packets, such as a load balancer's address: callers leave out what
// they cannot send.
func (h *History) Packets() []probe.Packet {
	b := packets{h: h, list: make([]probe.Packet, 0, 512), has: make(map[probe.Packet]bool, 512)}
	for _, s := range kind[*model.Service](h) {
		for _, port := range s.Ports {
			for _, dst := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
				b.toFrontend(s, netip.AddrPortFrom(dst, port.Port), port.Protocol)
			}
			if port.NodePort != 0 {
				b.toNodePort(s, port)
			}
		}
	}
	if h.opts.Ranges {
		b.toRanges()
	}
	b.astray()
	return b.list
}

// packets collects packets.
type packets struct {
	h    *History
	list []probe.Packet
	has  map[probe.Packet]bool
}

// toFrontend adds packets of all clients to a frontend of s, and near misses.
func (b *packets) toFrontend(s *model.Service, dst netip.AddrPort, proto state.Protocol) {
	addr := dst.Addr()
	for _, slice := range kind[*model.EndpointSlice](b.h) {
		if slice.ServiceName() != s.Name {
			continue
		}
		for _, ep := range slice.Endpoints {
			if model.Special(ep.Addr) == "" {
				b.add(b.owner(ep.Addr), ep.Addr, dst, proto)
			}
		}
	}
	b.fromEverywhere(dst, proto)
	if slices.Contains(s.LoadBalancerIPs, addr) {
		for _, lb := range b.h.opts.LoadBalancerIPs {
			b.add(probe.FromNode, lb, dst, proto)
			b.add(probe.FromOutside, lb, dst, proto)
		}
	}
	b.fromOutside(1, netip.AddrPortFrom(addr, dst.Port()-1), proto)
	b.fromOutside(1, netip.AddrPortFrom(addr, dst.Port()+1), proto)
	for _, other := range b.h.opts.Protocols {
		if other != proto {
			b.fromOutside(1, dst, other)
		}
	}
}

// toRanges adds packets to ports in and next to the ranges of services, at the addresses of all services.
func (b *packets) toRanges() {
	for _, s := range kind[*model.Service](b.h) {
		for _, addr := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
			for _, proto := range b.h.opts.Protocols {
				b.fromEverywhere(netip.AddrPortFrom(addr, inRanges), proto)
				for _, port := range atEnds {
					b.fromOutside(1, netip.AddrPortFrom(addr, port), proto)
				}
			}
		}
	}
}

// toNodePort adds packets of all clients to a node port where node ports are served, and some to it on other addresses of
// nodes.
func (b *packets) toNodePort(s *model.Service, port model.ServicePort) {
	for _, n := range b.h.opts.Nodes {
		for _, addr := range n.Addresses {
			dst := netip.AddrPortFrom(addr, port.NodePort)
			if b.h.opts.NodePortAddrs(addr) {
				b.toFrontend(s, dst, port.Protocol)
			} else {
				b.fromOutside(1, dst, port.Protocol)
			}
		}
	}
}

// fromOutside adds packets of the first clients outside, at most n.
func (b *packets) fromOutside(n int, dst netip.AddrPort, proto state.Protocol) {
	enough := len(b.list) + n
	for _, src := range b.h.opts.OutsideClients {
		if len(b.list) < enough {
			b.add(probe.FromOutside, src, dst, proto)
		}
	}
}

// owner describes what kind of client the node takes an endpoint for.
func (b *packets) owner(addr netip.Addr) probe.Client {
	for _, n := range b.h.opts.Nodes {
		switch {
		case !slices.Contains(n.Addresses, addr):
		case n.Name == b.h.opts.NodeName:
			return probe.FromNode
		default:
			return probe.FromOutside
		}
	}
	return b.pod()
}

// pod describes what kind of client the node takes a pod for: without a detector it does not know pods.
func (b *packets) pod() probe.Client {
	if b.h.opts.DetectLocal {
		return probe.FromPod
	}
	return probe.FromOutside
}

// fromEverywhere adds packets of pods, nodes and clients outside.
func (b *packets) fromEverywhere(dst netip.AddrPort, proto state.Protocol) {
	for _, src := range b.h.opts.PodClients {
		b.add(b.pod(), src, dst, proto)
	}
	for _, n := range b.h.opts.Nodes {
		for _, src := range n.Addresses {
			b.add(b.owner(src), src, dst, proto)
		}
	}
	b.fromOutside(len(b.h.opts.OutsideClients), dst, proto)
}

// astray adds packets to addresses that may belong to no service. These are all cluster IPs on an unused port, an unused address in each
// service CIDR, and addresses outside.
func (b *packets) astray() {
	const nobodys = 9999
	o := &b.h.opts
	dsts := slices.Concat(o.ClusterIPs, o.Foreign)
	for _, cidr := range o.ServiceCIDRs {
		free := cidr.Masked().Addr().Next()
		for slices.Contains(o.ClusterIPs, free) {
			free = free.Next()
		}
		dsts = append(dsts, free)
	}
	for _, dst := range dsts {
		to := netip.AddrPortFrom(dst, nobodys)
		b.fromOutside(1, to, o.Protocols[0])
		for _, src := range o.PodClients {
			b.add(b.pod(), src, to, o.Protocols[0])
		}
	}
}

// add adds a packet once if its addresses are of one family. Two equal clients could connect at the same time. Then nobody could report
// which affinity the second one must follow.
func (b *packets) add(from probe.Client, src netip.Addr, dst netip.AddrPort, proto state.Protocol) {
	p := probe.Packet{From: from, Src: src, Dst: dst, Protocol: proto}
	if src.IsValid() && state.FamilyOf(src) == state.FamilyOf(dst.Addr()) && !b.has[p] {
		b.list, b.has[p] = append(b.list, p), true
	}
}
