package store

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
)

// Own are addresses that a node needs for itself.
type Own struct {
	// Interfaces are the addresses of the node's interfaces.
	Interfaces []netip.Addr
	// Upstream is where the source of objects connects to: an API server, a load balancer in front of it, or a relay.
	Upstream []netip.AddrPort
}

// addresses knows who has an address, and which services have an externalIP that is or may become one of these. The nodes are all that
// sources have delivered: of a source that follows an API server for one node, that is this node.
type addresses struct {
	own        map[netip.Addr]brain.Holder // by Own
	apiServers map[netip.Addr]brain.Holder // the endpoints of the API server's service
	of         map[string][]netip.Addr     // by the node's name
	nodes      map[netip.Addr]int          // how many nodes have an address
	// externals are the services by their externalIPs, so that a node's address costs only the services that name it. Services with ranges of ports
	// are also there by their load balancer IPs.
	externals map[netip.Addr]map[*service]struct{}
}

func newAddresses() addresses {
	return addresses{
		of: make(map[string][]netip.Addr), nodes: make(map[netip.Addr]int), externals: make(map[netip.Addr]map[*service]struct{}),
	}
}

// holder returns the holder of an address. Holders that all nodes know come first, so that all nodes return the same
// one.
func (a *addresses) holder(addr netip.Addr) brain.Holder {
	own, api, node := a.own[addr], a.apiServers[addr], ""
	if a.nodes[addr] > 0 {
		node = "the address of a node"
	}
	return brain.Holder{
		Is: cmp.Or(api.Is, node, own.Is), Interface: cmp.Or(api.Is, node) == "" && own.Interface, Ports: slices.Concat(api.Ports, own.Ports),
	}
}

// mostPorts is how many ports of one address count. API servers and relays have one or two.
const mostPorts = 16

// holdersOf returns the holders of the addresses that some ports are reached at.
func holdersOf(is string, at iter.Seq[netip.AddrPort]) map[netip.Addr]brain.Holder {
	holders := map[netip.Addr]brain.Holder{}
	for a := range at {
		h := holders[a.Addr()]
		h.Is = is
		if len(h.Ports) < mostPorts && !slices.Contains(h.Ports, a.Port()) {
			h.Ports = append(h.Ports, a.Port())
		}
		holders[a.Addr()] = h
	}
	return holders
}

// setOwn replaces the node's own addresses, and calls changed with each address for which that makes a difference.
func (a *addresses) setOwn(own Own, changed func(netip.Addr)) {
	now := holdersOf("the address to which this process connects for the cluster's objects", slices.Values(own.Upstream))
	for _, addr := range own.Interfaces {
		if _, ok := now[addr]; !ok {
			now[addr] = brain.Holder{Is: "an address of this node's interfaces", Interface: true}
		}
	}
	replace(&a.own, now, changed)
}

// setAPIServers replaces the endpoints of the API server's service.
func (a *addresses) setAPIServers(endpoints iter.Seq[netip.AddrPort], changed func(netip.Addr)) {
	replace(&a.apiServers, holdersOf("an address of the API server", endpoints), changed)
}

// replace replaces holders, and calls changed with the addresses that have another one.
func replace(holders *map[netip.Addr]brain.Holder, now map[netip.Addr]brain.Holder, changed func(netip.Addr)) {
	previous := *holders
	*holders = now
	for addr, h := range now {
		if was, ok := previous[addr]; !ok || was.Is != h.Is || !slices.Equal(was.Ports, h.Ports) {
			changed(addr)
		}
	}
	for addr := range previous {
		if _, ok := now[addr]; !ok {
			changed(addr)
		}
	}
}

// setNode replaces the addresses of a node. It calls changed with each address that became, or ceased to be, an address
// of any node.
func (a *addresses) setNode(name string, addrs []netip.Addr, changed func(netip.Addr)) {
	previous := a.of[name]
	if slices.Equal(previous, addrs) {
		return
	}
	if len(addrs) == 0 {
		delete(a.of, name)
	} else {
		a.of[name] = addrs
	}
	for _, addr := range addrs {
		if a.nodes[addr]++; a.nodes[addr] == 1 {
			changed(addr)
		}
	}
	for _, addr := range previous {
		if a.nodes[addr]--; a.nodes[addr] == 0 {
			delete(a.nodes, addr)
			changed(addr)
		}
	}
}

// setExternals replaces the externalIPs of a service.
func (a *addresses) setExternals(svc *service, previous, now []netip.Addr) {
	if len(previous)+len(now) == 0 || slices.Equal(previous, now) {
		return
	}
	for _, addr := range previous {
		delete(a.externals[addr], svc)
		if len(a.externals[addr]) == 0 {
			delete(a.externals, addr)
		}
	}
	for _, addr := range now {
		if a.externals[addr] == nil {
			a.externals[addr] = make(map[*service]struct{}, 1)
		}
		a.externals[addr][svc] = struct{}{}
	}
}
