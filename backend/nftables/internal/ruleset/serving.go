package ruleset

import (
	"cmp"
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
	of := cmp.Or(was, is)
	for before, after := range portPairs(was, is) {
		m.port(of.Name, before, after)
	}
}

// portPairs yields the ports of two records in their order, nil for a port that one of them lacks. Either record may be nil.
func portPairs(was, is *state.Service) iter.Seq2[*state.Port, *state.Port] {
	return func(yield func(was, is *state.Port) bool) {
		var before, after []state.Port
		if was != nil {
			before = was.Ports
		}
		if is != nil {
			after = is.Ports
		}
		for len(before) > 0 || len(after) > 0 {
			var from, to *state.Port
			if len(after) == 0 || len(before) > 0 && before[0].Compare(&after[0]) <= 0 {
				from = &before[0]
			}
			if len(before) == 0 || len(after) > 0 && before[0].Compare(&after[0]) >= 0 {
				to = &after[0]
			}
			if from != nil {
				before = before[1:]
			}
			if to != nil {
				after = after[1:]
			}
			if !yield(from, to) {
				return
			}
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

// list adds the way from one list to another.
func (m moves) list(name state.ServiceName, from, to []state.Endpoint) {
	for a, leaves := range differing(from, to) {
		if leaves {
			m.add(a, move{-1, name})
		} else {
			m.add(a, move{by: 1})
		}
	}
}

// differing yields the endpoints that only one of two sorted lists has, and whether it is the first one. For long lists that differ little,
// it takes little more than going along them.
func differing(from, to []state.Endpoint) iter.Seq2[netip.AddrPort, bool] {
	return func(yield func(a netip.AddrPort, leaves bool) bool) {
		if len(from) == len(to) && len(from) > 0 && &from[0] == &to[0] {
			return
		}
		for len(from) > 0 || len(to) > 0 {
			var a netip.AddrPort
			leaves := len(to) == 0 || len(from) > 0 && from[0].Compare(to[0]) < 0
			switch {
			case len(from) > 0 && len(to) > 0 && from[0].Addr == to[0].Addr:
				from, to = from[1:], to[1:]
				continue
			case leaves:
				a, from = from[0].Addr, from[1:]
			default:
				a, to = to[0].Addr, to[1:]
			}
			if !yield(a, leaves) {
				return
			}
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
