package protoconv

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"time"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// ParseService reads a record. It checks everything that the protocol says about one, and fails at the first fault. The record
// shares no memory with the message but strings.
func ParseService(m *localnetv1.ServiceEndpoints) (*state.Service, error) {
	s := &state.Service{Name: state.ServiceName{Namespace: m.GetNamespace(), Name: m.GetName()}}
	if err := readService(m, s); err != nil {
		return nil, fmt.Errorf("service %v: %w", s.Name, err)
	}
	return s, nil
}

func readService(m *localnetv1.ServiceEndpoints, s *state.Service) error {
	sources, err := parse("source_ranges", m.GetSourceRanges(), parseSourceRanges)
	if err != nil {
		return err
	}
	if list := m.GetPorts(); len(list) > 0 {
		s.Ports = make([]state.Port, len(list))
		for i, p := range list {
			if err := readPort(p, sources, &s.Ports[i]); err != nil {
				return fmt.Errorf("port %s (%v, %v): %w", quote(p.GetName()), p.GetProtocol(), p.GetFamily(), err)
			}
			if i > 0 && s.Ports[i-1].Compare(&s.Ports[i]) >= 0 {
				return fmt.Errorf("port %s (%v, %v): must come before ports[%d] and occur once; they are ordered by name, protocol and family",
					quote(p.GetName()), p.GetProtocol(), p.GetFamily(), i-1)
			}
		}
	}
	if h := m.GetHealthCheck(); h != nil {
		port, err := parsePort(h.GetPort())
		if err != nil {
			return fmt.Errorf("health_check.port %w", err)
		}
		if n := max(h.GetLocalIpv4(), h.GetLocalIpv6()); n > math.MaxInt32 {
			return fmt.Errorf("health_check.local_ipv4 or local_ipv6 is %d; it must be %d at most", n, math.MaxInt32)
		}
		s.HealthCheck = state.HealthCheck{Port: port, LocalIPv4: int(h.GetLocalIpv4()), LocalIPv6: int(h.GetLocalIpv6())}
	}
	return nil
}

func readPort(m *localnetv1.Port, sources [][]netip.Prefix, p *state.Port) (err error) {
	switch m.GetProtocol() {
	case localnetv1.Protocol_PROTOCOL_TCP, localnetv1.Protocol_PROTOCOL_UDP, localnetv1.Protocol_PROTOCOL_SCTP:
	default:
		return fmt.Errorf("protocol is %v, which is not known here", m.GetProtocol())
	}
	switch m.GetFamily() {
	case localnetv1.Family_FAMILY_IPV4, localnetv1.Family_FAMILY_IPV6:
	default:
		return fmt.Errorf("family is %v, which is not known here", m.GetFamily())
	}
	p.Name, p.Protocol, p.Family = m.GetName(), state.Protocol(m.GetProtocol()), state.Family(m.GetFamily())
	p.Affinity = time.Duration(m.GetAffinitySeconds()) * time.Second
	if err := readFrontends(m.GetFrontends(), sources, p); err != nil {
		return err
	}
	if _, known := localnetv1.Balance_name[int32(m.GetBalance())]; !known {
		return fmt.Errorf("balance is %v, which is not known here", m.GetBalance())
	}
	p.Balance, p.Ejection, p.DrainSeconds = state.Balance(m.GetBalance()), m.GetEjection(), m.GetDrainSeconds()
	ranges := p.Frontends[0].LastPort != 0
	all, err := parse("endpoints", m.GetEndpoints(), func(e *localnetv1.Endpoint) (state.Endpoint, error) { return parseEndpoint(p.Family, ranges, e) })
	if err != nil {
		return err
	}
	if err := ascending("endpoints", "address and port", all, state.Endpoint.Compare); err != nil {
		return err
	}
	// Frontends are ordered by kind, and ClusterIP is the first kind.
	internal := p.Frontends[0].Kind == state.ClusterIP
	external := p.Frontends[len(p.Frontends)-1].Kind != state.ClusterIP
	if p.Internal, err = parseTraffic("internal", "CLUSTER_IP", internal, m.GetInternal(), all, nil); err != nil {
		return err
	}
	routes := []state.Route{p.Internal.Inside, p.Internal.Outside}
	if p.External, err = parseTraffic("external", "another kind than CLUSTER_IP", external, m.GetExternal(), all, routes); err != nil {
		return err
	}
	if p.Protocol != state.UDP && p.DrainSeconds == 0 && len(m.GetLingering()) > 0 {
		return fmt.Errorf("lingering has endpoints; only endpoints of UDP and of ports with drain_seconds can linger")
	}
	if p.Lingering, err = pick("lingering", m.GetLingering(), all); err != nil {
		return err
	}
	p.Edge, err = parseEdge(m.GetEdge(), all, p)
	return err
}

// parseSourceRanges reads a list of ranges of one family. The frontends that name it share its memory.
func parseSourceRanges(m *localnetv1.SourceRanges) ([]netip.Prefix, error) {
	if len(m.GetRanges()) == 0 {
		return nil, fmt.Errorf(".ranges is empty; a list has at least one")
	}
	list, err := parseRanges(".ranges", m.GetRanges())
	if err != nil {
		return nil, err
	}
	// They are sorted, and IPv4 comes first.
	if first, last := list[0], list[len(list)-1]; state.FamilyOf(first.Addr()) != state.FamilyOf(last.Addr()) {
		return nil, fmt.Errorf(".ranges has %v and %v; a list must be of one family", first, last)
	}
	return list, nil
}

func readFrontends(list []*localnetv1.Frontend, sources [][]netip.Prefix, p *state.Port) (err error) {
	if len(list) == 0 {
		return fmt.Errorf("frontends is empty; a port has at least one")
	}
	p.Frontends, err = parse("frontends", list, func(f *localnetv1.Frontend) (state.Frontend, error) { return parseFrontend(p.Family, sources, f) })
	if err != nil {
		return err
	}
	for i := range p.Frontends {
		if (p.Frontends[i].LastPort != 0) != (p.Frontends[0].LastPort != 0) {
			return fmt.Errorf("frontends[%d].last_port is %d, and %d in frontends[0]; either all have one, or none", i, p.Frontends[i].LastPort, p.Frontends[0].LastPort)
		}
	}
	return ascending("frontends", "kind, address and port", p.Frontends, state.Frontend.Compare)
}

func parseFrontend(family state.Family, sources [][]netip.Prefix, m *localnetv1.Frontend) (f state.Frontend, err error) {
	switch m.GetKind() {
	case localnetv1.FrontendKind_FRONTEND_KIND_CLUSTER_IP, localnetv1.FrontendKind_FRONTEND_KIND_EXTERNAL_IP,
		localnetv1.FrontendKind_FRONTEND_KIND_LOAD_BALANCER:
		if f.Addr, err = parseAddressOf(family, m.GetAddress()); err != nil {
			return f, fmt.Errorf(".address %w", err)
		}
	case localnetv1.FrontendKind_FRONTEND_KIND_NODE_PORT:
		if n := len(m.GetAddress()); n > 0 {
			return f, fmt.Errorf(".address has %d bytes; a NODE_PORT must not have an address", n)
		}
	default:
		return f, fmt.Errorf(".kind is %v, which is not known here", m.GetKind())
	}
	f.Kind = state.FrontendKind(m.GetKind())
	if f.Port, err = parsePort(m.GetPort()); err != nil {
		return f, fmt.Errorf(".port %w", err)
	}
	if last := m.GetLastPort(); last != 0 {
		if last > math.MaxUint16 || last <= m.GetPort() {
			return f, fmt.Errorf(".last_port is %d; it must be from %d to 65535, or 0", last, m.GetPort()+1)
		}
		f.LastPort = uint16(last)
	}
	if f.Ping = m.GetPing(); f.Ping && f.Kind == state.NodePort {
		return f, fmt.Errorf(".ping is set; a NODE_PORT has no address that could answer")
	}
	f.Restricted = m.GetRestricted()
	if m.SourceRanges == nil {
		return f, nil
	}
	i := m.GetSourceRanges()
	switch {
	case !f.Restricted:
		return f, fmt.Errorf(".source_ranges is set; it must not be, unless restricted is")
	case uint64(i) >= uint64(len(sources)):
		return f, fmt.Errorf(".source_ranges is %d; it must be less than %d, the number of the service's lists", i, len(sources))
	case state.FamilyOf(sources[i][0].Addr()) != family:
		return f, fmt.Errorf(".source_ranges is %d, which begins with %v; it must be of the family %v", i, sources[i][0], family)
	}
	f.Sources = sources[i]
	return f, nil
}

// parseEndpoint reads an endpoint. Behind ranges, it has no port.
func parseEndpoint(family state.Family, ranges bool, m *localnetv1.Endpoint) (e state.Endpoint, err error) {
	addr, err := parseAddressOf(family, m.GetAddress())
	if err != nil {
		return e, fmt.Errorf(".address %w", err)
	}
	if ranges {
		if m.GetPort() != 0 {
			return e, fmt.Errorf(".port is %d; it must be 0, because the frontends have last_port", m.GetPort())
		}
		return state.Endpoint{Addr: netip.AddrPortFrom(addr, 0), Local: m.GetLocal()}, nil
	}
	port, err := parsePort(m.GetPort())
	if err != nil {
		return e, fmt.Errorf(".port %w", err)
	}
	return state.Endpoint{Addr: netip.AddrPortFrom(addr, port), Local: m.GetLocal()}, nil
}

// parseTraffic reads the traffic to frontends of a kind, which must be there exactly if there are any. Routes that are equal
// to an earlier one share its memory.
func parseTraffic(what, kind string, wanted bool, m *localnetv1.Traffic, all []state.Endpoint, earlier []state.Route) (t state.Traffic, err error) {
	switch {
	case !wanted && m == nil:
		return t, nil
	case !wanted:
		return t, fmt.Errorf("%s is set, but there is no frontend of %s", what, kind)
	case m == nil:
		return t, fmt.Errorf("%s is not set, but there is a frontend of %s", what, kind)
	}
	if t.Inside, err = parseRoute(what+".inside", m.GetInside(), all, earlier...); err != nil {
		return t, err
	}
	if t.Outside, err = parseRoute(what+".outside", m.GetOutside(), all, append(earlier, t.Inside)...); err != nil {
		return t, err
	}
	switch m.GetMasquerade() {
	case localnetv1.Masquerade_MASQUERADE_NEVER, localnetv1.Masquerade_MASQUERADE_ALWAYS,
		localnetv1.Masquerade_MASQUERADE_UNLESS_POD, localnetv1.Masquerade_MASQUERADE_NODE:
	default:
		return t, fmt.Errorf("%s.masquerade is %v, which is not known here", what, m.GetMasquerade())
	}
	t.Masquerade = state.Masquerade(m.GetMasquerade() - localnetv1.Masquerade_MASQUERADE_NEVER)
	return t, nil
}

func parseRoute(what string, m *localnetv1.Route, all []state.Endpoint, earlier ...state.Route) (r state.Route, err error) {
	switch m.GetVerdict() {
	case localnetv1.Verdict_VERDICT_FORWARD, localnetv1.Verdict_VERDICT_REJECT, localnetv1.Verdict_VERDICT_DROP:
	default:
		return r, fmt.Errorf("%s.verdict is %v, which is not known here", what, m.GetVerdict())
	}
	r.Verdict = state.Verdict(m.GetVerdict())
	if forward := r.Verdict == state.Forward; forward != (len(m.GetEndpoints()) > 0) {
		return r, fmt.Errorf("%s has the verdict %v and %d endpoints; it must be FORWARD exactly if there are endpoints",
			what, m.GetVerdict(), len(m.GetEndpoints()))
	}
	if r.Endpoints, err = pick(what+".endpoints", m.GetEndpoints(), all); err != nil {
		return r, err
	}
	if err := readWeights(what, m, &r); err != nil {
		return r, err
	}
	for i := range earlier {
		if r.Equal(&earlier[i]) {
			return earlier[i], nil
		}
	}
	return r, nil
}

// readWeights gives the endpoints of a route their weights. The list of the route is a copy then.
func readWeights(what string, m *localnetv1.Route, r *state.Route) error {
	list := m.GetWeights()
	switch {
	case len(list) == 0 && m.GetRefusedWeight() == 0:
		return nil
	case len(list) == 0:
		return fmt.Errorf("%s.refused_weight is %d; it must be 0 without weights", what, m.GetRefusedWeight())
	case len(list) != len(r.Endpoints):
		return fmt.Errorf("%s has %d weights and %d endpoints; each endpoint has one, or none has", what, len(list), len(r.Endpoints))
	}
	r.Endpoints, r.Refused = slices.Clone(r.Endpoints), m.GetRefusedWeight()
	for i, w := range list {
		if w == 0 || w > math.MaxUint16 {
			return fmt.Errorf("%s.weights[%d] is %d; it must be from 1 to 65535", what, i, w)
		}
		r.Endpoints[i].Weight = uint16(w)
	}
	return nil
}

// pick returns the items of all that the ascending list names. If it names all, it is all.
func pick(what string, list []uint32, all []state.Endpoint) ([]state.Endpoint, error) {
	if len(list) == 0 {
		return nil, nil
	}
	for i, at := range list {
		switch {
		case uint64(at) >= uint64(len(all)):
			return nil, fmt.Errorf("%s[%d] is %d; the port has %d endpoints", what, i, at, len(all))
		case i > 0 && at <= list[i-1]:
			return nil, fmt.Errorf("%s[%d] is %d after %d; they must be ascending", what, i, at, list[i-1])
		}
	}
	if len(list) == len(all) {
		return slices.Clip(all), nil
	}
	some := make([]state.Endpoint, len(list))
	for i, at := range list {
		some[i] = all[at]
	}
	return some, nil
}

// parseRanges reads ranges of addresses that are masked and sorted.
func parseRanges(what string, list []*localnetv1.Prefix) ([]netip.Prefix, error) {
	ranges, err := parseMasked(what, list)
	if err != nil {
		return nil, err
	}
	return ranges, ascending(what, "address and length", ranges, netip.Prefix.Compare)
}

func parseMasked(what string, list []*localnetv1.Prefix) ([]netip.Prefix, error) {
	return parse(what, list, func(m *localnetv1.Prefix) (netip.Prefix, error) {
		p, err := parsePrefix(m.GetAddress(), m.GetLength())
		if err == nil && p != p.Masked() {
			err = fmt.Errorf(" is %v; it must be masked, %v", p, p.Masked())
		}
		return p, err
	})
}

// Node returns the message of a node.
func Node(n *state.Node) *localnetv1.Node {
	return &localnetv1.Node{
		Name:         text(n.Name),
		Addresses:    addresses(n.Addresses),
		PodCidrs:     messages(n.PodCIDRs, fillPrefix),
		ServiceCidrs: messages(n.ServiceCIDRs, fillPrefix),

		PodDetection:      podDetection(n.LocalDetector),
		NodePortAddresses: nodePortAddresses(n.NodePorts),

		Peers: messages(n.Peers, fillPeer),
	}
}

// ParseNode reads a node, which must be set. If only some settings or the peers have faults, it returns the node without these
// settings or all peers, and an error.
func ParseNode(m *localnetv1.Node) (*state.Node, error) {
	if m == nil {
		return nil, fmt.Errorf("node is not set")
	}
	n := &state.Node{Name: m.GetName()}
	var err error
	if n.Addresses, err = parseAddresses("addresses", m.GetAddresses()); err != nil {
		return nil, fmt.Errorf("node %s: %w", quote(n.Name), err)
	}
	if n.PodCIDRs, err = parseRanges("pod_cidrs", m.GetPodCidrs()); err != nil {
		return nil, fmt.Errorf("node %s: %w", quote(n.Name), err)
	}
	if n.ServiceCIDRs, err = parseRanges("service_cidrs", m.GetServiceCidrs()); err != nil {
		return nil, fmt.Errorf("node %s: %w", quote(n.Name), err)
	}
	var faults []error
	if n.LocalDetector, err = parsePodDetection(m.GetPodDetection()); err != nil {
		faults = append(faults, fmt.Errorf("node %s: pod_detection: %w", quote(n.Name), err))
	}
	if n.NodePorts, err = parseNodePortAddresses(m.GetNodePortAddresses()); err != nil {
		faults = append(faults, fmt.Errorf("node %s: node_port_addresses: %w", quote(n.Name), err))
	}
	if n.Peers, err = parsePeers(m.GetPeers()); err != nil {
		faults = append(faults, fmt.Errorf("node %s: %w", quote(n.Name), err))
	}
	return n, errors.Join(faults...)
}
