package brain

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// location is where this node is.
type location struct {
	node string
	zone string // empty if not known
	// weighs reports whether the zones of endpoints count, because the service has zone weights.
	weighs bool
}

func locate(cfg *Config, node *model.Node) location {
	l := location{node: cfg.NodeName}
	if node != nil {
		l.zone = node.Zone
	}
	return l
}

// traits are all properties of an endpoint that count, as seen from this node. Their numeric order decides which of
// several endpoints with one address and port wins. An endpoint that is not terminating comes first, because the
// address of a dying pod may already belong to a new one (pkg/proxy/endpointslicecache.go, addEndpoints). A ready
// endpoint comes next, and one whose Node is not unready. The other traits only make the choice independent of the order of the slices.
type traits uint16

const (
	near       traits = 1 << iota // in this node's zone
	zoned                         // in any known zone
	zoneHere                      // hinted for this node's zone
	zoneHinted                    // hinted for any zone
	nodeHere                      // hinted for this node
	nodeHinted                    // hinted for any node
	local                         // on this node
	nodeUp                        // on no unready node (see [NodeHealth])
	serving
	ready
	lasting // not terminating
)

// traitsOf returns the traits of ep. Readiness is as given: with publishNotReadyAddresses, a terminating endpoint is ready.
func (l location) traitsOf(ep *model.Endpoint) traits {
	var t traits
	set := func(on bool, bit traits) {
		if on {
			t |= bit
		}
	}
	set(!ep.Terminating, lasting)
	set(ep.Ready, ready)
	set(ep.Serving, serving)
	set(!ep.NodeUnready, nodeUp)
	set(l.node != "" && ep.NodeName == l.node, local)
	if len(ep.NodeHints) > 0 {
		t |= nodeHinted
		set(l.node != "" && slices.Contains(ep.NodeHints, l.node), nodeHere)
	}
	if len(ep.ZoneHints) > 0 {
		t |= zoneHinted
		// A node without a zone uses all endpoints, so that no hint, not even an empty one, names its zone.
		set(l.zone != "" && slices.Contains(ep.ZoneHints, l.zone), zoneHere)
	}
	if l.weighs {
		set(ep.Zone != "", zoned)
		set(l.zone != "" && ep.Zone == l.zone, near)
	}
	return t
}

// candidate is an address and port that a slice names for a service port.
type candidate struct {
	addr   netip.AddrPort
	is     traits
	weight weight // 0 for all endpoints of a port where no slice has any
}

// candidates are the endpoints of one service port in one family, ready or not, ordered by address and distinct.
type candidates []candidate

// part has the endpoints of a slice for one service port, with their port number (pkg/proxy/endpointslicecache.go,
// endpointInfoByServicePort).
type part struct {
	slice  *model.EndpointSlice
	port   uint16
	weight weight
}

// supply finds the endpoints of service ports in slices. It skips slices of other address types and slices that this
// instance does not handle.
type supply struct {
	cfg    *Config
	slices []*model.EndpointSlice
	index  map[portKey][]part // nil if looking through all slices for each port is quick
}

// portKey is what joins the ports of services and slices.
type portKey struct {
	name     string
	protocol state.Protocol
	family   state.Family
}

// fewPorts is up to how many ports an index costs more than it saves.
const fewPorts = 8

// newSupply makes slices ready to be asked about a number of ports.
func newSupply(cfg *Config, slices []*model.EndpointSlice, ports int) supply {
	su := supply{cfg: cfg, slices: slices}
	if ports <= fewPorts {
		return su
	}
	su.index = make(map[portKey][]part)
	for _, s := range slices {
		if !HandlesSlice(cfg, s) {
			continue
		}
		for _, p := range s.Ports {
			if p.Port != 0 {
				key := portKey{p.Name, p.Protocol, s.Family}
				su.index[key] = append(su.index[key], part{s, p.Port, weightOf(cfg, s)})
			}
		}
	}
	return su
}

// forClaim returns the parts of the slices for a claim, in no order, perhaps in buf.
func (su *supply) forClaim(buf []part, c *claim) []part {
	if c.last != 0 {
		return su.ofRange(buf, c.family)
	}
	return su.of(buf, portKey{c.port.Name, c.port.Protocol, c.family})
}

// of returns the parts of the slices for a port, in no order, perhaps in buf.
func (su *supply) of(buf []part, key portKey) []part {
	if su.index != nil {
		return su.index[key]
	}
	for _, s := range su.slices {
		if !HandlesSlice(su.cfg, s) || s.Family != key.family {
			continue
		}
		for i := range s.Ports {
			if sp := &s.Ports[i]; sp.Port != 0 && sp.Name == key.name && sp.Protocol == key.protocol {
				buf = append(buf, part{s, sp.Port, weightOf(su.cfg, s)})
			}
		}
	}
	return buf
}

// join collects the endpoints of a service port in family from parts, into buf. Special addresses and addresses of the
// wrong family for their slice do not count. The API server refuses special addresses (pkg/apis/discovery/validation).
func join(buf candidates, here location, family state.Family, parts []part) candidates {
	weighted := isWeighted(parts)
	for _, part := range parts {
		w := part.among(weighted)
		for i := range part.slice.Endpoints {
			ep := &part.slice.Endpoints[i]
			if familyOf(ep.Addr) == family && model.Special(ep.Addr) == "" {
				buf = append(buf, candidate{netip.AddrPortFrom(ep.Addr, part.port), here.traitsOf(ep), w})
			}
		}
	}
	buf.sort()
	return buf.distinct()
}

// fewEndpoints is up to how many endpoints sort without a call for each comparison: most Services have no more.
const fewEndpoints = 12

// sort orders by address and port, and of those that are the same the winner first.
func (c candidates) sort() {
	if len(c) > fewEndpoints {
		slices.SortFunc(c, candidate.compare)
		return
	}
	for i := range c {
		for j := i; j > 0 && c[j].compareTo(&c[j-1]) < 0; j-- {
			c[j], c[j-1] = c[j-1], c[j]
		}
	}
}

func (c candidate) compare(o candidate) int { return c.compareTo(&o) }

func (c *candidate) compareTo(o *candidate) int {
	if by := c.addr.Compare(o.addr); by != 0 {
		return by
	}
	return cmp.Or(cmp.Compare(o.is, c.is), cmp.Compare(o.weight, c.weight))
}

// distinct keeps the first endpoint of each address and port.
func (c candidates) distinct() candidates {
	return slices.CompactFunc(c, func(a, b candidate) bool { return a.addr == b.addr })
}

// joiner is join for the ports of a service in one family. Most of them have the same slices, whose endpoints it puts in order once.
type joiner struct {
	slices []*model.EndpointSlice
	sorted []joined
}

// joined is an endpoint of a slice, with the part that it belongs to.
type joined struct {
	addr netip.Addr
	part uint32
	is   traits
}

func (e joined) compare(o joined) int { return e.addr.Compare(o.addr) }

// manyEndpoints is from how many endpoints on the order is kept for the next port.
const manyEndpoints = 100

func (j *joiner) join(buf candidates, here location, family state.Family, parts []part) candidates {
	n := 0
	for _, p := range parts {
		n += len(p.slice.Endpoints)
	}
	if n < manyEndpoints {
		return join(buf, here, family, parts)
	}
	if !slices.EqualFunc(j.slices, parts, func(s *model.EndpointSlice, p part) bool { return s == p.slice }) {
		j.sort(here, family, parts, n)
	}
	buf = slices.Grow(buf, len(j.sorted))
	weighted := isWeighted(parts)
	for first := 0; first < len(j.sorted); {
		addr, from := j.sorted[first].addr, len(buf)
		for ; first < len(j.sorted) && j.sorted[first].addr == addr; first++ {
			e := &j.sorted[first]
			buf = append(buf, candidate{netip.AddrPortFrom(addr, parts[e.part].port), e.is, parts[e.part].among(weighted)})
		}
		if len(buf) > from+1 {
			slices.SortFunc(buf[from:], candidate.compare)
		}
	}
	return buf.distinct()
}

// sort puts the n endpoints of parts in order.
func (j *joiner) sort(here location, family state.Family, parts []part, n int) {
	j.slices, j.sorted = j.slices[:0], make([]joined, 0, n)
	runs := make([]run, 0, len(parts))
	for at, part := range parts {
		j.slices = append(j.slices, part.slice)
		first := len(j.sorted)
		for i := range part.slice.Endpoints {
			ep := &part.slice.Endpoints[i]
			if familyOf(ep.Addr) == family && model.Special(ep.Addr) == "" {
				j.sorted = append(j.sorted, joined{ep.Addr, uint32(at), here.traitsOf(ep)})
			}
		}
		if r := run(j.sorted[first:]); len(r) > 0 {
			if !slices.IsSortedFunc(r, joined.compare) {
				slices.SortFunc(r, joined.compare)
			}
			runs = append(runs, r)
		}
	}
	j.sorted = merge(runs)
}

// run is a list of endpoints in order.
type run []joined

// merge returns all endpoints of runs in order. A sort of all would not use that each slice is in order: see BenchmarkComputeManySlices.
func merge(runs []run) run {
	slices.SortFunc(runs, func(a, b run) int { return a[0].compare(b[0]) })
	total, overlap := 0, false
	for i, r := range runs {
		total += len(r)
		overlap = overlap || i > 0 && runs[i-1].after(r)
	}
	if !overlap {
		return slices.Concat(runs...)
	}
	from, to := make(run, 0, total), make(run, 0, total)
	for ; len(runs) > 1; from, to = to, from[:0] {
		merged := runs[:0]
		for pair := range slices.Chunk(runs, 2) {
			first := len(to)
			if len(pair) == 1 {
				to = append(to, pair[0]...)
			} else {
				to = appendMerged(to, pair[0], pair[1])
			}
			merged = append(merged, to[first:])
		}
		runs = merged
	}
	return runs[0]
}

// after reports whether the last endpoint of r comes after the first one of o.
func (r run) after(o run) bool { return r[len(r)-1].compare(o[0]) > 0 }

func appendMerged(to, a, b run) run {
	for len(a) > 0 && len(b) > 0 && a.after(b) {
		if a[0].compare(b[0]) <= 0 {
			to, a = append(to, a[0]), a[1:]
		} else {
			to, b = append(to, b[0]), b[1:]
		}
	}
	return append(append(to, a...), b...)
}

// selection is which endpoints a traffic policy takes: those whose traits in mask are exactly want.
type selection struct{ mask, want traits }

// misses returns the traits by which an endpoint differs from those that are taken, none if it is one of them.
func (s selection) misses(is traits) traits { return (is ^ s.want) & s.mask }

// with returns the selection of those that also have a trait.
func (s selection) with(t traits) selection { return selection{s.mask | t, s.want | t} }

// cluster returns the endpoints for traffic policy Cluster: the ready endpoints that hints leave. If none is ready, it
// returns the endpoints that serve while they terminate, regardless of hints (pkg/proxy/topology.go,
// CategorizeEndpoints). In both steps, endpoints on unready Nodes count only if there are no others ([NodeHealth]).
func (c candidates) cluster(sh shares) ([]state.Endpoint, selection) {
	best, sh := sh.best(c)
	if eps := c.having(best, sh); len(eps) > 0 {
		return eps, best
	}
	return c.terminating()
}

// local returns the endpoints for traffic policy Local: the ready ones on this node, else those on this node that are
// serving while they terminate. Hints never apply (pkg/proxy/topology.go, CategorizeEndpoints). Neither does [NodeHealth],
// because all endpoints are on one Node.
func (c candidates) local(sh shares) ([]state.Endpoint, selection) {
	best := selection{ready | local, ready | local}
	if eps := c.having(best, sh.ofLocal()); len(eps) > 0 {
		return eps, best
	}
	rest := selection{serving | lasting | local, serving | local}
	return c.having(rest, shares{}), rest
}

// tally is which traits all endpoints of a selection have, and which some of them have.
type tally struct{ all, some traits }

func (c candidates) tally(among selection) tally {
	t := tally{all: ^traits(0)}
	for _, e := range c {
		if among.misses(e.is) == 0 {
			t.all &= e.is
			t.some |= e.is
		}
	}
	return t
}

// use reports whether hints of a kind count. All ready endpoints of the selection must carry them, and at least one must be meant for
// this node (pkg/proxy/topology.go, topologyModeFromHints).
func (t tally) use(hinted, here traits) HintUse {
	switch {
	case t.some&hinted == 0:
		return NoHints
	case t.all&hinted == 0:
		return SomeUnhinted
	case t.some&here == 0:
		return NoneForHere
	}
	return HintsUsed
}

// exist reports whether there is an endpoint anywhere in the cluster that could get connections (pkg/proxy/topology.go,
// hasAnyEndpoints).
func (c candidates) exist() bool {
	return slices.ContainsFunc(c, func(e candidate) bool {
		return e.is&ready != 0 || e.is&(serving|lasting) == serving
	})
}

// having returns the endpoints that are selected, with their weights.
func (c candidates) having(s selection, sh shares) []state.Endpoint {
	n := 0
	for _, e := range c {
		if s.misses(e.is) == 0 {
			n++
		}
	}
	if n == 0 {
		return nil
	}
	eps := make([]state.Endpoint, 0, n)
	for _, e := range c {
		if s.misses(e.is) == 0 {
			eps = append(eps, e.endpoint())
		}
	}
	sh.weigh(eps, c, s)
	even(eps)
	return eps
}

func (e candidate) endpoint() state.Endpoint {
	return state.Endpoint{Addr: e.addr, Local: e.is&local != 0, Weight: uint16(max(e.weight, 0))}
}
