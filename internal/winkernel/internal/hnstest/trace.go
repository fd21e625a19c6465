package hnstest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// Route is where the load balancers send a connection. The zero value: nowhere, no load balancer has it.
type Route struct {
	// Endpoints may get it, in order.
	Endpoints []netip.AddrPort
	// Source is the address that they see; the zero Addr stands for the client's own.
	Source netip.Addr
	// Sticky: a client always gets the same one.
	Sticky bool
	// Broken are faults on the way that may lose the connection. It is empty if there are none.
	Broken []string
}

// Trace returns what happens to a connection to dst, of a client whose own address no load balancer knows.
func (h *HNS) Trace(proto state.Protocol, dst netip.AddrPort) Route {
	key := state.FrontendKey{Family: state.FamilyOf(dst.Addr()), Protocol: proto, Addr: dst.Addr(), Port: dst.Port()}
	lb, ok := h.find(key)
	if _, own := h.networks[0].HostMACs[dst.Addr()]; !ok && own {
		key.Addr = netip.Addr{}
		lb, ok = h.find(key)
	}
	if !ok {
		return Route{}
	}
	return h.follow(&lb)
}

// follow returns where a load balancer leads.
func (h *HNS) follow(lb *plan.LoadBalancer) Route {
	m := lb.Mappings[0]
	r := Route{Sticky: m.Distribution == plan.DistributeBySourceIP}
	broken := func(format string, args ...any) { r.Broken = append(r.Broken, fmt.Sprintf(format, args...)) }
	var n *plan.Network
	for _, id := range lb.Endpoints {
		e, ok := h.endpoints[id]
		if !ok {
			broken("endpoint %s does not exist", id)
			continue
		}
		n = h.networkOf(e.Network)
		if n == nil {
			broken("endpoint %s is on a network that does not exist", id)
			continue
		}
		addr := e.Addrs[slices.IndexFunc(e.Addrs, func(a netip.Addr) bool { return a.Is6() == (lb.Flags&plan.FlagIPv6 != 0) })]
		r.Endpoints = append(r.Endpoints, netip.AddrPortFrom(addr, m.Internal))
		if want := h.providerOf(n, addr); n.Overlay && e.Remote && e.Provider != want {
			broken("packets to %v go to node %v, and must to %v", addr, e.Provider, want)
		}
	}
	slices.SortFunc(r.Endpoints, netip.AddrPort.Compare)
	if len(r.Endpoints) == 0 {
		broken("it leads nowhere")
		return r
	}
	if lb.Flags&plan.FlagDSR == 0 {
		if r.Source = lb.SourceVIP; !r.Source.IsValid() {
			r.Source = h.hostAddr(lb.Flags&plan.FlagIPv6 != 0)
		}
	}
	if !n.Overlay {
		return r
	}
	if _, host := n.HostMACs[lb.SourceVIP]; !host && !h.has(n, lb.SourceVIP) {
		broken("no endpoint has the source VIP %v", lb.SourceVIP)
	}
	if m.MapFlags&plan.MapVIPExternalIP == 0 && len(lb.VIPs) == 1 && !h.has(n, lb.VIPs[0]) {
		broken("packets of pods do not come as far as cluster IP %v: no endpoint has it", lb.VIPs[0])
	}
	return r
}

func (h *HNS) has(n *plan.Network, addr netip.Addr) bool {
	for _, e := range h.endpoints {
		if e.Network == n.ID && slices.Contains(e.Addrs, addr) {
			return true
		}
	}
	return false
}

// providerOf returns the node to which an overlay network has to send packets for addr.
func (h *HNS) providerOf(n *plan.Network, addr netip.Addr) netip.Addr {
	for _, s := range n.Subnets {
		if s.Prefix.Contains(addr) || s.Provider == addr {
			return s.Provider
		}
	}
	return h.hostAddr(addr.Is6())
}

// Leads reports whether an endpoint leads to the node that has its address.
func (h *HNS) Leads(id string) bool {
	e := h.endpoints[id]
	n := h.networkOf(e.Network)
	return n != nil && (!n.Overlay || !e.Remote || e.Provider == h.providerOf(n, e.Addrs[0]))
}
