package rules

import (
	"crypto/sha256"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/kernel/ipset"
	"github.com/switchyard-net/switchyard/state"
)

// part is what one Service adds to the tables of one family.
type part struct {
	chains   map[ChainID]string
	sets     []ownSet
	elements []element
	leaves   []leaf
	// pings is set if addresses answer echo requests.
	pings bool
}

// ownSet is a set of a Service. A set of source ranges is named by its content, so that Services can share it.
type ownSet struct {
	ipset.Set
	elements []ipset.Element
}

// element is one of a shared set.
type element struct {
	set string
	ipset.Element
}

// leaf is the rule of a frontend in a tree.
type leaf struct {
	tree      treeID
	key, rule string
}

// treeID is one of the trees of a family.
type treeID uint8

const (
	treeAddresses treeID = iota
	treeNodePorts
	treeRejectAddresses
	treeRejectNodePorts
	treeCount
)

// renderer works out the part of one Service.
type renderer struct {
	*Settings
	f    state.Family
	name state.ServiceName
	part part
}

func (s *Settings) render(svc *state.Service, f state.Family) *part {
	r := &renderer{Settings: s, f: f, name: svc.Name, part: part{chains: map[ChainID]string{}}}
	for i := range svc.Ports {
		if p := &svc.Ports[i]; p.Family == f {
			(&port{renderer: r, Port: p, id: portID(svc.Name, p)}).render()
		}
	}
	return &r.part
}

// port is a port while it is rendered.
type port struct {
	*renderer
	*state.Port
	id string
	// sticky are the endpoints that remember clients: all that are in a route, if the port has affinity.
	sticky []state.Endpoint
}

// stickyEndpoints are the endpoints that are in a route of a port.
func stickyEndpoints(p *state.Port) []state.Endpoint {
	var all []state.Endpoint
	for _, r := range p.Routes() {
		all = append(all, r.Endpoints...)
	}
	slices.SortFunc(all, state.Endpoint.Compare)
	return slices.CompactFunc(all, func(a, b state.Endpoint) bool { return a.Compare(b) == 0 }) // weights may differ
}

func (p *port) add(t Table, chain string, rules ...string) {
	p.part.chains[ChainID{t, chain}] = strings.Join(rules, "\n")
}

func (p *port) render() {
	for _, r := range p.Routes() {
		for _, e := range r.Endpoints {
			p.part.elements = append(p.part.elements, element{setName(p.f, setHairpin), ipset.Element{
				Prefix: ipset.Addr(e.Addr.Addr()).Prefix, Protocol: p.Protocol, Port: e.Addr.Port(), Second: e.Addr.Addr(),
			}})
		}
	}
	if p.Affinity > 0 {
		p.sticky = stickyEndpoints(p.Port)
	}
	for _, e := range p.sticky {
		p.endpoint(e)
	}
	internal, external := p.traffic("I", &p.Internal, &p.External), p.traffic("E", &p.External, &p.Internal)
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if f.Kind == state.ClusterIP {
			p.frontend(f, internal)
		} else {
			p.frontend(f, external)
		}
	}
}

// targets are where the rules of a frontend lead, in both tables. They are empty where nothing is to be done.
type targets struct{ nat, filter string }

// frontend adds the rules that lead to a frontend. A packet of a client that is not admitted passes these rules. It is then dropped, as is
// every packet that leaves a tree with the address of a frontend.
func (p *port) frontend(f *state.Frontend, to targets) {
	addresses, rejects := treeAddresses, treeRejectAddresses
	var matches string
	if f.Kind == state.NodePort {
		addresses, rejects = treeNodePorts, treeRejectNodePorts
		for _, half := range halves(p.f) {
			e := ipset.Element{Prefix: half, Protocol: p.Protocol, Port: f.Port}
			p.part.elements = append(p.part.elements, element{setName(p.f, setNodePorts), e})
			p.count(ipset.NetPort, e)
		}
	} else {
		matches = fmt.Sprintf("-d %v/%d", f.Addr, f.Addr.BitLen())
		e := ipset.Element{Prefix: ipset.Addr(f.Addr).Prefix, Protocol: p.Protocol, Port: f.Port}
		p.part.elements = append(p.part.elements, element{setName(p.f, setFrontends), e})
		p.count(ipset.IPPort, e)
	}
	if f.Kind == state.ClusterIP {
		p.part.elements = append(p.part.elements, element{setName(p.f, setClusterIPs), ipset.Addr(f.Addr)})
	}
	if f.Ping && f.Kind != state.NodePort {
		p.ping(f)
	}
	matches = rule(matches, fmt.Sprintf("-p %s -m %s --dport %d", p.protocol(), p.protocol(), f.Port))
	if f.Restricted {
		if len(f.Sources) == 0 {
			return
		}
		matches += " -m set --match-set " + p.allowed(f.Sources) + " src"
	}
	if to.nat != "" {
		p.part.leaves = append(p.part.leaves, leaf{addresses, key(f, p.Protocol), matches + " -g " + to.nat})
	}
	if to.filter != "" {
		p.part.leaves = append(p.part.leaves, leaf{rejects, key(f, p.Protocol), matches + " -g " + to.filter})
	}
}

func (p *port) protocol() string { return protocolName(p.Protocol) }

// halves are both halves of all addresses: sets of prefixes take none of length 0.
func halves(f state.Family) []netip.Prefix {
	if f == state.IPv4 {
		return []netip.Prefix{netip.MustParsePrefix("0.0.0.0/1"), netip.MustParsePrefix("128.0.0.0/1")}
	}
	return []netip.Prefix{netip.MustParsePrefix("::/1"), netip.MustParsePrefix("8000::/1")}
}

// allowed returns the name of the set of these sources, and adds it.
func (p *port) allowed(sources []netip.Prefix) string {
	h := sha256.New()
	set := ownSet{Set: ipset.Set{Type: ipset.Net, Family: p.f, MaxElements: maxElements}}
	for _, s := range sources {
		fmt.Fprintln(h, s)
		if s.Bits() > 0 {
			set.elements = append(set.elements, ipset.Element{Prefix: s})
			continue
		}
		for _, half := range halves(p.f) {
			set.elements = append(set.elements, ipset.Element{Prefix: half})
		}
	}
	set.Name = setName(p.f, "S-"+hash(string(h.Sum(nil))))
	slices.SortFunc(set.elements, func(a, b ipset.Element) int { return strings.Compare(a.String(), b.String()) })
	set.elements = slices.Compact(set.elements)
	if !slices.ContainsFunc(p.part.sets, func(s ownSet) bool { return s.Name == set.Name }) {
		p.part.sets = append(p.part.sets, set)
	}
	return set.Name
}

// traffic adds the chains of one class of traffic. Views with the same endpoints share theirs, also with the other class.
func (p *port) traffic(class string, t, other *state.Traffic) targets {
	var to targets
	inside, outside := &t.Inside, &t.Outside
	split := !inside.Equal(outside)
	if inside.Verdict == state.Forward || outside.Verdict == state.Forward {
		to.nat = Prefix + "C" + class + "-" + p.id
		var rules []string
		switch t.Masquerade {
		case state.MasqueradeAlways:
			rules = append(rules, "-j "+chainMark)
		case state.MasqueradeUnlessPod:
			rules = append(rules, "-j "+chainMarkUnlessPod)
		case state.MasqueradeNode:
			rules = append(rules, "-j "+chainMarkNode)
		}
		toView := func(r *state.Route) string {
			if r.Verdict == state.Forward {
				return "-g " + p.route(r)
			}
			return "-j RETURN"
		}
		switch {
		case split:
			rules = append(rules, p.views(toView(inside), toView(outside))...)
		case inside.Equal(&other.Inside) || inside.Equal(&other.Outside):
			rules = append(rules, toView(inside))
		default:
			rules = append(rules, p.pick(to.nat, inside)...)
		}
		p.add(NAT, to.nat, rules...)
	}
	if refuses(inside) || refuses(outside) {
		to.filter = chainReject
		if split {
			to.filter = Prefix + "F" + class + "-" + p.id
			toView := func(r *state.Route) string {
				if refuses(r) {
					return "-g " + chainReject
				}
				return "-j RETURN"
			}
			p.add(Filter, to.filter, p.views(toView(inside), toView(outside))...)
		}
	}
	return to
}

// refuses reports whether packets of a route that are not translated are refused: all packets, or a share.
func refuses(r *state.Route) bool { return r.Verdict == state.Reject || r.Refused > 0 }

// views returns rules that lead clients inside and those outside to different targets.
func (p *port) views(inside, outside string) []string {
	var rules []string
	for _, pods := range p.pods(p.f) {
		rules = append(rules, rule(pods, inside))
	}
	return append(rules, rule(fromNode, inside), outside)
}

// route adds the chain that picks one of a route's endpoints, and returns its name. The first of the port's routes with these endpoints
// gives the name.
func (p *port) route(r *state.Route) string {
	var chain string
	for i, first := range p.Routes() {
		if first.Equal(r) {
			chain = fmt.Sprintf("%sR%d-%s", Prefix, i, p.id)
			break
		}
	}
	if _, ok := p.part.chains[ChainID{NAT, chain}]; !ok {
		p.add(NAT, chain, p.pick(chain, r)...)
	}
	return chain
}

// pick returns the rules that pick an endpoint. A remembered client gets its endpoint again, and others get any. Packets of the refused share are
// not translated, because no rule of this table can refuse them. The chains of the table filter reject them.
func (p *port) pick(chain string, r *state.Route) []string {
	var refusal []string
	if r.Refused > 0 {
		refusal = []string{"-m statistic --mode random --probability " + probability(uint64(r.Refused), uint64(r.Refused)+weights(r.Endpoints)) + " -j RETURN"}
	}
	if p.Affinity == 0 {
		return append(refusal, p.draw(chain, r.Endpoints, 0, func(e state.Endpoint) string {
			return "-p " + p.protocol() + " %s-j DNAT --to-destination " + e.Addr.String()
		})...)
	}
	var rules []string
	for _, e := range r.Endpoints {
		rules = append(rules, "-m set --match-set "+p.affinitySet(e)+" src -g "+p.endpointChain(e))
	}
	for _, e := range p.sticky {
		if _, ok := slices.BinarySearchFunc(r.Endpoints, e, state.Endpoint.Compare); !ok {
			rules = append(rules, "-j SET --del-set "+p.affinitySet(e)+" src") // the client gets another one here, for all views
		}
	}
	return slices.Concat(rules, refusal, p.draw(chain, r.Endpoints, 0, func(e state.Endpoint) string { return "%s-g " + p.endpointChain(e) }))
}

// weight returns how much of an endpoint's route it gets.
func weight(e state.Endpoint) uint64 { return max(1, uint64(e.Weight)) }

// weights returns the sum of weights.
func weights(endpoints []state.Endpoint) (sum uint64) {
	for _, e := range endpoints {
		sum += weight(e)
	}
	return sum
}

// draw returns the rules that select one of the endpoints, with the same probability or by weight. For many endpoints, the rules select one of up
// to 16 chains, and a hash assigns endpoints to chains. An endpoint that comes or goes changes its own chain and the probabilities above
// the chain.
func (p *port) draw(chain string, endpoints []state.Endpoint, depth int, rule func(state.Endpoint) string) []string {
	var rules []string
	left := weights(endpoints)
	add := func(format string, share uint64) {
		match := ""
		if share < left {
			match = "-m statistic --mode random --probability " + probability(share, left) + " "
		}
		rules = append(rules, fmt.Sprintf(format, match))
		left -= share
	}
	if len(endpoints) <= maxLeaf || depth == maxDraws {
		for _, e := range endpoints {
			add(rule(e), weight(e))
		}
		return rules
	}
	var groups [maxLeaf][]state.Endpoint
	for _, e := range endpoints {
		n := hashed(e)[depth]
		groups[n] = append(groups[n], e)
	}
	for i, group := range groups {
		if len(group) == 0 {
			continue
		}
		sub := fmt.Sprintf("%sD-%s", Prefix, hash(chain, i))
		p.add(NAT, sub, p.draw(sub, group, depth+1, rule)...)
		add("%s-g "+sub, weights(group))
	}
	return rules
}

// maxDraws is how many chains below the first one an endpoint is drawn from at most, one after the other. Beyond, they have more rules.
const maxDraws = 3

// hashed returns the nibbles of a hash of an endpoint.
func hashed(e state.Endpoint) [maxDraws]byte {
	sum := sha256.Sum256([]byte(e.Addr.String()))
	return [maxDraws]byte{sum[0] >> 4, sum[0] & 15, sum[1] >> 4}
}

// probability returns a share, which is less than all, as iptables shows it: the kernel holds a multiple of 2^-31. The result
// is never 0 or 1.
func probability(share, of uint64) string {
	const unit = 1 << 31
	return fmt.Sprintf("%.11f", min(max(math.Round(unit*float64(share)/float64(of)), 1), unit-1)/unit)
}

// affinitySet returns the name of the set of clients that stay with an endpoint.
func (p *port) affinitySet(e state.Endpoint) string {
	return setName(p.f, clientsPrefix+hash(p.id, e.Addr))
}

func (p *port) endpointChain(e state.Endpoint) string { return endpointPrefix + hash(p.id, e.Addr) }

// endpoint adds the chain that remembers the client and translates to one endpoint, and the set of its clients.
func (p *port) endpoint(e state.Endpoint) {
	seconds := max(1, int(p.Affinity.Seconds()))
	p.part.sets = append(p.part.sets, ownSet{Set: ipset.Set{
		Name: p.affinitySet(e), Type: ipset.IP, Family: p.f, MaxElements: p.MaxAffinityClients, Timeout: uint32(seconds),
	}})
	p.add(NAT, p.endpointChain(e),
		fmt.Sprintf("-j SET --add-set %s src --exist --timeout %d", p.affinitySet(e), seconds),
		fmt.Sprintf("-p %s -j DNAT --to-destination %v", p.protocol(), e.Addr))
}
