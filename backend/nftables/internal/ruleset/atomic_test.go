package ruleset

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/consistent"
	"github.com/switchyard-net/switchyard/internal/kernel/nft"
	"github.com/switchyard-net/switchyard/state"
)

// clientPort is the source port of the connections that are looked at.
const clientPort = 40000

// world is a table at some moment.
type world struct {
	service  *state.Service // nil if there is none
	mirror   *Mirror
	plan     *Plan // the commit that has led here
	contents contents
	rules    map[string]nft.Chain
}

func newWorld(o *Settings) *world {
	m := NewMirror()
	m.node = testNode
	w := &world{mirror: m, contents: contents{}}
	p := elementsOnly(m, o, &state.Update{Node: testNode}, []netip.Addr{nodeAddr(state.IPv4)})
	p.Commit()
	w.contents = w.contents.carriedOut(p)
	w.rules = rulesOf(o, m)
	return w
}

func rulesOf(o *Settings, m *Mirror) map[string]nft.Chain {
	sk := skeleton{o, state.IPv4, &m.shape, m.node}
	chains := map[string]nft.Chain{}
	for _, c := range sk.chains() {
		chains[c.Name] = c
	}
	return chains
}

// changedTo returns the world after a commit that replaces the service.
func (w *world) changedTo(o *Settings, s *state.Service) *world {
	m := *w.mirror
	m.services, m.refs, m.numbers, m.shape = maps.Clone(m.services), maps.Clone(m.refs), maps.Clone(m.numbers), m.shape.clone()
	u := &state.Update{Node: testNode}
	if s != nil {
		u.Changed = append(u.Changed, s)
	} else if w.service != nil {
		u.Removed = append(u.Removed, w.service.Name)
	}
	p := elementsOnly(&m, o, u, m.nodePorts)
	next := &world{service: s, mirror: &m, plan: p, contents: w.contents.carriedOut(p)}
	p.Commit()
	next.rules = rulesOf(o, &m)
	return next
}

// cameFrom returns the world w after the same commit, if the table remembered the clients of another world before.
func (w *world) cameFrom(before *world) *world {
	n := *w
	n.contents = before.contents.carriedOut(w.plan)
	return &n
}

// lengthened returns the world after the commit that comes ahead of another (writeAhead).
func (w *world) lengthened(o *Settings, next *world) *world {
	m := *w.mirror
	m.shape = m.shape.clone()
	m.shape.lengths, m.shape.blocks = next.mirror.shape.lengths, next.mirror.shape.blocks
	ahead := *w
	ahead.rules = rulesOf(o, &m)
	return &ahead
}

// connection is one that a client makes.
type connection struct {
	name string
	src  netip.Addr
	dst  netip.AddrPort
	// mark is set on its packets by others.
	mark uint32
}

func (c *connection) interpret(seed uint64, before, after *world, commitAt int) *interpreter {
	in := &interpreter{
		rng: rand.New(rand.NewPCG(seed, 3)), before: before.contents, after: after.contents,
		rules: [2]map[string]nft.Chain{before.rules, after.rules}, commitAt: commitAt,
		src: netip.AddrPortFrom(c.src, clientPort), origDst: c.dst, proto: state.TCP, local: []netip.Addr{nodeAddr(state.IPv4)},
		affinity: map[string]string{}, mark: foreignMark | c.mark,
	}
	maps.Copy(in.affinity, before.contents[affinitySet])
	return in
}

// connects returns the world after the connection, and the endpoint that was remembered, if any.
func (w *world) connects(c *connection, seed uint64) (next *world, remembered netip.AddrPort) {
	in := c.interpret(seed, w, w, 0)
	o := in.run()
	if !in.learnt {
		return w, netip.AddrPort{}
	}
	return w.with(in.affinity), o.endpoint
}

// ruledBy returns the world with the rules of another.
func (w *world) ruledBy(o *world) *world {
	n := *w
	n.rules = o.rules
	return &n
}

func (w *world) with(affinity map[string]string) *world {
	n := *w
	n.contents = maps.Clone(w.contents)
	n.contents[affinitySet] = affinity
	return &n
}

// want reports whether the outcome is right in a world, by the record alone. remembered is the endpoint of the client's last
// connection, if it was one.
func (w *world) want(o *Settings, c *connection, got outcome, remembered netip.AddrPort) bool {
	if c.mark != 0 {
		return w.wantEdge(c, got)
	}
	isPod := slices.ContainsFunc(o.LocalDetector.ClusterCIDRs, func(p netip.Prefix) bool { return p.Contains(c.src) })
	isNode := c.src == nodeAddr(state.IPv4)
	clusterIP := false
	for _, isRange := range []bool{false, true} { // single ports win
		if w.service == nil {
			break
		}
		for i := range w.service.Ports {
			p := &w.service.Ports[i]
			for _, f := range p.Frontends {
				t := &p.External
				if f.Kind == state.ClusterIP {
					t = &p.Internal
					clusterIP = clusterIP || f.Addr == c.dst.Addr()
				}
				if (f.LastPort != 0) != isRange || !p.Key(&f).Has(c.dst.Port()) || f.Addr != c.dst.Addr() && (f.Kind != state.NodePort || c.dst.Addr() != nodeAddr(state.IPv4)) {
					continue
				}
				if f.Restricted && !slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(c.src) }) {
					return got == outcome{verdict: "dropped"}
				}
				r := &t.Outside
				if isPod || isNode {
					r = &t.Inside
				}
				masked := t.Masquerade == state.MasqueradeAlways || t.Masquerade == state.MasqueradeUnlessPod && !isPod ||
					t.Masquerade == state.MasqueradeNode && isNode
				if got == (outcome{verdict: "rejected"}) && refuses(p, r, c) {
					return true
				}
				if isRange {
					if got.verdict == "to" && got.endpoint.Port() != c.dst.Port() {
						return false
					}
					if got.endpoint.IsValid() {
						got.endpoint = netip.AddrPortFrom(got.endpoint.Addr(), 0)
					}
					remembered = netip.AddrPort{}
				}
				return wantRoute(p, r, got, remembered, masked || got.endpoint.Addr() == c.src)
			}
		}
	}
	switch {
	case clusterIP:
		return got == outcome{verdict: "rejected"}
	case slices.ContainsFunc(testNode.ServiceCIDRs, func(p netip.Prefix) bool { return p.Contains(c.dst.Addr()) }):
		return got == outcome{verdict: "dropped"}
	}
	return got == outcome{verdict: "passed"}
}

// wantEdge is want for a connection that a node has handed over. NodePorts are at all addresses, because they are other nodes'.
func (w *world) wantEdge(c *connection, got outcome) bool {
	for p, f := range w.service.Frontends() {
		if f.Port != c.dst.Port() || f.Kind != state.NodePort && f.Addr != c.dst.Addr() || !p.Edge.Takes(f.Kind) {
			continue
		}
		if f.Restricted && !slices.ContainsFunc(f.Sources, func(p netip.Prefix) bool { return p.Contains(c.src) }) {
			break
		}
		return wantRoute(p, &p.Edge.Local, got, netip.AddrPort{}, false)
	}
	return got == outcome{verdict: "dropped"}
}

func wantRoute(p *state.Port, r *state.Route, got outcome, remembered netip.AddrPort, masked bool) bool {
	has := func(a netip.AddrPort) bool {
		return slices.ContainsFunc(r.Endpoints, func(e state.Endpoint) bool { return e.Addr == a })
	}
	switch r.Verdict {
	case state.Reject:
		return got == outcome{verdict: "rejected"}
	case state.Drop:
		return got == outcome{verdict: "dropped"}
	}
	if p.Affinity > 0 && has(remembered) && got.endpoint != remembered {
		return false
	}
	return got.verdict == "to" && has(got.endpoint) && got.masked == masked
}

// refuses reports whether a connection may be in the share that a route refuses. A route that is hashed always refuses the same ones.
func refuses(p *state.Port, r *state.Route, c *connection) bool {
	if r.Refused == 0 || !consistent.Serves(p, r) {
		return r.Refused > 0
	}
	table := consistent.Table(r)
	return table[consistent.Slot(p.Balance, netip.AddrPortFrom(c.src, clientPort), len(table))] == consistent.Refused
}

// refusesShare reports whether some connections to the destination are refused.
func (w *world) refusesShare() bool {
	if w.service == nil {
		return false
	}
	routes := w.service.Ports[0].Routes()
	return slices.ContainsFunc(routes[:], func(r *state.Route) bool { return r.Refused > 0 })
}

// atomicStates are records of one service that commits change between.
func atomicStates() map[string]*state.Service { return anyStates(false) }

// rangeStates are some of a service with ranges of ports.
func rangeStates() map[string]*state.Service { return anyStates(true) }

func anyStates(ofRanges bool) map[string]*state.Service {
	nodePort := state.Frontend{Kind: state.NodePort, Port: 30080}
	balancer := state.Frontend{Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: 80}
	clusterIP := state.Frontend{Kind: state.ClusterIP, Addr: addr("10.96.0.1"), Port: 80}
	service := func(affinity time.Duration, internal, external state.Traffic, sources ...netip.Prefix) *state.Service {
		lb := balancer
		lb.Restricted, lb.Sources = len(sources) > 0, sources
		return serviceOf("changing", state.Port{
			Name: "p", Protocol: state.TCP, Family: state.IPv4, Affinity: affinity,
			Frontends: []state.Frontend{clusterIP, lb, nodePort}, Internal: internal, External: external,
		})
	}
	to := func(m state.Masquerade, inside, outside state.Route) state.Traffic {
		return state.Traffic{Inside: inside, Outside: outside, Masquerade: m}
	}
	eps := func(n, count int) state.Route { return forward(endpointsOf(state.IPv4, n, count)) }
	cluster := func(n, count int) state.Traffic { return to(state.MasqueradeAlways, eps(n, count), eps(n, count)) }
	internal := func(n, count int) state.Traffic { return to(state.MasqueradeUnlessPod, eps(n, count), eps(n, count)) }
	clusterTo := func(r state.Route) state.Traffic { return to(state.MasqueradeAlways, r, r) }
	internalTo := func(r state.Route) state.Traffic { return to(state.MasqueradeUnlessPod, r, r) }
	none, drop := eps(0, 0), state.Route{Verdict: state.Drop}
	local := func(inside, outside state.Route) state.Traffic { return to(state.MasqueradeNode, inside, outside) }
	const sticky = 10 * time.Second
	hashed := func(by state.Balance, s *state.Service) *state.Service {
		s.Ports[0].Balance = by
		return s
	}
	// asRange makes the frontends with an address ranges, and adds a port of its own within them.
	asRange := func(first, last uint16, s *state.Service) *state.Service {
		p := &s.Ports[0]
		p.Name, p.Frontends = "range", slices.Clone(p.Frontends[:2])
		for i := range p.Frontends {
			p.Frontends[i].Port, p.Frontends[i].LastPort = first, last
		}
		for _, r := range p.Routes() {
			r.Endpoints = slices.Clone(r.Endpoints)
			for i := range r.Endpoints {
				r.Endpoints[i].Addr = netip.AddrPortFrom(r.Endpoints[i].Addr.Addr(), 0)
			}
		}
		return s
	}
	withPort := func(s *state.Service, number uint16) *state.Service {
		p := state.Port{Name: "p", Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{clusterIP, balancer}, Internal: internal(7, 2), External: cluster(7, 2)}
		for i := range p.Frontends {
			p.Frontends[i].Port = number
		}
		s.Ports = append(s.Ports, p)
		slices.SortFunc(s.Ports, func(a, b state.Port) int { return a.Compare(&b) })
		return s
	}
	if ofRanges {
		return map[string]*state.Service{
			"range":             asRange(70, 90, service(0, internal(1, 3), cluster(1, 3))),
			"wider range":       asRange(1, 65535, service(0, internal(4, 3), local(eps(4, 3), eps(4, 1)))),
			"other blocks":      asRange(79, 81, service(0, internal(1, 3), cluster(1, 3))),
			"range of none":     asRange(80, 95, service(0, internal(0, 0), local(eps(1, 3), drop))),
			"range and port":    withPort(asRange(64, 95, service(0, internal(1, 3), cluster(1, 3))), 80),
			"range, other port": withPort(asRange(60, 95, service(0, internal(1, 3), cluster(1, 3))), 81),
			"range, weighted":   asRange(80, 81, service(0, internalTo(weightedRoute(5, 3, 1, 1)), local(weightedRoute(0, 1, 1, 18), weightedRoute(0, 5)))),
			"range, hashed":     asRange(80, 85, hashed(state.HashClient, service(0, internal(1, 3), cluster(1, 3)))),
			"range, restricted": asRange(70, 90, service(0, internal(1, 3), cluster(1, 3), prefix("192.0.2.96/27"))),
			"range, sticky":     asRange(70, 90, service(sticky, internal(1, 3), local(eps(1, 3), eps(1, 1)))),
		}
	}
	return map[string]*state.Service{
		"absent":              nil,
		"no endpoints":        service(0, internal(0, 0), cluster(0, 0)),
		"1":                   service(0, internal(1, 1), cluster(1, 1)),
		"1-3":                 service(0, internal(1, 3), cluster(1, 3)),
		"4-6":                 service(0, internal(4, 3), cluster(4, 3)),
		"1-18":                service(0, internal(1, 18), cluster(1, 18)),
		"1-3 local 1":         service(0, internal(1, 3), local(eps(1, 3), eps(1, 1))),
		"1-3 local 7-8":       service(0, internal(1, 3), local(eps(1, 3), eps(7, 2))),
		"1 local 1":           service(0, to(state.MasqueradeUnlessPod, eps(1, 1), eps(1, 1)), local(eps(1, 1), eps(1, 1))),
		"1-3 local none":      service(0, to(state.MasqueradeUnlessPod, drop, drop), local(eps(1, 3), drop)),
		"drops all":           service(0, to(state.MasqueradeUnlessPod, drop, drop), to(state.MasqueradeAlways, drop, drop)),
		"local rejects":       service(0, internal(0, 0), local(none, none)),
		"4-6 restricted":      service(0, internal(4, 3), cluster(4, 3), prefix("192.0.2.9/32")),
		"1-3 restricted":      service(0, internal(1, 3), local(eps(1, 3), eps(1, 1)), prefix("192.0.2.100/32")),
		"4-6 wider":           service(0, internal(4, 3), cluster(4, 3), prefix("192.0.2.96/27"), prefix("198.51.100.0/25")),
		"4-6 for all":         service(0, internal(4, 3), cluster(4, 3), prefix("0.0.0.0/0")),
		"4-6 for nobody":      service(0, internal(4, 3), cluster(4, 3), prefix("198.51.100.0/24")),
		"1-3 sticky":          service(sticky, internal(1, 3), cluster(1, 3)),
		"3-6 sticky":          service(sticky, internal(3, 4), cluster(3, 4)),
		"1-3 sticky local":    service(sticky, internal(1, 3), local(eps(1, 3), eps(1, 1))),
		"1-3 sticky 3-4":      service(sticky, internal(1, 3), local(eps(1, 3), eps(3, 2))),
		"1-3 weighted":        service(0, internalTo(weightedRoute(0, 3, 1, 1)), clusterTo(weightedRoute(0, 3, 1, 1))),
		"1-3 reweighted":      service(0, internalTo(weightedRoute(0, 1, 1, 18)), local(weightedRoute(0, 1, 1, 18), weightedRoute(0, 5))),
		"1-3 finer":           service(0, internalTo(weightedRoute(0, 1, 1, 200)), clusterTo(weightedRoute(0, 1, 1, 200))),
		"1-3 refusing":        service(0, internalTo(weightedRoute(8, 4, 2, 2)), clusterTo(weightedRoute(8, 4, 2, 2))),
		"1 refusing most":     service(0, internalTo(weightedRoute(500, 1)), local(weightedRoute(500, 1), weightedRoute(5, 5, 3))),
		"1-3 sticky refusing": service(sticky, internalTo(weightedRoute(5, 3, 1, 1)), clusterTo(weightedRoute(5, 3, 1, 1))),
		"1-3 hashed":          hashed(state.HashClient, service(0, internal(1, 3), cluster(1, 3))),
		"1-4 hashed":          hashed(state.HashClient, service(0, internal(1, 4), cluster(1, 4))),
		"2-5 hashed by port":  hashed(state.HashConnection, service(0, internal(2, 4), local(eps(2, 4), eps(1, 2)))),
		"1-3 hashed refusing": hashed(state.HashClient, service(0, internalTo(weightedRoute(5, 3, 1, 1)), clusterTo(weightedRoute(5, 3, 1, 1)))),
		"1-3 sticky none":     service(sticky, to(state.MasqueradeUnlessPod, drop, drop), local(eps(1, 3), none)),
	}
}

// edgeStates are some of a service whose connections nodes hand over to each other.
func edgeStates() map[string]*state.Service {
	others := atomicStates()
	states := map[string]*state.Service{}
	for _, name := range []string{"absent", "1-3", "4-6 wider", "1-3 local 1"} {
		states[name] = others[name]
	}
	shares := []state.EdgeShare{{Node: 1, Weight: 1}}
	for name, of := range map[string]struct {
		of    string
		local state.Route
	}{
		"edge none":             {"1-3", state.Route{Verdict: state.Drop}},
		"edge 1":                {"1-3", forward(endpointsOf(state.IPv4, 1, 1))},
		"edge 1-2":              {"1-3", forward(endpointsOf(state.IPv4, 1, 2))},
		"edge 4-6":              {"4-6", forward(endpointsOf(state.IPv4, 4, 3))},
		"edge 1-18":             {"1-18", forward(endpointsOf(state.IPv4, 1, 18))},
		"edge elsewhere":        {"1-3 local 1", forward(endpointsOf(state.IPv4, 30, 2))},
		"edge weighted":         {"1-3 weighted", weightedRoute(0, 3, 1)},
		"edge finer":            {"1-3 finer", weightedRoute(0, 1, 200)},
		"edge restricted":       {"4-6 restricted", forward(endpointsOf(state.IPv4, 4, 2))},
		"edge 1-3 restricted":   {"1-3 restricted", forward(endpointsOf(state.IPv4, 1, 3))},
		"edge 4-6 for nobody":   {"4-6 for nobody", forward(endpointsOf(state.IPv4, 4, 3))},
		"edge with a wide list": {"4-6 wider", forward(endpointsOf(state.IPv4, 4, 3))},
	} {
		s := others[of.of]
		s = s.WithPorts(slices.Clone(s.Ports))
		s.Ports[0].Edge = &state.Edge{Shares: shares, Local: of.local}
		states[name] = s
	}
	except := states["edge 4-6"].WithPorts(slices.Clone(states["edge 4-6"].Ports))
	except.Ports[0].Edge = &state.Edge{Shares: shares, Local: except.Ports[0].Edge.Local, Except: state.KindsOf(state.NodePort)}
	states["edge without node ports"] = except
	elsewhere := states["edge 1"].WithPorts(slices.Clone(states["edge 1"].Ports))
	elsewhere.Ports[0].Frontends = []state.Frontend{{Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: 81}, {Kind: state.NodePort, Port: 30081}}
	states["edge, other ports"] = elsewhere
	return states
}

// edgeConnections are marked connections, to frontends and to what is none in the edge view, and some that are not marked.
func edgeConnections() []connection {
	list := []connection{
		{name: "unmarked to load balancer", src: addr("192.0.2.100"), dst: netip.MustParseAddrPort("203.0.113.1:80")},
		{name: "unmarked to node port", src: addr("192.0.2.100"), dst: netip.MustParseAddrPort("192.0.2.1:30080")},
	}
	for _, src := range []string{"192.0.2.100", "192.0.2.9"} {
		for to, dst := range map[string]string{
			"load balancer": "203.0.113.1:80", "node port": "192.0.2.1:30080", "node port of another node": "192.0.2.2:30080",
			"cluster IP": "10.96.0.1:80", "another port": "203.0.113.1:81", "nobody": "192.0.2.2:81",
		} {
			if src == "192.0.2.100" || to == "load balancer" {
				list = append(list, connection{"marked from " + src + " to " + to, addr(src), netip.MustParseAddrPort(dst), testEdge})
			}
		}
	}
	slices.SortFunc(list, func(a, b connection) int { return strings.Compare(a.name, b.name) })
	return list
}

// TestAtomicStates: the states have a way of each kind to get an endpoint, which a commit can change to any other.
func TestAtomicStates(t *testing.T) {
	in := func(k kind, arg uint32) setID { return setID{space: service, kind: k, arg: arg} }
	want := []setID{
		in(endpoints, 3), in(endpoints, 24), in(sticky, 0), in(shares, 64), in(shares, 256), in(hashClients, 251), in(hashClients, 1021),
		in(hashConnections, 1021), in(hashRefuses, 0),
	}
	refusing := []setID{in(shares, 64), in(shares, 256), {space: service, view: inside, kind: shares, arg: 256}}
	base := newWorld(testSettings(state.IPv4))
	for _, s := range atomicStates() {
		w := base.changedTo(testSettings(state.IPv4), s)
		has := func(id setID) bool { return len(w.contents[id.name()]) > 0 }
		want = slices.DeleteFunc(want, has)
		if s != nil && s.Ports[0].External.Inside.Refused > 0 {
			refusing = slices.DeleteFunc(refusing, has)
		}
	}
	if len(want) > 0 || len(refusing) > 0 {
		t.Errorf("no state has elements in %+v, and none that refuses a share in %+v", want, refusing)
	}
}

func atomicConnections() []connection {
	var list []connection
	for from, src := range map[string]string{
		"outside": "192.0.2.100", "also outside": "192.0.2.9", "pod": "10.244.9.9", "endpoint": "10.244.0.1", "node": "192.0.2.1",
	} {
		for to, dst := range map[string]string{
			"node port": "192.0.2.1:30080", "load balancer": "203.0.113.1:80", "cluster IP": "10.96.0.1:80", "another port": "10.96.0.1:81",
		} {
			if seldom := from != "outside" && from != "endpoint" && to != "load balancer"; seldom {
				continue // nothing that others do not show
			}
			list = append(list, connection{name: from + " to " + to, src: addr(src), dst: netip.MustParseAddrPort(dst)})
		}
	}
	slices.SortFunc(list, func(a, b connection) int { return strings.Compare(a.name, b.name) })
	return list
}

// TestRememberedClients changes a service after a client has connected. Where its next connection goes, to whichever of the service's
// frontends, must be in that one's route; if the route has the remembered endpoint, the connection must go there.
func TestRememberedClients(t *testing.T) {
	states := atomicStates()
	names := slices.Sorted(maps.Keys(states))
	for _, o := range []*Settings{testSettings(state.IPv4), counting(testSettings())} {
		stays := 0
		for i, from := range names {
			base := newWorld(o).changedTo(o, states[from])
			for j, to := range names {
				if leftOut(i, j) {
					continue
				}
				changed := base.changedTo(o, states[to])
				for _, c := range atomicConnections() {
					for seed := range uint64(3) {
						world, remembered := base.connects(&c, seed)
						after := changed
						if remembered.IsValid() {
							after = changed.cameFrom(world)
						}
						for _, again := range atomicConnections() {
							if again.src != c.src {
								continue
							}
							in := again.interpret(seed+1, after, after, 0)
							got := in.run()
							if !after.want(o, &again, got, remembered) {
								t.Errorf("%s, then %s: %q to %q: remembered %v, then %v", c.name, again.name, from, to, remembered, got)
							}
							next := after.with(in.affinity)
							if in.learnt && again.interpret(seed+2, next, next, 0).run() != got {
								t.Errorf("%s, then %s: %q to %q: %v is not learnt", c.name, again.name, from, to, got)
							}
							third := c.interpret(seed+2, next, next, 0).run()
							if !in.learnt && !next.want(o, &c, third, remembered) {
								t.Errorf("%s, then %s (%v): %q to %q: remembered %v, then %v", c.name, again.name, got, from, to, remembered, third)
							}
							if (from != to || c.dst != again.dst) && remembered.IsValid() && got.endpoint == remembered {
								stays++
							}
						}
					}
				}
			}
		}
		if stays == 0 {
			t.Error("no client stayed with its endpoint")
		}
	}
}

// TestMovedClients: a client that becomes one of the node's own addresses, or ceases to be, takes the other view from then on. It is
// not sent to an endpoint that only the previous view has.
func TestMovedClients(t *testing.T) {
	o := testSettings()
	c := connection{name: "moved", src: addr("192.0.2.100"), dst: netip.MustParseAddrPort("192.0.2.1:30080")}
	base := newWorld(o).changedTo(o, atomicStates()["1-3 sticky 3-4"])
	locals := [][]netip.Addr{{nodeAddr(state.IPv4)}, {nodeAddr(state.IPv4), c.src}}
	for seed := range uint64(20) {
		for i := range locals {
			in := c.interpret(seed, base, base, 0)
			in.local = locals[i]
			first := in.run()
			after := base.with(in.affinity)
			moved := c.interpret(seed, after, after, 0)
			moved.local = locals[1-i]
			second := moved.run()
			inside, outside := endpointsOf(state.IPv4, 1, 3), endpointsOf(state.IPv4, 3, 2)
			has := func(list []state.Endpoint, a netip.AddrPort) bool {
				return slices.ContainsFunc(list, func(e state.Endpoint) bool { return e.Addr == a })
			}
			route := [][]state.Endpoint{inside, outside}[i]
			if !has(route, second.endpoint) {
				t.Errorf("first %v, and as a client of the other kind %v", first, second)
			}
		}
	}
}

// TestHashedClients: a client, or a connection, gets the endpoint in the slot of its hash, whichever frontend it connects to, and connections in
// the share that is refused are always the same.
func TestHashedClients(t *testing.T) {
	o := testSettings(state.IPv4)
	for name, refuses := range map[string]bool{"1-3 hashed": false, "2-5 hashed by port": false, "1-3 hashed refusing": true} {
		w := newWorld(o).changedTo(o, atomicStates()[name])
		p := &w.service.Ports[0]
		got := map[string]int{}
		for i := range 200 {
			c := connection{name: "hashed", src: netip.AddrFrom4([4]byte{10, 244, 7, byte(i)}), dst: netip.MustParseAddrPort("10.96.0.1:80")}
			r := &p.Internal.Inside
			from := netip.AddrPortFrom(c.src, clientPort)
			at := consistent.Table(r)[consistent.Slot(p.Balance, from, consistent.SizeFor(len(r.Endpoints)))]
			want := outcome{verdict: "rejected"}
			if at != consistent.Refused {
				want = outcome{"to", r.Endpoints[at].Addr, false}
			}
			out := c.interpret(uint64(i), w, w, 0).run()
			if got[out.verdict]++; out != want {
				t.Errorf("%s: client %v: %v, want %v", name, c.src, out, want)
			}
		}
		if refuses != (got["rejected"] > 0) || got["to"] == 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

func (w *world) hasRange() bool {
	return w.service != nil && slices.ContainsFunc(w.service.Ports, func(p state.Port) bool { return isRange(&p) })
}

// hasPort reports whether a single port takes the connection.
func (w *world) hasPort(c *connection) bool {
	if w.service == nil {
		return false
	}
	return slices.ContainsFunc(w.service.Ports, func(p state.Port) bool {
		return slices.ContainsFunc(p.Frontends, func(f state.Frontend) bool {
			return f.LastPort == 0 && f.Port == c.dst.Port() && f.Addr == c.dst.Addr()
		})
	})
}

// restricts reports whether not everybody may connect to some frontend.
func (w *world) restricts() bool {
	return w.service != nil && slices.ContainsFunc(w.service.Ports, func(p state.Port) bool { return isRestricted(&p) })
}

// unrestricted returns the world without source ranges. It is for questions about the record alone.
func (w *world) unrestricted() *world {
	n, s := *w, *w.service
	s.Ports = slices.Clone(s.Ports)
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Frontends = slices.Clone(p.Frontends)
		for j := range p.Frontends {
			p.Frontends[j].Restricted = false
		}
	}
	n.service = &s
	return &n
}

// onlyRanges returns the world without single ports. It is for questions about the record alone.
func (w *world) onlyRanges() *world {
	n := *w
	s := *n.service
	s.Ports = slices.DeleteFunc(slices.Clone(s.Ports), func(p state.Port) bool { return !isRange(&p) })
	n.service = &s
	return &n
}

// TestCommitBetweenLookups changes a service between any two lookups of a packet. The outcome of the connection must be right
// before the commit or after it.
func TestCommitBetweenLookups(t *testing.T) {
	commitBetweenLookups(t, atomicStates(), atomicConnections(), testSettings(state.IPv4), counting(testSettings()))
}

// TestCommitBetweenLookupsOfTheEdge does so with marked packets of a service whose connections nodes hand over to each other, or no longer.
func TestCommitBetweenLookupsOfTheEdge(t *testing.T) {
	commitBetweenLookups(t, edgeStates(), edgeConnections(), withTestEdge(testSettings(state.IPv4)), withTestEdge(counting(testSettings())))
}

// TestMarkedConnections: the ways that the edge view knows all occur in these tests, and no marked packet passes on its own.
func TestMarkedConnections(t *testing.T) {
	o := withTestEdge(testSettings(state.IPv4))
	seen := map[string]int{}
	for name, s := range edgeStates() {
		w := newWorld(o).changedTo(o, s)
		for _, c := range edgeConnections() {
			for seed := range uint64(20) {
				got := c.interpret(seed, w, w, 0).run()
				if !w.want(o, &c, got, netip.AddrPort{}) {
					t.Errorf("%s: %s: %v", name, c.name, got)
				}
				if c.mark != 0 {
					seen[got.verdict]++
				}
			}
		}
	}
	if seen["to"] == 0 || seen["dropped"] == 0 || seen["passed"] > 0 || seen["rejected"] > 0 {
		t.Errorf("marked connections: %v", seen)
	}
}

// TestCommitBetweenLookupsOfRanges does so with a service that has ranges of ports, or gets or loses them.
func TestCommitBetweenLookupsOfRanges(t *testing.T) {
	states, others := rangeStates(), atomicStates()
	for _, name := range []string{"absent", "1", "1-3 local 1", "4-6 restricted"} {
		states[name] = others[name]
	}
	commitBetweenLookups(t, states, atomicConnections(), testSettings(state.IPv4), counting(testSettings()))
}

// leftOut reports whether short tests leave out a change from one state to another, by their numbers.
func leftOut(from, to int) bool {
	return testing.Short() && (from+to)%8 != 0
}

func commitBetweenLookups(t *testing.T, states map[string]*state.Service, connections []connection, settings ...*Settings) {
	t.Helper()
	names := slices.Sorted(maps.Keys(states))
	found := map[string]int{}
	for _, o := range settings {
		for i, from := range names {
			base := newWorld(o).changedTo(o, states[from])
			for j, to := range names {
				if leftOut(i, j) {
					continue
				}
				changed := base.changedTo(o, states[to])
				ahead := base.lengthened(o, changed)
				for _, c := range connections {
					for seed := range uint64(1) {
						before, remembered := base.connects(&c, seed)
						after := changed
						if remembered.IsValid() {
							after = changed.cameFrom(before)
						}
						before = before.ruledBy(ahead)
						for at, more := 0, true; more; at++ {
							in := c.interpret(seed+1, before, after, at)
							got := in.run()
							more = in.lookups > at
							if before.want(o, &c, got, remembered) || after.want(o, &c, got, remembered) {
								continue
							}
							// ADR 45: a packet that finds no slot is refused if its frontend still refuses a share.
							if got == (outcome{verdict: "rejected"}) && after.refusesShare() {
								continue
							}
							// ADR 6: an endpoint's connection to itself through a service that it has just left.
							itself := outcome{"to", got.endpoint, true}
							if got.endpoint.Addr() == c.src && before.want(o, &c, itself, remembered) && !after.want(o, &c, itself, remembered) {
								continue
							}
							// ADR 48: a single port that comes where the address has others.
							unmarked := outcome{got.verdict, got.endpoint, !got.masked}
							if !before.hasPort(&c) && after.hasPort(&c) &&
								(after.want(o, &c, unmarked, remembered) || after.hasRange() && after.onlyRanges().want(o, &c, got, remembered)) {
								continue
							}
							// ADR 48: a range that a commit restricts.
							if after.hasRange() && !before.restricts() && after.restricts() && after.unrestricted().want(o, &c, got, remembered) {
								continue
							}
							key := fmt.Sprintf("pods %v: %s: %q to %q: %v", len(o.LocalDetector.ClusterCIDRs) > 0, c.name, from, to, got)
							if found[key]++; found[key] == 1 {
								t.Errorf("%s, if the commit comes before lookup %d", key, at)
							}
						}
					}
				}
			}
		}
	}
}
