package store

import (
	"net/netip"
	"slices"
)

// addresses knows the addresses of nodes, and which services have an externalIP that is or may become one. The nodes are all that
// sources have delivered: of a source that follows an API server for one node, that is this node.
type addresses struct {
	of    map[string][]netip.Addr // by the node's name
	nodes map[netip.Addr]int      // how many nodes have an address
	// externals are the services by their externalIPs, so that a node's address costs only the services that name it.
	externals map[netip.Addr]map[*service]struct{}
}

func newAddresses() addresses {
	return addresses{
		of: make(map[string][]netip.Addr), nodes: make(map[netip.Addr]int), externals: make(map[netip.Addr]map[*service]struct{}),
	}
}

// isNode reports whether an address is one of a node.
func (a *addresses) isNode(addr netip.Addr) bool { return a.nodes[addr] > 0 }

// setNode replaces the addresses of a node and calls changed with each address that is one of a node now and was not, or the other way
// round.
func (a *addresses) setNode(name string, addrs []netip.Addr, changed func(netip.Addr)) {
	former := a.of[name]
	if slices.Equal(former, addrs) {
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
	for _, addr := range former {
		if a.nodes[addr]--; a.nodes[addr] == 0 {
			delete(a.nodes, addr)
			changed(addr)
		}
	}
}

// setExternals replaces the externalIPs of a service.
func (a *addresses) setExternals(svc *service, former, now []netip.Addr) {
	if len(former)+len(now) == 0 || slices.Equal(former, now) {
		return
	}
	for _, addr := range former {
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
