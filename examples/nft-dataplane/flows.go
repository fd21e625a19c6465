//go:build linux

package main

import (
	"errors"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/switchyard-net/switchyard/client"
	api "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// flows cuts UDP flows that lead where they no longer should. The kernel keeps sending a flow to the endpoint that its
// first packet went to. TCP notices when that endpoint is gone; UDP clients go on sending. It is a filter that matches
// the flows to delete.
type flows struct {
	now, before map[netip.AddrPort]map[netip.AddrPort]bool // endpoints by frontend
}

// cut deletes flows to current frontends, and to frontends of the last cut, whose endpoints do not serve them.
func (f *flows) cut(services []*api.ServiceEndpoints) (err error) {
	if f.now, err = serving(services); err != nil || len(f.now)+len(f.before) == 0 {
		return err
	}
	_, err4 := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V4, f)
	_, err6 := netlink.ConntrackDeleteFilters(netlink.ConntrackTable, netlink.FAMILY_V6, f)
	if err = errors.Join(err4, err6); err == nil {
		f.before = f.now
	}
	return err
}

// MatchConntrackFlow reports whether a flow is to be cut.
func (f *flows) MatchConntrackFlow(flow *netlink.ConntrackFlow) bool {
	to, from := addrPort(flow.Forward.DstIP, flow.Forward.DstPort), addrPort(flow.Reverse.SrcIP, flow.Reverse.SrcPort)
	endpoints, is := f.now[to]
	_, was := f.before[to]
	stale := is && !endpoints[from] || !is && was && from != to
	return stale && flow.Forward.Protocol == uint8(api.Protocol_PROTOCOL_UDP)
}

// serving returns the endpoints to which UDP flows of each frontend may lead. Of two services with a frontend, the later counts.
func serving(services []*api.ServiceEndpoints) (map[netip.AddrPort]map[netip.AddrPort]bool, error) {
	own, err := net.InterfaceAddrs()
	if err != nil {
		return nil, err
	}
	all := make(map[netip.AddrPort]map[netip.AddrPort]bool)
	for _, s := range services {
		for _, p := range s.Ports {
			if p.Protocol != api.Protocol_PROTOCOL_UDP {
				continue
			}
			endpoints := make(map[netip.AddrPort]bool)
			for _, indices := range [][]uint32{
				p.GetInternal().GetInside().GetEndpoints(), p.GetInternal().GetOutside().GetEndpoints(),
				p.GetExternal().GetInside().GetEndpoints(), p.GetExternal().GetOutside().GetEndpoints(), p.Lingering,
			} {
				for e := range client.Endpoints(p, indices) {
					endpoints[client.AddrPort(e)] = true
				}
			}
			for _, f := range p.Frontends {
				if f.Kind != api.FrontendKind_FRONTEND_KIND_NODE_PORT {
					all[client.AddrPort(f)] = endpoints
					continue
				}
				for _, a := range own {
					if addr := netip.MustParsePrefix(a.String()).Addr(); addr.Is4() == (p.Family == api.Family_FAMILY_IPV4) {
						all[netip.AddrPortFrom(addr, uint16(f.Port))] = endpoints
					}
				}
			}
		}
	}
	return all, nil
}

func addrPort(ip net.IP, port uint16) netip.AddrPort {
	addr, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(addr.Unmap(), port)
}
