package plan_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/internal/ebpf/plan"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

var (
	addr   = netip.MustParseAddr
	prefix = netip.MustParsePrefix
)

// Detectors of all kinds.
var (
	byCIDR      = plan.Settings{Detector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/48")}}}
	byIPv4CIDR  = plan.Settings{Detector: state.LocalDetector{ClusterCIDRs: []netip.Prefix{prefix("10.244.0.0/16")}}}
	byNodeCIDR  = plan.Settings{Detector: state.LocalDetector{NodeCIDR: true}, PodCIDRs: []netip.Prefix{prefix("10.244.1.0/24")}}
	byBridge    = plan.Settings{Detector: state.LocalDetector{BridgeInterface: "cni0"}}
	byPrefix    = plan.Settings{Detector: state.LocalDetector{InterfacePrefix: "veth"}}
	cidrFirst   = plan.Settings{Detector: state.LocalDetector{ClusterCIDRs: byCIDR.Detector.ClusterCIDRs, InterfacePrefix: "veth"}}
	undetecting = plan.Settings{}
)

var forward = recordtest.To

// web is a TCP port with a frontend of each kind that sends everybody to the same endpoints.
func web() state.Port {
	route := forward("10.244.1.2:80", "10.244.2.3:80")
	return state.Port{
		Name: "http", Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: addr("10.96.0.1"), Port: 80},
			{Kind: state.ExternalIP, Addr: addr("198.51.100.1"), Port: 80},
			{Kind: state.LoadBalancer, Addr: addr("203.0.113.1"), Port: 80},
			{Kind: state.NodePort, Port: 30080},
		},
		Internal: state.Traffic{Inside: route, Outside: route, Masquerade: state.MasqueradeUnlessPod},
		External: state.Traffic{Inside: route, Outside: forward("10.244.1.2:80"), Masquerade: state.MasqueradeNode},
	}
}

// show writes routes as "internal pods+node 10.96.0.1:80; external node 198.51.100.1:80 :30080".
func show(routes []plan.Route) string {
	var texts []string
	for _, r := range routes {
		var b strings.Builder
		b.WriteString(map[bool]string{false: "internal ", true: "external "}[r.External])
		b.WriteString(map[plan.Clients]string{plan.Pods: "pods", plan.Node: "node", plan.Pods | plan.Node: "pods+node"}[r.Clients])
		for _, f := range r.All() {
			if f.Addr.IsValid() {
				fmt.Fprintf(&b, " %v", netip.AddrPortFrom(f.Addr, f.Port))
			} else {
				fmt.Fprintf(&b, " :%d", f.Port)
			}
		}
		texts = append(texts, b.String())
	}
	return strings.Join(texts, "; ")
}

func planOf(s plan.Settings, ports ...state.Port) string {
	return show(plan.Append(nil, &state.Service{Ports: ports}, &s))
}

// TestClients: a client of a kind is translated only if netfilter would send it to the same endpoints from the same address.
func TestClients(t *testing.T) {
	const never, always, unlessPod, node = state.MasqueradeNever, state.MasqueradeAlways, state.MasqueradeUnlessPod, state.MasqueradeNode
	const both, onlyNode = "internal pods+node", "internal node"
	for _, c := range []struct {
		name     string
		settings plan.Settings
		family   state.Family
		// The result for clients from outside: "same" as for clients from inside, "other", "reject".
		outside                        string
		never, always, unlessPod, node string
	}{
		{"cluster CIDR", byCIDR, state.IPv4, "same", both, onlyNode, both, both},
		{"cluster CIDR, outsiders get others", byCIDR, state.IPv4, "other", both, onlyNode, both, both},
		{"cluster CIDR, outsiders are rejected", byCIDR, state.IPv4, "reject", both, onlyNode, both, both},
		{"cluster CIDR, IPv6", byCIDR, state.IPv6, "same", both, onlyNode, both, both},
		{"cluster CIDR goes before interfaces", cidrFirst, state.IPv4, "other", both, onlyNode, both, both},
		// Pods of a family that the detector does not see are clients from outside.
		{"cluster CIDR of the other family", byIPv4CIDR, state.IPv6, "same", both, onlyNode, onlyNode, both},
		{"cluster CIDR of the other family, outsiders get others", byIPv4CIDR, state.IPv6, "other", onlyNode, onlyNode, onlyNode, onlyNode},
		{"node CIDR", byNodeCIDR, state.IPv4, "other", both, onlyNode, both, both},
		{"node CIDR of the other family", byNodeCIDR, state.IPv6, "same", both, onlyNode, onlyNode, both},
		{"node CIDR of the other family, outsiders get others", byNodeCIDR, state.IPv6, "other", onlyNode, onlyNode, onlyNode, onlyNode},
		{"no detector", undetecting, state.IPv4, "same", both, onlyNode, onlyNode, both},
		{"no detector, outsiders get others", undetecting, state.IPv4, "other", onlyNode, onlyNode, onlyNode, onlyNode},
		{"no detector, outsiders are rejected", undetecting, state.IPv4, "reject", onlyNode, onlyNode, onlyNode, onlyNode},
		// A socket does not show by which interface its connections will come to the node.
		{"bridge", byBridge, state.IPv4, "same", onlyNode, onlyNode, onlyNode, onlyNode},
		{"interface prefix", byPrefix, state.IPv6, "same", onlyNode, onlyNode, onlyNode, onlyNode},
	} {
		for masquerade, want := range map[state.Masquerade]string{never: c.never, always: c.always, unlessPod: c.unlessPod, node: c.node} {
			p := web()
			p.Family, p.Frontends, p.Internal.Masquerade = c.family, p.Frontends[:1], masquerade
			switch c.outside {
			case "other":
				p.Internal.Outside = forward("10.244.1.2:80")
			case "reject":
				p.Internal.Outside = state.Route{Verdict: state.Reject}
			}
			if got := planOf(c.settings, p); strings.TrimSuffix(got, " 10.96.0.1:80") != want {
				t.Errorf("%s, masquerade %v: %q, want %q", c.name, masquerade, got, want)
			}
		}
	}
	for _, verdict := range []state.Verdict{state.Unused, state.Reject, state.Drop} {
		p := web()
		p.Internal.Inside = state.Route{Verdict: verdict}
		p.Frontends = p.Frontends[:1]
		if got := planOf(byCIDR, p); got != "" {
			t.Errorf("%v is planned: %q", verdict, got)
		}
	}
}

// TestFrontends: which frontends of a port are translated.
func TestFrontends(t *testing.T) {
	const all = "internal pods+node 10.96.0.1:80; external pods+node 198.51.100.1:80 203.0.113.1:80 :30080"
	for name, c := range map[string]struct {
		change func(*state.Port, *plan.Settings)
		want   string
	}{
		"all":      {func(*state.Port, *plan.Settings) {}, all},
		"UDP":      {func(p *state.Port, _ *plan.Settings) { p.Protocol = state.UDP }, ""},
		"SCTP":     {func(p *state.Port, _ *plan.Settings) { p.Protocol = state.SCTP }, ""},
		"deadline": {func(p *state.Port, _ *plan.Settings) { p.DrainSeconds = 30 }, ""},
		"hash":     {func(p *state.Port, _ *plan.Settings) { p.Balance = state.HashConnection }, ""},
		"affinity": {func(p *state.Port, _ *plan.Settings) { p.Affinity = time.Second }, ""},
		"source ranges leave the load balancer to netfilter": {func(p *state.Port, _ *plan.Settings) {
			p.Frontends[2].Restricted = true
		}, "internal pods+node 10.96.0.1:80; external pods+node 198.51.100.1:80 :30080"},
		"the cluster IP is an address of the node": {func(_ *state.Port, s *plan.Settings) {
			s.Local = map[netip.Addr]bool{addr("10.96.0.1"): true}
		}, "external pods+node 198.51.100.1:80 203.0.113.1:80 :30080"},
		"the load balancer is an address of the node": {func(_ *state.Port, s *plan.Settings) {
			s.Local = map[netip.Addr]bool{addr("203.0.113.1"): true, addr("192.0.2.1"): true}
		}, "internal pods+node 10.96.0.1:80; external pods+node 198.51.100.1:80 :30080"},
		"all external frontends are restricted or the node's": {func(p *state.Port, s *plan.Settings) {
			p.Frontends = p.Frontends[:3]
			p.Frontends[2].Restricted = true
			s.Local = map[netip.Addr]bool{addr("198.51.100.1"): true}
		}, "internal pods+node 10.96.0.1:80"},
		"policy Cluster masquerades pods at external frontends": {func(p *state.Port, _ *plan.Settings) {
			p.External.Masquerade = state.MasqueradeAlways
		}, "internal pods+node 10.96.0.1:80; external node 198.51.100.1:80 203.0.113.1:80 :30080"},
		"external connections are dropped": {func(p *state.Port, _ *plan.Settings) {
			p.External.Inside = state.Route{Verdict: state.Drop}
		}, "internal pods+node 10.96.0.1:80"},
		"internal connections are rejected": {func(p *state.Port, _ *plan.Settings) {
			p.Internal.Inside = state.Route{Verdict: state.Reject}
		}, "external pods+node 198.51.100.1:80 203.0.113.1:80 :30080"},
		"more endpoints than a route can have": {func(p *state.Port, _ *plan.Settings) {
			p.Internal.Inside.Endpoints = make([]state.Endpoint, 65536)
		}, "external pods+node 198.51.100.1:80 203.0.113.1:80 :30080"},
		"as many endpoints as a route can have": {func(p *state.Port, _ *plan.Settings) {
			p.Internal.Inside.Endpoints = make([]state.Endpoint, 65535)
		}, all},
	} {
		p, s := web(), byCIDR
		c.change(&p, &s)
		if got := planOf(s, p); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestManyFrontends: a route has 64 frontends, and leaves those behind them to netfilter.
func TestManyFrontends(t *testing.T) {
	p := web()
	p.Frontends = nil
	for i := range 70 {
		p.Frontends = append(p.Frontends, state.Frontend{Kind: state.ExternalIP, Addr: netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}), Port: 80})
	}
	routes := plan.Append(nil, &state.Service{Ports: []state.Port{p}}, &byCIDR)
	if len(routes) != 1 {
		t.Fatalf("plan is %s", show(routes))
	}
	n := 0
	for bit, f := range routes[0].All() {
		if bit != n || f.Addr != p.Frontends[n].Addr {
			t.Errorf("frontend %d is %v with bit %d", n, f, bit)
		}
		n++
	}
	if n != 64 {
		t.Errorf("%d frontends are planned, want 64", n)
	}
}

// TestSettingsEqual changes each setting.
func TestSettingsEqual(t *testing.T) {
	base := func() plan.Settings {
		s := byNodeCIDR
		s.Local = map[netip.Addr]bool{addr("192.0.2.1"): true}
		return s
	}
	for name, change := range map[string]func(*plan.Settings){
		"detector":           func(s *plan.Settings) { s.Detector.InterfacePrefix = "veth" },
		"pod CIDRs":          func(s *plan.Settings) { s.PodCIDRs = nil },
		"NodePort addresses": func(s *plan.Settings) { s.NodePorts = []netip.Addr{addr("192.0.2.1")} },
		"addresses":          func(s *plan.Settings) { s.Local = map[netip.Addr]bool{addr("192.0.2.2"): true} },
	} {
		a, b := base(), base()
		if !a.Equal(&b) {
			t.Fatal("equal settings differ")
		}
		if change(&b); a.Equal(&b) {
			t.Errorf("settings that differ in their %s are equal", name)
		}
	}
}

// TestOwned: the addresses at which a record's own TCP frontends go before others' NodePorts.
func TestOwned(t *testing.T) {
	s := byCIDR
	s.NodePorts = []netip.Addr{addr("192.0.2.1"), addr("198.51.100.1"), addr("203.0.113.1")}
	tcp, udp := web(), web()
	udp.Protocol = state.UDP
	udp.Frontends = []state.Frontend{{Kind: state.ExternalIP, Addr: addr("192.0.2.1"), Port: 53}}
	tcp.Internal.Inside, tcp.Affinity = state.Route{Verdict: state.Reject}, time.Hour // in no plan
	got := plan.Owned([]netip.Addr{addr("203.0.113.1")}, &state.Service{Ports: []state.Port{tcp, udp}}, &s)
	if want := []netip.Addr{addr("203.0.113.1"), addr("198.51.100.1")}; !slices.Equal(got, want) {
		t.Errorf("addresses are %v, want %v", got, want)
	}
	if got := plan.Owned(nil, &state.Service{Ports: []state.Port{tcp}}, &byCIDR); len(got) > 0 {
		t.Errorf("%v are owned, and no address serves NodePorts", got)
	}
}

// TestOrder: the routes of two versions of a record are in the same order, so that each finds its other version.
func TestOrder(t *testing.T) {
	ports := []state.Port{web(), web(), web()}
	ports[1].Name, ports[2].Name = "https", "metrics"
	routes := plan.Append(nil, &state.Service{Ports: ports}, &byCIDR)
	if len(routes) != 6 || !slices.IsSortedFunc(routes, func(a, b plan.Route) int { return a.Compare(&b) }) {
		t.Fatalf("routes are not in order: %s", show(routes))
	}
	again := plan.Append(routes[:0:0], &state.Service{Ports: slices.Clone(ports)}, &byBridge)
	for i := range routes {
		for j := range again {
			if same := routes[i].Compare(&again[j]) == 0; same != (i == j) {
				t.Errorf("routes %d and %d: same is %v", i, j, same)
			}
		}
	}
}

// TestBeyond compares it with sets, for random routes.
func TestBeyond(t *testing.T) {
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 0))
		checkBeyond(t, randomRoute(rng), randomRoute(rng))
	}
}

func FuzzBeyond(f *testing.F) {
	f.Add(uint64(1), uint64(2), uint64(3), uint64(4))
	f.Fuzz(func(t *testing.T, a, b, mine, others uint64) {
		r, o := randomRoute(rand.New(rand.NewPCG(a, 0))), randomRoute(rand.New(rand.NewPCG(b, 0)))
		mask := func(r *plan.Route) uint64 { return 1<<min(len(r.Port.Frontends), 64) - 1 }
		r.Frontends, o.Frontends = mine&mask(r), others&mask(o)
		checkBeyond(t, r, o)
	})
}

func checkBeyond(t *testing.T, r, o *plan.Route) {
	t.Helper()
	type key struct {
		kind state.FrontendKind
		plan.Frontend
	}
	keys := func(r *plan.Route) map[key]int {
		set := map[key]int{}
		for i, f := range r.Port.Frontends {
			if r.Frontends&(1<<i) != 0 {
				set[key{f.Kind, plan.Frontend{Addr: f.Addr, Port: f.Port}}] = i
			}
		}
		return set
	}
	for _, other := range []*plan.Route{nil, o, r} {
		want := keys(r)
		if other != nil {
			for k := range keys(other) {
				delete(want, k)
			}
		}
		last := -1
		for bit, f := range r.Beyond(other) {
			k := key{r.Port.Frontends[bit].Kind, f}
			if i, is := want[k]; !is || i != bit || bit <= last {
				t.Fatalf("%v beyond %v: %d %v is not expected now", r, other, bit, f)
			}
			last = bit
			delete(want, k)
		}
		if len(want) > 0 {
			t.Fatalf("%v beyond %v: %v are not there", r, other, want)
		}
	}
}

// randomRoute has frontends out of few, so that two routes have some in common.
func randomRoute(rng *rand.Rand) *plan.Route {
	p := &state.Port{}
	for range rng.IntN(64) {
		f := state.Frontend{Kind: state.FrontendKind(1 + rng.IntN(4)), Addr: netip.AddrFrom4([4]byte{10, 0, 0, byte(rng.IntN(8))}), Port: uint16(80 + rng.IntN(3))}
		if f.Kind == state.NodePort {
			f.Addr = netip.Addr{}
		}
		p.Frontends = append(p.Frontends, f)
	}
	slices.SortFunc(p.Frontends, state.Frontend.Compare)
	p.Frontends = slices.CompactFunc(p.Frontends, func(a, b state.Frontend) bool { return a.Compare(b) == 0 })
	return &plan.Route{Port: p, Frontends: rng.Uint64() & (1<<len(p.Frontends) - 1)}
}

// TestRangesAreLeft: ranges of ports are left to netfilter, and so are their first ports.
func TestRangesAreLeft(t *testing.T) {
	p, r := web(), web()
	r.Name, r.Frontends = "range", r.Frontends[:3]
	for i := range r.Frontends {
		r.Frontends[i].Port, r.Frontends[i].LastPort = 1000, 1999
	}
	if got := planOf(byCIDR, r); got != "" {
		t.Errorf("hooks serve %s", got)
	}
	if got, want := planOf(byCIDR, p, r), planOf(byCIDR, p); got != want {
		t.Errorf("with a range, hooks serve %s, and without %s", got, want)
	}
}
