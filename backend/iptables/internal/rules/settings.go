package rules

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// Settings are what the tables depend on in addition to the Services.
type Settings struct {
	// Detector distinguishes pods.
	Detector state.LocalDetector
	// PodCIDRs are the node's own.
	PodCIDRs []netip.Prefix
	// ServiceCIDRs swallow what no Service has.
	ServiceCIDRs []netip.Prefix
	// NodePorts are the addresses that serve NodePorts, of both families.
	NodePorts []netip.Addr
	// MasqueradeMark has the one bit of packet marks that marks connections for masquerading.
	MasqueradeMark uint32
	// UpstreamMark is the bit of the mark of connections that go past Services, except for cluster IPs. 0: there are none.
	UpstreamMark uint32
	// MaxAffinityClients is how many clients each endpoint of a Service port with affinity remembers.
	MaxAffinityClients uint32
	// Counters has sets count new connections to each frontend.
	Counters bool
	// DropInvalid keeps packets of endpoints that connection tracking takes for invalid from being forwarded. It does not translate them, so that
	// clients would get them from an address to which they have no connection, and answer with a reset.
	DropInvalid bool
	// Answerers are the addresses of this node that answer echo requests, at most one of each family.
	Answerers []netip.Addr
}

// Equal reports whether two settings are the same.
func (s *Settings) Equal(o *Settings) bool {
	return s.Detector.Equal(o.Detector) && slices.Equal(s.PodCIDRs, o.PodCIDRs) && slices.Equal(s.ServiceCIDRs, o.ServiceCIDRs) &&
		slices.Equal(s.NodePorts, o.NodePorts) && s.MasqueradeMark == o.MasqueradeMark && s.MaxAffinityClients == o.MaxAffinityClients &&
		s.Counters == o.Counters && s.UpstreamMark == o.UpstreamMark && s.DropInvalid == o.DropInvalid &&
		slices.Equal(s.Answerers, o.Answerers)
}

// Check returns what of the settings no rule can say.
func (s *Settings) Check() error {
	for _, name := range []string{s.Detector.BridgeInterface, s.Detector.InterfacePrefix} {
		if strings.ContainsAny(name, `"'\+!`) {
			return fmt.Errorf("no rule of iptables can name the interface %q of the local-traffic detector: rename it, or detect pods by cluster CIDRs", name)
		}
	}
	return nil
}

// ServesLoopback reports whether NodePorts are served on loopback addresses, which are of IPv4.
func (s *Settings) ServesLoopback() bool {
	return slices.ContainsFunc(s.NodePorts, netip.Addr.IsLoopback)
}

// pods returns what matches packets of pods.
func (s *Settings) pods(f state.Family) []string {
	d := s.Detector
	switch {
	case len(d.ClusterCIDRs) > 0:
		return sources(d.ClusterCIDRs, f)
	case d.NodeCIDR:
		return sources(s.PodCIDRs, f)
	case d.BridgeInterface != "":
		return []string{"-i " + d.BridgeInterface}
	case d.InterfacePrefix != "":
		return []string{"-i " + d.InterfacePrefix + "+"}
	}
	return nil
}

func sources(prefixes []netip.Prefix, f state.Family) []string {
	var matches []string
	for _, p := range prefixes {
		if state.FamilyOf(p.Addr()) == f {
			matches = append(matches, matchPrefix("-s", p))
		}
	}
	return matches
}

// matchPrefix matches an address. Of one with length 0, which everything matches, nothing is left when rules are listed.
func matchPrefix(option string, p netip.Prefix) string {
	if p.Bits() == 0 {
		return ""
	}
	return option + " " + p.Masked().String()
}

// rule joins the parts of a rule that are not empty.
func rule(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(p string) bool { return p == "" }), " ")
}

const (
	fromNode = "-m addrtype --src-type LOCAL"
	toOthers = "-m addrtype ! --dst-type LOCAL"
)

// The sets that all Services share.
const (
	setFrontends     = "FRONTENDS"
	setNodePorts     = "NODE-PORTS"
	setNodeAddresses = "NODE-ADDRESSES"
	setClusterIPs    = "CLUSTER-IPS"
	setHairpin       = "HAIRPIN"
	setInvalid       = "INVALID"
)

// maxElements bounds the sets that Services share, and their source ranges: far above what a node has.
const maxElements = 1 << 22

// sharedSets returns the sets that are always there.
func sharedSets(f state.Family) []ipset.Set {
	var sets []ipset.Set
	for name, kind := range map[string]ipset.Type{
		setFrontends: ipset.IPPort, setNodePorts: ipset.NetPort, setNodeAddresses: ipset.IP, setClusterIPs: ipset.IP, setHairpin: ipset.IPPortIP,
	} {
		sets = append(sets, ipset.Set{Name: setName(f, name), Type: kind, Family: f, MaxElements: maxElements})
	}
	return append(sets, invalidSet(f))
}

// fixedChains returns the chains that do not depend on single Services. pings is set if addresses answer echo requests.
func (s *Settings) fixedChains(f state.Family, pings bool) map[ChainID]string {
	match := func(name, dimensions string) string {
		return "-m set --match-set " + setName(f, name) + " " + dimensions
	}
	mark := func(value uint32) string { return fmt.Sprintf("-j MARK --set-xmark %#x/%#x", value, s.MasqueradeMark) }
	toFrontend := match(setFrontends, "dst,dst")
	toNodePort := rule(match(setNodeAddresses, "dst"), match(setNodePorts, "dst,dst"))
	var unlessPod []string
	for _, pods := range s.pods(f) {
		unlessPod = append(unlessPod, rule(pods, "-j RETURN"))
	}
	rejection := "icmp-port-unreachable"
	if f == state.IPv6 {
		rejection = "icmp6-port-unreachable"
	}
	strays := []string{
		"-m conntrack --ctstate DNAT -j RETURN",
		toFrontend + " -g " + chainGuard,
		toNodePort + " -g " + chainGuardNodePort,
	}
	if pings {
		strays = append(strays, rule(icmp(f), match(setPingDrop, "dst,dst"), toOthers, "-j DROP"))
	}
	strays = append(strays, match(setClusterIPs, "dst")+" "+toOthers+" -g "+chainReject)
	for _, p := range s.ServiceCIDRs {
		if state.FamilyOf(p.Addr()) == f {
			strays = append(strays, rule(matchPrefix("-d", p), toOthers, "-j DROP"))
		}
	}
	chains := map[ChainID][]string{
		{NAT, chainServices}:      {toFrontend + " -g " + rootAddresses, toNodePort + " -g " + rootNodePorts},
		{NAT, chainMark}:          {mark(s.MasqueradeMark)},
		{NAT, chainMarkUnlessPod}: append(slices.Clone(unlessPod), mark(s.MasqueradeMark)),
		{NAT, chainMarkNode}:      append(slices.Clone(unlessPod), fromNode+" "+mark(s.MasqueradeMark)),
		{NAT, chainMasquerade}:    {mark(0), "-j MASQUERADE --random-fully"},
		{NAT, chainPostrouting}: {
			"-m conntrack ! --ctstate DNAT -j RETURN",
			fmt.Sprintf("-m mark --mark %#x/%#x -g %s", s.MasqueradeMark, s.MasqueradeMark, chainMasquerade),
			match(setHairpin, "src,dst,dst") + " -j MASQUERADE --random-fully",
		},
		{Filter, chainFilter}:        strays,
		{Filter, chainGuard}:         {"-j " + rootRejectAddresses, "-j DROP"},
		{Filter, chainGuardNodePort}: {"-j " + rootRejectNodePorts, "-j DROP"},
		{Filter, chainReject}:        {"-p tcp -j REJECT --reject-with tcp-reset", "-j REJECT --reject-with " + rejection},
	}
	if s.Counters {
		// These rules only count packets to the elements of the set. A frontend with an address comes before a node
		// port.
		count := func(set string) string { return match(set, "dst,dst") }
		services, reject := ChainID{NAT, chainServices}, ChainID{Filter, chainReject}
		chains[services] = []string{count(setCounts), chains[services][0], rule(match(setNodeAddresses, "dst"), count(setPortCounts)), chains[services][1]}
		chains[ChainID{Filter, chainGuard}] = []string{"-j " + rootRejectAddresses, count(setDropCounts), "-j DROP"}
		chains[ChainID{Filter, chainGuardNodePort}] = []string{"-j " + rootRejectNodePorts, count(setPortDropCounts), "-j DROP"}
		chains[reject] = append([]string{count(setRejectCounts),
			rule("-m set ! --match-set "+setName(f, setFrontends)+" dst,dst", match(setNodeAddresses, "dst"), count(setPortRejectCounts))}, chains[reject]...)
	}
	if pings {
		services := ChainID{NAT, chainServices}
		chains[services] = append(chains[services], icmp(f)+" -g "+chainPing)
		chains[ChainID{NAT, chainPing}], chains[ChainID{NAT, chainPingInside}] = s.pingRules(f)
	}
	if s.DropInvalid {
		// Only what comes from an endpoint would have been translated. Of connections that pass this node in one direction only, every packet is invalid.
		chains[ChainID{Filter, chainInvalid}] = []string{
			"-m set ! --match-set " + setName(f, setHairpin) + " src,src,src -j RETURN",
			match(setInvalid, "dst"), // which counts
			"-j DROP",
		}
	}
	if s.UpstreamMark != 0 {
		// Marks of packets that are forwarded may come from other programs.
		past := fmt.Sprintf("%s -m mark --mark %#x/%#x -m set ! --match-set %s dst -j RETURN", fromNode, s.UpstreamMark, s.UpstreamMark, setName(f, setClusterIPs))
		for _, id := range []ChainID{{NAT, chainServices}, {Filter, chainFilter}} {
			chains[id] = append([]string{past}, chains[id]...)
		}
	}
	if f == state.IPv4 && s.ServesLoopback() {
		chains[ChainID{Raw, chainLoopback}] = []string{"-s 127.0.0.0/8 ! -i lo -j DROP", "-d 127.0.0.0/8 ! -i lo -j DROP"}
	}
	out := map[ChainID]string{}
	for id, rules := range chains {
		out[id] = strings.Join(rules, "\n")
	}
	return out
}

// Jump is a rule in a built-in chain that leads to one of ours.
type Jump struct {
	From ChainID
	Rule string
}

// jumps returns those that there are to be.
func (s *Settings) jumps(f state.Family) []Jump {
	const isNew = "-m conntrack --ctstate NEW "
	jumps := []Jump{
		{ChainID{NAT, "PREROUTING"}, "-j " + chainServices},
		{ChainID{NAT, "OUTPUT"}, "-j " + chainServices},
		{ChainID{NAT, "POSTROUTING"}, "-j " + chainPostrouting},
		{ChainID{Filter, "INPUT"}, isNew + "-j " + chainFilter},
		{ChainID{Filter, "FORWARD"}, isNew + "-j " + chainFilter},
		{ChainID{Filter, "OUTPUT"}, isNew + "-j " + chainFilter},
	}
	if s.DropInvalid {
		jumps = append(jumps, Jump{ChainID{Filter, "FORWARD"}, "-m conntrack --ctstate INVALID -j " + chainInvalid})
	}
	if f == state.IPv4 && s.ServesLoopback() {
		jumps = append(jumps, Jump{ChainID{Raw, "PREROUTING"}, "-j " + chainLoopback})
	}
	return jumps
}
