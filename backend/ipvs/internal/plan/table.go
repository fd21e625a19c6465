package plan

import (
	"encoding/binary"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// TableName is the name of the table, in each family, that does for virtual servers what IPVS cannot. It masquerades their connections. It
// also rejects packets to their addresses that no virtual server serves, because the node owns these addresses.
const TableName = "switchyard-ipvs"

// Tables returns the tables, for IPv4 and for IPv6.
func Tables() []nft.Table { return []nft.Table{TableOf(state.IPv4), TableOf(state.IPv6)} }

// Families are those that have a table.
var Families = []state.Family{state.IPv4, state.IPv6}

// TableOf returns the table of a family.
func TableOf(f state.Family) nft.Table { return nft.Table{Family: family(f), Name: TableName} }

func family(f state.Family) nft.Family {
	if f == state.IPv6 {
		return nft.IPv6
	}
	return nft.IPv4
}

// Names of sets.
const (
	setServers    = "servers"     // address . protocol . port of virtual servers that take new connections
	setAddresses  = "addresses"   // of all virtual servers
	setClusterIPs = "cluster-ips" // of all Services, also the ones that the base serves
	setHairpin    = "hairpin"     // address . the same address, of endpoints
	// Only if [Rules.Ping] is set: addresses of virtual servers at which the node answers echo requests, and cluster IPs that reject none.
	setPing     = "ping-ips"
	setPingDrop = "ping-drop-ips"
)

// masqueradeSets are the sets of virtual servers with a masquerade rule.
var masqueradeSets = map[state.Masquerade]string{
	state.MasqueradeAlways:    "masquerade-always",
	state.MasqueradeUnlessPod: "masquerade-unless-pod",
	state.MasqueradeNode:      "masquerade-node",
}

// masqueradeOrder is the order of their rules.
var masqueradeOrder = []state.Masquerade{state.MasqueradeAlways, state.MasqueradeUnlessPod, state.MasqueradeNode}

// Names of chains.
const (
	chainServices = "services"
	chainUnserved = "unserved"
	chainReject   = "reject"
)

func markChain(m state.Masquerade) string {
	return "mark" + masqueradeSets[m][len("masquerade"):]
}

// Priorities of hooks: right behind the hooks of the base, and ahead of IPVS. The base takes its own connections first.
const (
	priorityDst = -99
	prioritySrc = 101
)

// Rules are what the rules of the table depend on.
type Rules struct {
	// Mark is the bit of packet marks that marks connections for masquerading between two hooks.
	Mark uint32
	// Detector distinguishes connections of pods from others.
	Detector state.LocalDetector
	// PodCIDRs are the node's.
	PodCIDRs []netip.Prefix
	// Ping is set if the node answers echo requests at addresses of virtual servers, or would if they had endpoints.
	Ping bool
}

// Equal reports whether the rules are the same.
func (o *Rules) Equal(p *Rules) bool {
	return o.Mark == p.Mark && o.Ping == p.Ping && o.Detector.Equal(p.Detector) && slices.Equal(o.PodCIDRs, p.PodCIDRs)
}

// Element is an element of a set in the table of a family.
type Element struct {
	Family state.Family
	Set    string
	// Key is the element's, as the kernel has it.
	Key string
}

// AddressElement returns the element that an address of virtual servers has.
func AddressElement(a netip.Addr) Element { return addrElement(setAddresses, a) }

// ClusterIPElements calls each with the elements that the cluster IPs of a record have, once for each port. A cluster IP that answers echo requests while
// it has endpoints drops them without endpoints.
func ClusterIPElements(s *state.Service, each func(Element)) {
	for _, f := range s.Frontends() {
		if f.Kind != state.ClusterIP {
			continue
		}
		each(addrElement(setClusterIPs, f.Addr))
		if f.Ping {
			each(addrElement(setPingDrop, f.Addr))
		}
	}
}

// IsPing reports whether an element is about echo requests.
func IsPing(e Element) bool { return e.Set == setPing || e.Set == setPingDrop }

// AnswersPing reports whether a table has the set of addresses at which the node answers echo requests.
func AnswersPing(sets []string) bool { return slices.Contains(sets, setPing) }

// IsAddress reports whether an element is for an address of virtual servers. Its key is the address.
func IsAddress(e Element) bool { return e.Set == setAddresses }

func addrElement(set string, a netip.Addr) Element {
	return Element{state.FamilyOf(a), set, string(a.AsSlice())}
}

// Elements calls each with the elements that a server has that takes new connections. Several servers may have one in common.
func (s *Server) Elements(each func(Element)) {
	f := s.Family()
	key := s.Addr.Addr().AsSlice()
	key = append(key, byte(s.Protocol), 0, 0, 0)
	key = append(binary.BigEndian.AppendUint16(key, s.Addr.Port()), 0, 0)
	each(Element{f, setServers, string(key)})
	if set, ok := masqueradeSets[s.Masquerade]; ok {
		each(Element{f, set, string(key)})
	}
	if s.Ping {
		each(addrElement(setPing, s.Addr.Addr()))
	}
	for _, e := range s.Endpoints {
		a := e.Addr.Addr().AsSlice()
		each(Element{f, setHairpin, string(append(a, a...))})
	}
}

// AddressSet returns the set of the addresses of all virtual servers.
func AddressSet(f state.Family) nft.Set { return new(Rules).Sets(f)[1] }

// Sets returns the sets of a family's table.
func (o *Rules) Sets(f state.Family) []nft.Set {
	addr := nft.TypeIPv4
	if f == state.IPv6 {
		addr = nft.TypeIPv6
	}
	server := []nft.Type{addr, nft.TypeProto, nft.TypePort}
	sets := []nft.Set{
		{Name: setServers, Key: server}, {Name: setAddresses, Key: []nft.Type{addr}}, {Name: setClusterIPs, Key: []nft.Type{addr}},
		{Name: setHairpin, Key: []nft.Type{addr, addr}},
	}
	for _, m := range masqueradeOrder {
		sets = append(sets, nft.Set{Name: masqueradeSets[m], Key: server})
	}
	if o.Ping {
		sets = append(sets, nft.Set{Name: setPing, Key: []nft.Type{addr}}, nft.Set{Name: setPingDrop, Key: []nft.Type{addr}})
	}
	return sets
}

type rule = []nft.Expr

func join(parts ...[]nft.Expr) (r rule) {
	for _, p := range parts {
		r = append(r, p...)
	}
	return r
}

func one(e ...nft.Expr) []nft.Expr { return e }

// rules makes the rules of one family's table.
type rules struct {
	*Rules
	f state.Family
}

// Chains returns the chains of a family's table with their rules, which see the first packet of a connection only. A comment that begins
// with "nft:" shows a rule as "nft list ruleset" does in the table of family ip.
func (o *Rules) Chains(f state.Family) []nft.Chain {
	r := rules{o, f}
	nat := func(name string, hook uint32, priority int32, rules ...rule) nft.Chain {
		return nft.Chain{Name: name, Hook: &nft.Hook{Type: "nat", Number: hook, Priority: priority}, Rules: rules}
	}
	services := nft.Chain{Name: chainServices}
	for _, m := range masqueradeOrder {
		// nft: ip daddr . meta l4proto . th dport @masquerade-always jump mark-always
		services.Rules = append(services.Rules, join(r.server(masqueradeSets[m]), one(nft.Jump(markChain(m)))))
	}
	services.Rules = append(services.Rules,
		// nft: ip daddr . meta l4proto . th dport @servers return
		join(r.server(setServers), one(nft.Return())),
	)
	if o.Ping {
		// nft: icmp type echo-request ip daddr @ping-ips return
		services.Rules = append(services.Rules, join(r.echo(), r.addr(dst), one(nft.InSet(nft.Reg0, setPing), nft.Return())))
	}
	services.Rules = append(services.Rules,
		// A reset that answers a process of the node also passes here. It goes to the address of a server, which is the
		// process's own address.
		//
		// nft: ct direction original ip daddr @addresses goto unserved
		join(one(nft.Ct(nft.Reg0, nft.CtDirection), nft.Equal(nft.Reg0, nft.OriginalDirection())), r.addr(dst), one(nft.InSet(nft.Reg0, setAddresses), nft.Goto(chainUnserved))),
	)
	var unserved []rule
	if o.Ping {
		// The address is local, so that the base leaves it to this table.
		//
		// nft: icmp type echo-request ip daddr @ping-drop-ips drop
		unserved = append(unserved, join(r.echo(), r.addr(dst), one(nft.InSet(nft.Reg0, setPingDrop), nft.Drop())))
	}
	chains := []nft.Chain{
		// nft: jump services
		nat("prerouting", nft.Prerouting, priorityDst, one(nft.Jump(chainServices))),
		nat("output", nft.Output, priorityDst, one(nft.Jump(chainServices))),
		nat("postrouting", nft.Postrouting, prioritySrc,
			// nft: meta mark & 0x00004000 != 0x00000000 meta mark set meta mark & 0xffffbfff masquerade fully-random
			join(one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, o.Mark, 0), nft.NotEqual(nft.Reg0, []byte{0, 0, 0, 0})),
				r.setMark(0), one(nft.Masquerade())),
			// A packet of the node to a virtual server has the address of the virtual server as its source, because the node owns that address.
			//
			// nft: ip saddr @addresses masquerade fully-random
			join(r.addr(src), one(nft.InSet(nft.Reg0, setAddresses), nft.Masquerade())),
			// nft: ct original ip daddr @addresses ip saddr . ip daddr @hairpin masquerade fully-random
			join(one(nft.CtOriginal(nft.Reg0, r.ctDst()), nft.InSet(nft.Reg0, setAddresses)), r.pair(),
				one(nft.InSet(nft.Reg0, setHairpin), nft.Masquerade())),
		),
		services,
		// Other listeners on the node must not be reached at an address of a Service.
		{Name: chainUnserved, Rules: append(unserved,
			// nft: ip daddr @cluster-ips goto reject
			join(r.addr(dst), one(nft.InSet(nft.Reg0, setClusterIPs), nft.Goto(chainReject))),
			// nft: drop
			one(nft.Drop()),
		)},
		{Name: chainReject, Rules: []rule{
			// nft: reject with tcp reset
			one(nft.Meta(nft.Reg0, nft.MetaL4Proto), nft.Equal(nft.Reg0, []byte{byte(state.TCP)}), nft.RejectTCP()),
			// nft: reject
			one(nft.RejectPort(family(f))),
		}},
	}
	for _, m := range masqueradeOrder {
		chains = append(chains, r.mark(m))
	}
	return chains
}

// mark makes the chain that marks connections for masquerading.
func (r rules) mark(m state.Masquerade) nft.Chain {
	c := nft.Chain{Name: markChain(m)}
	if m != state.MasqueradeAlways {
		for _, match := range r.pods() {
			// nft: ip saddr 10.244.0.0/16 return
			c.Rules = append(c.Rules, join(match, one(nft.Return())))
		}
	}
	if m == state.MasqueradeNode {
		// nft: fib saddr type local meta mark set meta mark | 0x00004000
		c.Rules = append(c.Rules, join(one(nft.AddressType(nft.Reg0, nft.SourceType), nft.Equal(nft.Reg0, nft.LocalType())), r.setMark(r.Mark)))
	} else {
		// nft: meta mark set meta mark | 0x00004000
		c.Rules = append(c.Rules, r.setMark(r.Mark))
	}
	return c
}

// setMark sets our bit of the packet's mark to that in bit, and leaves the others alone.
func (r rules) setMark(bit uint32) []nft.Expr {
	return one(nft.Meta(nft.Reg0, nft.MetaMark), nft.Mask(nft.Reg0, ^r.Mark, bit), nft.SetMeta(nft.Reg0, nft.MetaMark))
}

// pods returns matches that together cover connections from pods.
func (r rules) pods() [][]nft.Expr {
	d := &r.Detector
	switch {
	case len(d.ClusterCIDRs) > 0:
		return r.from(d.ClusterCIDRs)
	case d.NodeCIDR:
		return r.from(r.PodCIDRs)
	case d.BridgeInterface != "":
		name := make([]byte, 16) // IFNAMSIZ
		copy(name, d.BridgeInterface)
		return [][]nft.Expr{one(nft.Meta(nft.Reg0, nft.MetaIIFName), nft.Equal(nft.Reg0, name))}
	case d.InterfacePrefix != "":
		return [][]nft.Expr{one(nft.Meta(nft.Reg0, nft.MetaIIFName), nft.Equal(nft.Reg0, []byte(d.InterfacePrefix)))}
	}
	return nil
}

// from returns a match of source addresses for each prefix of the family.
func (r rules) from(prefixes []netip.Prefix) [][]nft.Expr {
	var matches [][]nft.Expr
	for _, p := range prefixes {
		if state.FamilyOf(p.Addr()) != r.f {
			continue
		}
		match := r.addr(src)
		if n := p.Addr().BitLen(); p.Bits() < n {
			mask := make([]byte, n/8)
			for i := range p.Bits() {
				mask[i/8] |= 0x80 >> (i % 8)
			}
			match = append(match, nft.MaskBytes(nft.Reg0, mask))
		}
		matches = append(matches, append(match, nft.Equal(nft.Reg0, p.Masked().Addr().AsSlice())))
	}
	return matches
}

// side is an end of a packet.
type side uint32

const (
	src side = iota
	dst
)

// size is how many bytes an address takes, and offset where the first one is in a packet.
func (r rules) size() (size, offset uint32) {
	if r.f == state.IPv6 {
		return 16, 8
	}
	return 4, 12
}

func (r rules) addr(s side) []nft.Expr {
	size, offset := r.size()
	return one(nft.Payload(nft.Reg0, nft.NetworkHeader, offset+uint32(s)*size, size))
}

// echo matches echo requests.
func (r rules) echo() []nft.Expr {
	protocol, echo := byte(1), byte(8) // RFC 792
	if r.f == state.IPv6 {
		protocol, echo = 58, 128 // RFC 4443
	}
	return one(nft.Meta(nft.Reg0, nft.MetaL4Proto), nft.Equal(nft.Reg0, []byte{protocol}),
		nft.Payload(nft.Reg0, nft.TransportHeader, 0, 1), nft.Equal(nft.Reg0, []byte{echo}))
}

// pair puts the packet's source and destination into registers.
func (r rules) pair() []nft.Expr {
	size, offset := r.size()
	return join(r.addr(src), one(nft.Payload(nft.Reg0+size/4, nft.NetworkHeader, offset+size, size)))
}

// server matches packets to the virtual servers in a set.
func (r rules) server(set string) []nft.Expr {
	size, _ := r.size()
	next := nft.Reg0 + size/4
	return join(r.addr(dst), one(nft.Meta(next, nft.MetaL4Proto), nft.Payload(next+1, nft.TransportHeader, 2, 2), nft.InSet(nft.Reg0, set)))
}

func (r rules) ctDst() nft.CtKey {
	if r.f == state.IPv6 {
		return nft.CtDstIP6
	}
	return nft.CtDstIP
}
