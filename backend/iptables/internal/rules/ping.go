package rules

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// Addresses that answer echo requests of ICMP. An address answers a client if one of its frontends with [state.Frontend.Ping] admits the client and
// forwards its connections. Frontends of several Services have elements in common. The protocol and the port of an element are ICMP and the type.

// The sets of addresses that answer. There are two for all clients, two for clients inside, and two for clients outside. The first one has addresses
// that answer everybody. The second one has addresses with the clients that they answer. All of them exist only if there is such an address.
const (
	setPing               = "PING"
	setPingAllowed        = "PING-ALLOWED"
	setPingInside         = "PING-INSIDE"
	setPingInsideAllowed  = "PING-INSIDE-ALLOWED"
	setPingOutside        = "PING-OUTSIDE"
	setPingOutsideAllowed = "PING-OUTSIDE-ALLOWED"
	setPingDrop           = "PING-DROP" // addresses that do not answer everybody
)

// pingSets returns the sets of a family.
func pingSets(f state.Family) (sets []ipset.Set) {
	for _, name := range []string{setPing, setPingInside, setPingOutside, setPingDrop} {
		sets = append(sets, ipset.Set{Name: setName(f, name), Type: ipset.IPPort, Family: f, MaxElements: maxElements})
	}
	for _, name := range []string{setPingAllowed, setPingInsideAllowed, setPingOutsideAllowed} {
		sets = append(sets, ipset.Set{Name: setName(f, name), Type: ipset.IPPortNet, Family: f, MaxElements: maxElements})
	}
	return sets
}

// icmp returns what matches packets of ICMP. The sets distinguish echo requests.
func icmp(f state.Family) string {
	if f == state.IPv6 {
		return "-p ipv6-icmp"
	}
	return "-p icmp"
}

// pingElement returns the element of an address (RFC 792, RFC 4443).
func pingElement(a netip.Addr) ipset.Element {
	e := ipset.Element{Prefix: ipset.Addr(a).Prefix, Protocol: 1, Port: 8 << 8}
	if a.Is6() {
		e.Protocol, e.Port = 58, 128<<8
	}
	return e
}

// pingRules returns the rules that answer echo requests: first those for all clients and for clients outside, then those for clients inside. They are
// empty if the node has no address that could answer.
func (s *Settings) pingRules(f state.Family) (all, inside []string) {
	i := slices.IndexFunc(s.Answerers, func(a netip.Addr) bool { return state.FamilyOf(a) == f })
	if i < 0 {
		return nil, nil
	}
	answers := func(everybody, allowed string) []string {
		to := "-j DNAT --to-destination " + s.Answerers[i].String()
		return []string{
			"-m set --match-set " + setName(f, everybody) + " dst,dst " + to, "-m set --match-set " + setName(f, allowed) + " dst,dst,src " + to,
		}
	}
	all = answers(setPing, setPingAllowed)
	for _, match := range append(s.pods(f), fromNode) {
		all = append(all, rule(match, "-g "+chainPingInside))
	}
	return append(all, answers(setPingOutside, setPingOutsideAllowed)...), answers(setPingInside, setPingInsideAllowed)
}

// ping adds the elements of a frontend whose address answers echo requests.
func (p *port) ping(f *state.Frontend) {
	p.part.pings = true
	t := p.Traffic(f.Kind)
	e := pingElement(f.Addr)
	inside, outside := t.Inside.Verdict == state.Forward, t.Outside.Verdict == state.Forward
	if f.Restricted || !inside || !outside {
		p.part.elements = append(p.part.elements, element{setName(p.f, setPingDrop), e})
	}
	var everybody, allowed string
	switch {
	case inside && outside:
		everybody, allowed = setPing, setPingAllowed
	case inside:
		everybody, allowed = setPingInside, setPingInsideAllowed
	case outside:
		everybody, allowed = setPingOutside, setPingOutsideAllowed
	default:
		return
	}
	if !f.Restricted {
		p.part.elements = append(p.part.elements, element{setName(p.f, everybody), e})
		return
	}
	e.Second = f.Addr
	for _, src := range f.Sources {
		sources := []netip.Prefix{src}
		if src.Bits() == 0 {
			sources = halves(p.f)
		}
		for _, src := range sources {
			e.Prefix = src
			p.part.elements = append(p.part.elements, element{setName(p.f, allowed), e})
		}
	}
}

// countPings counts a Service that comes or goes, if its addresses answer echo requests. The sets and rules are there as long as there is one.
func (t *Tables) countPings(p *part, n int) {
	if !p.pings {
		return
	}
	first, last := t.pings == 0, t.pings+n == 0
	if !first && !last {
		t.pings += n
		return
	}
	t.fixed(t.settings, -1)
	t.pings += n
	t.fixed(t.settings, 1)
	for _, s := range pingSets(t.family) {
		if t.doubt(s.Name); first {
			t.sets[s.Name] = &set{Set: s, users: 1, elements: map[ipset.Element]int{}}
		} else {
			delete(t.sets, s.Name)
		}
	}
}
