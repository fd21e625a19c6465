package brain

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// PortRange is a range of ports that a Service has at its addresses. Connections keep their port.
type PortRange struct {
	Name        string
	Protocol    state.Protocol
	First, Last uint16
}

// MaxRanges is how many ranges a Service may have. A range for several protocols counts once for each.
const MaxRanges = 64

// rangeEntries is the cost of a range at an address, in addition to the cost of a frontend. A dataplane has up to 30 blocks of ports for it.
const rangeEntries = 30

// wantRanges completes the sentence "the value is not ...".
const wantRanges = `a list such as "rtp=10000-19999/UDP, all=*" of up to 64 ranges of ports without overlaps and with names that no port of the Service has`

// readRanges reads a list of items "name=first-last" or "name=*", with "/PROTOCOL" behind it unless they are for all protocols.
func readRanges(s *Settings, value string) (want string) {
	if strings.Count(value, ",") >= MaxRanges {
		return wantRanges
	}
	var ranges []PortRange
	for item := range strings.SplitSeq(value, ",") {
		r, protocols, ok := parseRange(strings.TrimSpace(item))
		if !ok {
			return wantRanges
		}
		for _, r.Protocol = range protocols {
			if slices.ContainsFunc(ranges, r.clashes) {
				return wantRanges
			}
			ranges = append(ranges, r)
		}
	}
	if len(ranges) > MaxRanges {
		return wantRanges
	}
	s.Ranges = ranges
	return ""
}

var allProtocols = []state.Protocol{state.TCP, state.UDP, state.SCTP}

func parseRange(item string) (r PortRange, protocols []state.Protocol, ok bool) {
	name, rest, ok := strings.Cut(item, "=")
	if !ok || !isPortName(name) {
		return r, nil, false
	}
	ports, protocol, hasProtocol := strings.Cut(rest, "/")
	protocols = allProtocols
	if hasProtocol {
		i := slices.IndexFunc(allProtocols, func(p state.Protocol) bool { return p.String() == protocol })
		if i < 0 {
			return r, nil, false
		}
		protocols = allProtocols[i : i+1]
	}
	r = PortRange{Name: name, First: 1, Last: 65535}
	if ports == "*" {
		return r, protocols, true
	}
	first, last, _ := strings.Cut(ports, "-")
	var okFirst, okLast bool
	r.First, okFirst = parsePort(first)
	r.Last, okLast = parsePort(last)
	return r, protocols, okFirst && okLast && r.First < r.Last
}

// isPortName reports whether a name has the form of a Service port's name.
func isPortName(name string) bool {
	return name != "" && len(name) <= 63 && strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" && name[0] != '-' && name[len(name)-1] != '-'
}

// parsePort reads a port without leading zeros and signs.
func parsePort(text string) (port uint16, ok bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.FormatUint(n, 10) == text
}

// clashes reports whether two ranges of a Service have a port or a name of the same protocol in common.
func (r PortRange) clashes(o PortRange) bool {
	return r.Protocol == o.Protocol && (r.Name == o.Name || r.First <= o.Last && o.First <= r.Last)
}

// rangesClash returns what the annotation must be if one of its ranges has the name of a port of the Service.
func rangesClash(ranges []PortRange, ports []model.ServicePort) (want string) {
	if len(ranges) == 0 {
		return ""
	}
	for i := range ports {
		p := &ports[i]
		if slices.ContainsFunc(ranges, func(r PortRange) bool { return r.Name == p.Name && r.Protocol == p.Protocol }) {
			return wantRanges
		}
	}
	return ""
}

// RangeRefusal is an address of a service that gets no ranges of ports.
type RangeRefusal struct {
	Addr netip.Addr
	// Is completes the sentence "the address is ...".
	Is string
}

// RefuseRanges returns the addresses of a service that get no ranges, although the service asks for some. They are addresses of nodes, of API servers and of
// the process's own source. Otherwise a range could take the connections to the kubelet or to ssh. holder is as for [AdmitExternalIPs]. A load balancer's
// agent may add the load balancer IP to an interface of this node, which is no reason to refuse it.
func RefuseRanges(cfg *Config, svc *model.Service, holder func(netip.Addr) Holder) (refused []RangeRefusal) {
	if skips(cfg, svc) != "" || len(SettingsOf(cfg, svc).Ranges) == 0 {
		return nil
	}
	refuse := func(addrs []netip.Addr, interfaces bool) {
		for _, addr := range addrs {
			if h := holder(addr); h.Is != "" && (interfaces || !h.Interface) {
				refused = append(refused, RangeRefusal{addr, h.Is})
			}
		}
	}
	if svc.Type == model.TypeLoadBalancer {
		refuse(svc.LoadBalancerIPs, false)
	}
	refuse(svc.ExternalIPs, true)
	return refused
}

// rangeFrontends returns the frontends of a range: all frontends of a port but the addresses that get no range.
func (c *Config) rangeFrontends(frontends []state.Frontend) []state.Frontend {
	if len(c.NoRanges) == 0 {
		return frontends
	}
	return slices.DeleteFunc(slices.Clone(frontends), func(f state.Frontend) bool { return slices.Contains(c.NoRanges, f.Addr) })
}

// rangeClaims appends the ranges of a service to its claims.
func rangeClaims(buf []claim, cfg *Config, ranges []PortRange, families []state.Family, addresses *[2]vips, b *budget, why *Explanation) []claim {
	for i := range ranges {
		r := &ranges[i]
		port := &model.ServicePort{Name: r.Name, Protocol: r.Protocol, Port: r.First}
		for _, family := range families {
			v := &addresses[indexOf(family)]
			n := len(cfg.rangeFrontends(v.frontends))
			if n == 0 {
				continue
			}
			if !b.frontends(port, int64(n), v.entries+int64(n)*rangeEntries) {
				why.unroutedPort(port, family, NoRoom)
				continue
			}
			buf = append(buf, claim{port: port, last: r.Last, family: family, hasVIPs: true, frontends: n})
		}
	}
	return buf
}

// ofRange returns the parts of the slices for a range: all endpoints, with port 0.
func (su *supply) ofRange(buf []part, family state.Family) []part {
	for _, s := range su.slices {
		if HandlesSlice(su.cfg, s) && s.Family == family {
			buf = append(buf, part{s, 0, weightOf(su.cfg, s)})
		}
	}
	return buf
}
