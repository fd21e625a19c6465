package ruleset

import (
	"iter"
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
)

// endpointKey is the address and port of an endpoint. It holds no pointers, because there are many.
type endpointKey struct {
	addr [16]byte // an IPv4 address as IPv6 maps it, which no endpoint has otherwise
	port uint16
}

func endpointKeyOf(a netip.AddrPort) endpointKey { return endpointKey{a.Addr().As16(), a.Port()} }

func (k endpointKey) addrPort() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16(k.addr).Unmap(), k.port)
}

func (k endpointKey) family() state.Family { return state.FamilyOf(k.addrPort().Addr()) }

// serving counts where each TCP endpoint of a state stands: in how many routes, and how many times as a lingering one. An endpoint that is not
// in it serves nobody.
type serving map[endpointKey]int32

// countServing counts the endpoints of all services of a state.
func countServing(services []*state.Service) serving {
	counts := serving{}
	for _, s := range services {
		for i := range s.Ports {
			for _, list := range servingLists(&s.Ports[i]) {
				for _, e := range list {
					counts[endpointKeyOf(e.Addr)]++
				}
			}
		}
	}
	return counts
}

// moves are the changes of such counts.
type moves map[endpointKey]move

type move struct {
	by int32
	// from is the service whose route or list the endpoint left last.
	from state.ServiceName
}

// movesOf returns what changes of services mean for the counts.
func movesOf(changed iter.Seq2[*state.Service, *state.Service]) moves {
	m := moves{}
	for was, is := range changed {
		m.service(was, is)
	}
	return m
}

// service adds the way from one record of a service to another. Either may be nil.
func (m moves) service(was, is *state.Service) {
	var before, after []state.Port
	var name state.ServiceName
	if was != nil {
		before, name = was.Ports, was.Name
	}
	if is != nil {
		after, name = is.Ports, is.Name
	}
	for len(before) > 0 || len(after) > 0 {
		switch {
		case len(after) == 0 || len(before) > 0 && before[0].Compare(&after[0]) < 0:
			m.port(name, &before[0], nil)
			before = before[1:]
		case len(before) == 0 || before[0].Compare(&after[0]) > 0:
			m.port(name, nil, &after[0])
			after = after[1:]
		default:
			m.port(name, &before[0], &after[0])
			before, after = before[1:], after[1:]
		}
	}
}

func (m moves) port(name state.ServiceName, was, is *state.Port) {
	before, after := servingLists(was), servingLists(is)
	for i := range before {
		m.list(name, before[i], after[i])
	}
}

// servingLists returns the lists of endpoints of a TCP port. There are none if p is nil, of another protocol, or a range, whose endpoints have no port.
func servingLists(p *state.Port) (lists [numRoutes + 1][]state.Endpoint) {
	if p == nil || p.Protocol != state.TCP || isRange(p) {
		return lists
	}
	for i, r := range routes(p) {
		if r != nil {
			lists[i] = r.Endpoints
		}
	}
	lists[numRoutes] = p.Lingering
	return lists
}

// list adds the way from one list to another, which are sorted. A change of a long list takes little more than going along it.
func (m moves) list(name state.ServiceName, from, to []state.Endpoint) {
	if len(from) == len(to) && len(from) > 0 && &from[0] == &to[0] {
		return
	}
	for len(from) > 0 || len(to) > 0 {
		switch {
		case len(from) > 0 && len(to) > 0 && from[0].Addr == to[0].Addr:
			from, to = from[1:], to[1:]
		case len(to) == 0 || len(from) > 0 && from[0].Compare(to[0]) < 0:
			m.add(from[0].Addr, move{-1, name})
			from = from[1:]
		default:
			m.add(to[0].Addr, move{by: 1})
			to = to[1:]
		}
	}
}

func (m moves) add(a netip.AddrPort, d move) {
	k := endpointKeyOf(a)
	now := m[k]
	now.by += d.by
	if d.by < 0 {
		now.from = d.from
	}
	m[k] = now
}
