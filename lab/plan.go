//go:build linux

package lab

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// call is one way to reach a Service: a client and a frontend.
type call struct {
	service *model.Service
	kind    state.FrontendKind
	packet  probe.Packet
	// expect is the oracle's answer.
	expect probe.Answer
	// shares are the shares of connections that weights ask for, nil if all endpoints have the same share. hashed is set if a hash of the client's
	// address chooses the endpoint.
	shares map[netip.AddrPort]float64
	hashed bool
	// growing is set if the Service has a slow start, so that any share is right.
	growing bool
	// silent are endpoints that answer nothing, and get no connections once they are ejected. It is nil if the Service does not eject endpoints.
	silent map[netip.Addr]bool
	// relayed is set if endpoints see the node's address in any case.
	relayed bool
	// elsewhere are endpoints on other nodes. It is nil if the edge does not take the connections. Otherwise, it hands those to these endpoints over, and
	// all endpoints see the client.
	elsewhere map[netip.Addr]bool
}

// client is one that connects to Services.
type client struct {
	from  probe.Client
	addrs []netip.Addr
}

// plan lists every call of every client to every frontend that the node under test serves, ordered by service, port,
// frontend and client. nodeAddrs are the addresses that node ports are tried on, and can the features of the dataplane.
func plan(world *oracle.World, clients []client, nodeAddrs []netip.Addr, can state.Features) []call {
	services := slices.SortedFunc(slices.Values(world.Services), func(a, b *model.Service) int { return a.Name.Compare(b.Name) })
	var calls []call
	for _, svc := range services {
		for _, port := range svc.Ports {
			for _, f := range frontends(svc, port, nodeAddrs) {
				for _, c := range clients {
					src, ok := ofFamily(c.addrs, state.FamilyOf(f.addr.Addr()))
					if !ok {
						continue
					}
					p := probe.Packet{From: c.from, Src: src, Dst: f.addr, Protocol: port.Protocol}
					if expect := world.Ask(p); expect.Outcome != probe.Pass {
						c := call{service: svc, kind: f.kind, packet: p, expect: expect}
						c.balance(can)
						calls = append(calls, c)
					}
				}
			}
		}
	}
	return calls
}

type frontend struct {
	kind state.FrontendKind
	addr netip.AddrPort
}

// frontends are the addresses that an object offers for one of its ports. Which of them are served, and how, is the oracle's
// business.
func frontends(svc *model.Service, port model.ServicePort, nodeAddrs []netip.Addr) []frontend {
	var list []frontend
	add := func(kind state.FrontendKind, addrs []netip.Addr, port uint16) {
		for _, a := range addrs {
			list = append(list, frontend{kind, netip.AddrPortFrom(a, port)})
		}
	}
	add(state.ClusterIP, svc.ClusterIPs, port.Port)
	add(state.ExternalIP, svc.ExternalIPs, port.Port)
	add(state.LoadBalancer, svc.LoadBalancerIPs, port.Port)
	if port.NodePort != 0 {
		for _, ip := range svc.ClusterIPs {
			if a, ok := ofFamily(nodeAddrs, state.FamilyOf(ip)); ok {
				add(state.NodePort, []netip.Addr{a}, port.NodePort)
			}
		}
	}
	return list
}

// ofFamily returns the first address of a family.
func ofFamily(addrs []netip.Addr, family state.Family) (netip.Addr, bool) {
	i := slices.IndexFunc(addrs, func(a netip.Addr) bool { return state.FamilyOf(a) == family })
	if i < 0 {
		return netip.Addr{}, false
	}
	return addrs[i], true
}
