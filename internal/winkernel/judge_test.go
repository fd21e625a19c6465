package winkernel

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/internal/winkernel/internal/hnstest"
	"github.com/switchyard-net/switchyard/internal/winkernel/internal/plan"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// judge says where HNS must send a connection: it asks the oracle, and takes off what HNS cannot do. It shares nothing with the plan.
type judge struct {
	world   *oracle.World
	network plan.Network
	options *Options
	own     map[netip.Addr]string // addresses of this node

	asked *oracle.World // of which shut is the closed one
	shut  *oracle.World
}

// outsiders are clients from outside that are in no range of a Service.
var outsiders = map[state.Family]netip.Addr{state.IPv4: netip.MustParseAddr("100.64.0.1"), state.IPv6: netip.MustParseAddr("2001:db8:99::1")}

// nobody are ranges without a client.
var nobody = []netip.Prefix{netip.MustParsePrefix("100.64.9.9/32"), netip.MustParsePrefix("2001:db8:99::9/128")}

// route returns where a connection must go. HNS has one route for all clients of a frontend: the one of those from outside.
func (j *judge) route(proto state.Protocol, dst netip.AddrPort) hnstest.Route {
	family := state.FamilyOf(dst.Addr())
	served := family == state.IPv4 || j.network.Features.IPv6 && !j.network.Overlay
	if proto == state.SCTP || !served {
		return hnstest.Route{}
	}
	p := probe.Packet{From: probe.FromOutside, Src: outsiders[family], Dst: dst, Protocol: proto}
	answer := j.closed().Ask(p)
	if answer.Outcome != probe.Forward {
		return hnstest.Route{} // HNS cannot refuse or drop
	}
	var r hnstest.Route
	for _, c := range onePort(slices.DeleteFunc(answer.Choices, func(c probe.Choice) bool { return j.own[c.Endpoint.Addr()] != "" })) {
		r.Endpoints = append(r.Endpoints, c.Endpoint)
	}
	if len(r.Endpoints) == 0 {
		return hnstest.Route{}
	}
	kept := !answer.Choices[0].Masquerade
	if j.internal(p) {
		kept = j.options.Config.EnableDSR && !j.world.MasqueradeAll
	}
	if !kept || !j.network.Features.DSR {
		r.Source = j.source(r.Endpoints)
	}
	r.Sticky = answer.Affinity != "" && j.network.Features.SessionAffinity
	return r
}

// closed is the cluster with load balancers that admit nobody where they have source ranges: HNS cannot tell clients apart.
func (j *judge) closed() *oracle.World {
	if j.asked == j.world {
		return j.shut
	}
	w := *j.world
	j.asked, j.shut = j.world, &w
	w.Services = nil
	for _, s := range j.world.Services {
		c := *s
		c.SourceRanges = nil
		for i, family := range []state.Family{state.IPv4, state.IPv6} {
			restricted := false
			for _, r := range s.SourceRanges {
				if state.FamilyOf(r.Addr()) == family {
					restricted = true
				}
			}
			if slices.ContainsFunc(s.SourceRanges, func(r netip.Prefix) bool { return state.FamilyOf(r.Addr()) == family && r.Bits() == 0 }) {
				restricted = false
			}
			if restricted {
				c.SourceRanges = append(c.SourceRanges, nobody[i])
			}
		}
		w.Services = append(w.Services, &c)
	}
	return &w
}

// internal reports whether p goes to a cluster IP: these are what masqueradeAll is about.
func (j *judge) internal(p probe.Packet) bool {
	w := *j.closed()
	w.DetectLocal, w.MasqueradeAll = false, false
	without := w.Ask(p)
	w.MasqueradeAll = true
	return without.Choices[0].Masquerade != w.Ask(p).Choices[0].Masquerade
}

// onePort leaves those choices that have the port of most of them, the lowest of several.
func onePort(list []probe.Choice) []probe.Choice {
	best, most := uint16(0), 0
	for _, c := range list {
		n, port := 0, c.Endpoint.Port()
		for _, o := range list {
			if o.Endpoint.Port() == port {
				n++
			}
		}
		if n > most || n == most && port < best {
			best, most = port, n
		}
	}
	return slices.DeleteFunc(slices.Clone(list), func(c probe.Choice) bool { return c.Endpoint.Port() != best })
}

// source returns the source address that endpoints see which do not see the client's own.
func (j *judge) source(endpoints []netip.AddrPort) netip.Addr {
	family := state.FamilyOf(endpoints[0].Addr())
	if !j.network.Overlay {
		return j.primary(family)
	}
	for _, e := range endpoints {
		pod := slices.Contains(podAddrs(), e.Addr())
		if !pod {
			return j.primary(family)
		}
	}
	return netip.MustParseAddr(sourceVIP)
}

func (j *judge) primary(f state.Family) netip.Addr {
	if f == state.IPv6 {
		return netip.MustParseAddr("fd00:16::1")
	}
	return netip.MustParseAddr("172.16.0.1")
}

// compare asks about all packets that the history has, and looks for objects that nobody needs.
func (j *judge) compare(r *run) error {
	type question struct {
		proto state.Protocol
		dst   netip.AddrPort
	}
	asked := map[question]bool{} // HNS does the same for all clients
	for _, p := range r.history.Packets() {
		if q := (question{p.Protocol, p.Dst}); asked[q] {
			continue
		} else {
			asked[q] = true
		}
		want, got := j.route(p.Protocol, p.Dst), r.hns.Trace(p.Protocol, p.Dst)
		r.count("questions", 1)
		if len(want.Endpoints) > 0 {
			r.count("forwarded", 1)
		} else {
			r.count("not served", 1)
		}
		if !slices.Equal(got.Endpoints, want.Endpoints) || got.Source != want.Source || got.Sticky != want.Sticky || len(got.Broken) > 0 {
			return fmt.Errorf("%v\nHNS has  %+v\nand must %+v\n%s", p, got, want, r.dump())
		}
	}
	used := map[netip.Addr]bool{}
	for _, id := range r.hns.LoadBalancerIDs() {
		lb := r.hns.LoadBalancer(id)
		key, _ := lb.Key()
		for _, e := range lb.Endpoints {
			for _, addr := range r.hns.Endpoint(e).Addrs {
				used[addr] = true
			}
		}
		used[key.Addr] = true
		if r.isHealth(&lb) {
			if !r.options.Config.ForwardHealthCheckVIP || !j.healthChecked(key) {
				return fmt.Errorf("nobody needs the health checks of %v\n%s", key, r.dump())
			}
			continue
		}
		if len(j.route(key.Protocol, dstOf(key, j)).Endpoints) == 0 {
			return fmt.Errorf("nobody needs the load balancer of %v\n%s", key, r.dump())
		}
	}
	for _, id := range r.hns.EndpointIDs(true) {
		if e := r.hns.Endpoint(id); !used[e.Addrs[0]] || slices.Contains(localPods(), e.Addrs[0]) {
			return fmt.Errorf("nobody needs the remote endpoint of %v\n%s", e.Addrs, r.dump())
		}
	}
	return nil
}

// healthChecked reports whether key is the port of health checks at a load balancer's address.
func (j *judge) healthChecked(key state.FrontendKey) bool {
	return slices.ContainsFunc(j.world.Services, func(s *model.Service) bool {
		port := j.world.HealthCheckPort(s.Name)
		return slices.Contains(s.LoadBalancerIPs, key.Addr) && (key.Port == port || port == 0 && key.Port == healthzPort)
	})
}

func (r *run) dump() string {
	var text strings.Builder
	for _, line := range r.hns.Dump() {
		text.WriteString(line + "\n")
	}
	return text.String()
}
