package oracle_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
)

// base is a world with one load balancer and an endpoint on this node (pod 1) and on another (pod 2).
func base() *oracle.World {
	return &oracle.World{
		NodeName:      "here",
		DetectLocal:   true,
		NodePortAddrs: func(a netip.Addr) bool { return a == addr("172.16.0.1") || a == addr("fd00:16::1") },
		Services: []*model.Service{{
			Name:            state.ServiceName{Namespace: "shop", Name: "web"},
			Type:            model.TypeLoadBalancer,
			ClusterIPs:      []netip.Addr{addr("10.96.0.1")},
			ExternalIPs:     []netip.Addr{addr("203.0.113.9")},
			LoadBalancerIPs: []netip.Addr{addr("203.0.113.1"), addr("fd00:113::1")},
			Ports:           []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}},
		}},
		Slices: []*model.EndpointSlice{{
			Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4,
			Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{
				{Addr: addr("10.244.0.1"), Ready: true, Serving: true, NodeName: "here"},
				{Addr: addr("10.244.0.2"), Ready: true, Serving: true, NodeName: "there"},
			},
		}},
		Nodes:        []*model.Node{{Name: "here", Zone: "west", Addresses: []netip.Addr{addr("172.16.0.1")}}},
		ServiceCIDRs: []*model.ServiceCIDR{{Name: "c", CIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/24")}}},
	}
}

const (
	both       = "forward 10.244.0.1:8080 10.244.0.2:8080"
	bothMasq   = "forward 10.244.0.1:8080+masq 10.244.0.2:8080+masq"
	local      = "forward 10.244.0.1:8080"
	remote     = "forward 10.244.0.2:8080"
	clusterIP  = "10.96.0.1:80"
	lbIP       = "203.0.113.1:80"
	externalIP = "203.0.113.9:80"
	nodePort   = "172.16.0.1:30080"
)

// Each case is a row of the rules.
func TestRules(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *oracle.World)
		from   probe.Client
		src    string // default: a typical one
		dst    string
		want   string
	}{
		{"cluster IP from a pod", nil, probe.FromPod, "", clusterIP, both},
		{"cluster IP from the node", nil, probe.FromNode, "", clusterIP, bothMasq},
		{"cluster IP from outside", nil, probe.FromOutside, "", clusterIP, bothMasq},
		{"cluster IP without a detector", func(w *oracle.World) { w.DetectLocal = false }, probe.FromNode, "", clusterIP, both},
		{"masquerade all", func(w *oracle.World) { w.MasqueradeAll = true }, probe.FromPod, "", clusterIP, bothMasq},
		{"hairpin", nil, probe.FromPod, "10.244.0.2", clusterIP, "forward 10.244.0.1:8080 10.244.0.2:8080+masq"},
		{"load balancer", nil, probe.FromOutside, "", lbIP, bothMasq},
		{"external IP", nil, probe.FromPod, "", externalIP, bothMasq},
		{"node port", nil, probe.FromOutside, "", nodePort, bothMasq},
		{"node port on another address", nil, probe.FromOutside, "", "172.16.9.1:30080", "pass"},
		{"node port of a family without cluster IP", nil, probe.FromOutside, "", "[fd00:16::1]:30080", "pass"},
		{"load balancer IP of a family without cluster IP", nil, probe.FromOutside, "", "[fd00:113::1]:80", "pass"},
		{"affinity", func(w *oracle.World) { w.Services[0].Affinity = time.Second }, probe.FromPod, "", clusterIP, both + " affinity=shop/web:http/TCP/IPv4"},
		{"affinity at a node port", func(w *oracle.World) { w.Services[0].Affinity = time.Second }, probe.FromOutside, "", nodePort, bothMasq + " affinity=shop/web:http/TCP/IPv4"},

		{"internal local", internalLocal, probe.FromPod, "", clusterIP, local},
		{"internal local does not concern others", internalLocal, probe.FromOutside, "", lbIP, bothMasq},
		{"internal local without a local endpoint", with(internalLocal, noneHere), probe.FromPod, "", clusterIP, "drop"},
		{"internal local without any endpoint", with(internalLocal, none), probe.FromPod, "", clusterIP, "reject"},
		{"external local from outside", externalLocal, probe.FromOutside, "", lbIP, local},
		{"external local from a pod", externalLocal, probe.FromPod, "", lbIP, both},
		{"external local from the node", externalLocal, probe.FromNode, "", nodePort, bothMasq},
		{"external local from a pod without a detector", with(externalLocal, func(w *oracle.World) { w.DetectLocal = false }),
			probe.FromPod, "", lbIP, local},
		{"external local without a local endpoint", with(externalLocal, noneHere), probe.FromOutside, "", lbIP, "drop"},
		{"external local without a local endpoint, from the node", with(externalLocal, noneHere), probe.FromNode, "", lbIP,
			"forward 10.244.0.2:8080+masq"},
		{"external local without any endpoint", with(externalLocal, none), probe.FromOutside, "", lbIP, "reject"},
		{"external local does not concern cluster IPs", externalLocal, probe.FromPod, "", clusterIP, both},
		{"no endpoint", none, probe.FromPod, "", clusterIP, "reject"},

		{"not ready", func(w *oracle.World) { ep(w, 0).Ready = false }, probe.FromPod, "", clusterIP, remote},
		{"terminating while others are ready", func(w *oracle.World) { terminate(w, 0) }, probe.FromPod, "", clusterIP, remote},
		{"all terminating", func(w *oracle.World) { terminate(w, 0); terminate(w, 1) }, probe.FromPod, "", clusterIP, both},
		{"local ones terminating", with(internalLocal, func(w *oracle.World) { terminate(w, 0) }), probe.FromPod, "", clusterIP, local},
		{"terminating and not serving", func(w *oracle.World) { terminate(w, 0); terminate(w, 1); ep(w, 0).Serving = false },
			probe.FromPod, "", clusterIP, remote},
		{"zone hints", zoneHints, probe.FromPod, "", clusterIP, remote},
		{"zone hints are not for local", with(zoneHints, internalLocal), probe.FromPod, "", clusterIP, local},
		{"zone hints on some", with(zoneHints, func(w *oracle.World) { ep(w, 0).ZoneHints = nil }), probe.FromPod, "", clusterIP, both},
		{"zone hints missing where it does not matter", with(zoneHints, func(w *oracle.World) {
			ep(w, 0).ZoneHints, ep(w, 0).Ready = nil, false
		}), probe.FromPod, "", clusterIP, remote},
		{"zone hints for elsewhere", with(zoneHints, func(w *oracle.World) { w.Nodes[0].Zone = "north" }), probe.FromPod, "", clusterIP, both},
		{"zone hints and a node without zone", with(zoneHints, func(w *oracle.World) { w.Nodes = nil }), probe.FromPod, "", clusterIP, both},
		{"zone hints and all terminating", with(zoneHints, func(w *oracle.World) { terminate(w, 0); terminate(w, 1) }),
			probe.FromPod, "", clusterIP, both},
		{"node hints before zone hints", with(zoneHints, nodeHints), probe.FromPod, "", clusterIP, local},
		{"node hints for others, zone hints", with(zoneHints, nodeHints, func(w *oracle.World) { ep(w, 0).NodeHints = []string{"x"} }),
			probe.FromPod, "", clusterIP, remote},

		{"node that shuts down", unready(model.NodeShuttingDown, 0), probe.FromPod, "", clusterIP, remote},
		{"node that shuts down, with the rule off", with(unready(model.NodeShuttingDown, 0), func(w *oracle.World) { w.NodeHealth.Percent = 0 }),
			probe.FromPod, "", clusterIP, both},
		{"node that has been unready for long", unready(model.NodeNotReady, time.Hour), probe.FromPod, "", clusterIP, remote},
		{"node that was ready just now", unready(model.NodeSilent, time.Second), probe.FromPod, "", clusterIP, both},
		{"too many nodes are unready", with(unready(model.NodeShuttingDown, 0), func(w *oracle.World) { w.NodeHealth.Percent = 49 }),
			probe.FromPod, "", clusterIP, both},
		{"unready node has the only ready endpoint", with(unready(model.NodeShuttingDown, 0), func(w *oracle.World) { terminate(w, 1) }),
			probe.FromPod, "", clusterIP, local},
		{"unready node, and all terminating", with(unready(model.NodeShuttingDown, 0), func(w *oracle.World) { terminate(w, 0); terminate(w, 1) }),
			probe.FromPod, "", clusterIP, remote},
		{"unready node, and hints for it", with(zoneHints, unready(model.NodeShuttingDown, 0), func(w *oracle.World) { ep(w, 0).ZoneHints = []string{"west"} }),
			probe.FromPod, "", clusterIP, remote},
		{"unready node elsewhere has the only hint for here", with(zoneHints, unready(model.NodeReady, 0), func(w *oracle.World) {
			w.Nodes[0].Zone, w.Nodes[1].Health = "west", model.NodeShuttingDown
		}), probe.FromPod, "", clusterIP, local},
		{"unready node, and local", with(internalLocal, unready(model.NodeShuttingDown, 0)), probe.FromPod, "", clusterIP, local},

		{"twin that is not terminating wins", func(w *oracle.World) {
			terminate(w, 0)
			addSlice(w, "web-2", model.Endpoint{Addr: addr("10.244.0.1"), Ready: true, NodeName: "here"})
		}, probe.FromPod, "", clusterIP, both},
		{"twin that is terminating loses", func(w *oracle.World) {
			addSlice(w, "web-0", model.Endpoint{Addr: addr("10.244.0.1"), Terminating: true, NodeName: "here"})
		}, probe.FromPod, "", clusterIP, both},
		{"slice of another port", func(w *oracle.World) { w.Slices[0].Ports[0].Name = "https" }, probe.FromPod, "", clusterIP, "reject"},
		{"slice of another protocol", func(w *oracle.World) { w.Slices[0].Ports[0].Protocol = state.UDP }, probe.FromPod, "", clusterIP, "reject"},
		{"slice without address family", func(w *oracle.World) { w.Slices[0].Family = 0 }, probe.FromPod, "", clusterIP, "reject"},
		{"headless slice", func(w *oracle.World) { w.Slices[0].Headless = true }, probe.FromPod, "", clusterIP, "reject"},
		{"slice of another namespace", func(w *oracle.World) { w.Slices[0].Namespace = "x" }, probe.FromPod, "", clusterIP, "reject"},

		{"source in range", ranges("192.0.2.0/24"), probe.FromOutside, "", lbIP, bothMasq},
		{"source out of range", ranges("192.0.3.0/24"), probe.FromOutside, "", lbIP, "drop"},
		{"source out of range, no endpoints", with(ranges("192.0.3.0/24"), none), probe.FromOutside, "", lbIP, "drop"},
		{"ranges are for load balancer IPs only", ranges("192.0.3.0/24"), probe.FromOutside, "", externalIP, bothMasq},
		{"range of everything", ranges("192.0.3.0/24", "0.0.0.0/0"), probe.FromOutside, "", lbIP, bothMasq},
		{"ranges of the other family", ranges("fd00::/16"), probe.FromOutside, "", lbIP, bothMasq},
		{"load balancer IP as source, node in range", ranges("172.16.0.0/24"), probe.FromNode, "203.0.113.1", lbIP, bothMasq},
		{"load balancer IP as source, node not in range", ranges("172.17.0.0/24"), probe.FromNode, "203.0.113.1", lbIP, "drop"},
		{"range with another node", with(ranges("172.16.0.0/24"), func(w *oracle.World) { w.Nodes[0].Name = "there" }),
			probe.FromNode, "203.0.113.1", lbIP, "drop"},

		{"other port of a cluster IP", nil, probe.FromPod, "", "10.96.0.1:81", "reject"},
		{"unowned service address", nil, probe.FromPod, "", "10.96.0.2:80", "drop"},
		{"other port of a load balancer", nil, probe.FromOutside, "", "203.0.113.1:81", "pass"},
		{"opted out", func(w *oracle.World) { w.Services[0].HasProxyName = true }, probe.FromPod, "", clusterIP, "drop"},
		{"not ours", func(w *oracle.World) { w.ServiceProxyName = "x" }, probe.FromPod, "", clusterIP, "drop"},
		{"ours by name", func(w *oracle.World) {
			w.ServiceProxyName, w.Services[0].ProxyName, w.Services[0].HasProxyName = "x", "x", true
			for _, s := range w.Slices {
				s.ProxyName, s.HasProxyName = "x", true
			}
		}, probe.FromPod, "", clusterIP, both},
		{"ours by name, slices of the unnamed proxy", func(w *oracle.World) {
			w.ServiceProxyName, w.Services[0].ProxyName, w.Services[0].HasProxyName = "x", "x", true
		}, probe.FromPod, "", clusterIP, "reject"},
		{"slice with the label of another proxy", func(w *oracle.World) { w.Slices[0].HasProxyName = true }, probe.FromPod, "", clusterIP, both},
		{"headless", func(w *oracle.World) { w.Services[0].Headless = true }, probe.FromPod, "", clusterIP, "drop"},
		{"ExternalName", func(w *oracle.World) { w.Services[0].Type = model.TypeExternalName }, probe.FromOutside, "", externalIP, "pass"},
		{"no cluster IP", func(w *oracle.World) { w.Services[0].ClusterIPs = nil }, probe.FromOutside, "", lbIP, "pass"},
		{"disabled namespace", func(w *oracle.World) {
			w.Namespaces = []*model.Namespace{{Name: "shop", ProxyDisabled: true}}
		}, probe.FromPod, "", clusterIP, "drop"},

		{"first by name keeps a load balancer IP", claimant("a", func(s *model.Service) {
			s.LoadBalancerIPs = []netip.Addr{addr("203.0.113.1")}
		}), probe.FromOutside, "", lbIP, "reject"},
		{"last by name does not get it", claimant("z", func(s *model.Service) {
			s.LoadBalancerIPs = []netip.Addr{addr("203.0.113.1")}
		}), probe.FromOutside, "", lbIP, bothMasq},
		{"cluster IP beats an earlier external IP", claimant("a", func(s *model.Service) {
			s.ExternalIPs = []netip.Addr{addr("10.96.0.1")}
		}), probe.FromPod, "", clusterIP, both},
		{"first by name keeps a node port", claimant("a", func(s *model.Service) {}), probe.FromOutside, "", nodePort, "reject"},
		{"external IP before node port", claimant("z", func(s *model.Service) {
			s.ExternalIPs, s.Ports[0].Port = []netip.Addr{addr("172.16.0.1")}, 30080
		}), probe.FromOutside, "", nodePort, bothMasq},
		{"external IP before node port, if nodes' addresses may be external IPs", with(nodeExternals, claimant("z", func(s *model.Service) {
			s.ExternalIPs, s.Ports[0].Port = []netip.Addr{addr("172.16.0.1")}, 30080
		})), probe.FromOutside, "", nodePort, "reject"},
		{"the older keeps an external IP", claimant("a", func(s *model.Service) {
			s.ExternalIPs = []netip.Addr{addr("203.0.113.9")}
		}, time.Unix(3, 0)), probe.FromOutside, "", externalIP, bothMasq},
		{"the younger does not get it", claimant("z", func(s *model.Service) {
			s.ExternalIPs = []netip.Addr{addr("203.0.113.9")}
		}, time.Unix(1, 0)), probe.FromOutside, "", externalIP, "reject"},
		{"a load balancer IP beats an older external IP", claimant("z", func(s *model.Service) {
			s.LoadBalancerIPs = []netip.Addr{addr("203.0.113.9")}
		}, time.Unix(5, 0)), probe.FromOutside, "", externalIP, "reject"},
		{"external IP in a range", allowed("203.0.113.8/31"), probe.FromOutside, "", externalIP, bothMasq},
		{"external IP in no range", allowed("203.0.113.0/29"), probe.FromOutside, "", externalIP, "pass"},
		{"ranges do not concern load balancers", allowed("192.0.2.0/24"), probe.FromOutside, "", lbIP, bothMasq},
		{"an endpoint that no pod can be", func(w *oracle.World) { ep(w, 1).Addr = addr("127.0.0.1") }, probe.FromPod, "", clusterIP, local},
		{"a pod in the node's network", func(w *oracle.World) { ep(w, 0).Addr = addr("172.16.0.1") }, probe.FromPod, "", clusterIP,
			"forward 10.244.0.2:8080 172.16.0.1:8080"},

		// The service takes 5 and 4 frontends, and 4 times 2 endpoints.
		{"a service in its budget", budgets(33, 0, 0), probe.FromPod, "", clusterIP, both},
		{"without room for endpoints", budgets(32, 0, 0), probe.FromPod, "", clusterIP, "reject"},
		{"without room for frontends", budgets(24, 0, 0), probe.FromPod, "", clusterIP, "drop"},
		{"in the namespace's budget", with(budgets(0, 48, 0), claimant("a", func(*model.Service) {})), probe.FromPod, "", clusterIP, both},
		{"behind another one", with(budgets(0, 47, 0), claimant("a", func(*model.Service) {})), probe.FromPod, "", clusterIP, "reject"},
		{"before another one", with(budgets(0, 47, 0), claimant("a", func(*model.Service) {}, time.Unix(3, 0))), probe.FromPod, "", clusterIP, both},
		{"behind one that takes all", with(budgets(0, 15, 0), claimant("a", func(*model.Service) {})), probe.FromPod, "", clusterIP, "drop"},
		{"beside another namespace", with(budgets(0, 33, 0), claimant("a", foreign)), probe.FromPod, "", clusterIP, both},
		{"in the node's budget", with(budgets(0, 0, 48), claimant("a", foreign)), probe.FromPod, "", clusterIP, both},
		{"beyond the node's budget", with(budgets(0, 0, 44), claimant("a", foreign)), probe.FromPod, "", clusterIP, "reject"}, // 44, 33, 25
		{"small beside one beyond the node's budget", with(budgets(0, 0, 44), claimant("a", foreign)), probe.FromPod, "", "10.96.0.7:80", "reject"},
		{"load balancer before external IP of one service", with(ranges("192.0.3.0/24"), func(w *oracle.World) {
			w.Services[0].ExternalIPs = w.Services[0].LoadBalancerIPs
		}), probe.FromOutside, "", lbIP, "drop"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := base()
			if tt.change != nil {
				tt.change(w)
			}
			dst := netip.MustParseAddrPort(tt.dst)
			p := probe.Packet{From: tt.from, Src: typicalSource(tt.from, dst), Dst: dst, Protocol: state.TCP}
			if tt.src != "" {
				p.Src = addr(tt.src)
			}
			if got := line(w.Ask(p)); got != tt.want {
				t.Errorf("%v: %s, want %s", p, got, tt.want)
			}
		})
	}
}

func TestHealthCheck(t *testing.T) {
	w := base()
	web := w.Services[0]
	web.HealthCheckNodePort = 32000
	if got := w.HealthCheckPort(web.Name); got != 0 {
		t.Errorf("traffic policy Cluster: port %d, want none", got)
	}
	web.ExternalLocal = true
	if got := w.HealthCheckPort(web.Name); got != 32000 {
		t.Errorf("traffic policy Local: port %d, want 32000", got)
	}
	for _, ready := range []int{1, 0} {
		if got := w.LocalReady(web.Name, state.IPv4); got != ready {
			t.Errorf("%d ready endpoints here, want %d", got, ready)
		}
		terminate(w, 0)
	}
	addSlice(w, "web-2", model.Endpoint{Addr: addr("10.244.0.3"), Ready: true, NodeName: "here"},
		model.Endpoint{Addr: addr("10.244.0.4"), Ready: true, NodeName: "there"})
	addSlice(w, "web-3", model.Endpoint{Addr: addr("10.244.0.3"), Ready: true, NodeName: "here"})
	w.Slices[2].Ports[0].Port = 8081
	if got := w.LocalReady(web.Name, state.IPv4); got != 1 {
		t.Errorf("one address with two ports counts %d times, want once", got)
	}
	if got := w.LocalReady(web.Name, state.IPv6); got != 0 {
		t.Errorf("%d ready endpoints in the other family, want none", got)
	}
}

func with(changes ...func(*oracle.World)) func(*oracle.World) {
	return func(w *oracle.World) {
		for _, change := range changes {
			change(w)
		}
	}
}

func internalLocal(w *oracle.World) { w.Services[0].InternalLocal = true }
func nodeExternals(w *oracle.World) { w.NodeExternalIPs = true }
func foreign(s *model.Service)      { s.Name.Namespace = "other" }
func externalLocal(w *oracle.World) { w.Services[0].ExternalLocal = true }
func none(w *oracle.World)          { w.Slices = nil }
func noneHere(w *oracle.World)      { ep(w, 0).Ready, ep(w, 0).Serving = false, false }
func zoneHints(w *oracle.World) {
	ep(w, 0).ZoneHints, ep(w, 1).ZoneHints = []string{"east"}, []string{"east", "west"}
}
func nodeHints(w *oracle.World) {
	ep(w, 0).NodeHints, ep(w, 1).NodeHints = []string{"here"}, []string{"there"}
}

func ranges(texts ...string) func(*oracle.World) {
	return func(w *oracle.World) {
		for _, text := range texts {
			w.Services[0].SourceRanges = append(w.Services[0].SourceRanges, netip.MustParsePrefix(text))
		}
	}
}

// claimant adds a service without endpoints that has the same ports. If a time is given, that is when it was created, and the service of
// base at second 2.
func claimant(name string, change func(*model.Service), created ...time.Time) func(*oracle.World) {
	return func(w *oracle.World) {
		s := &model.Service{
			Name:       state.ServiceName{Namespace: "shop", Name: name},
			Type:       model.TypeLoadBalancer,
			ClusterIPs: []netip.Addr{addr("10.96.0.7")},
			Ports:      slices.Clone(w.Services[0].Ports),
		}
		change(s)
		if len(created) > 0 {
			s.Created, w.Services[0].Created = created[0], time.Unix(2, 0)
		}
		w.Services = append(w.Services, s)
	}
}

func allowed(cidr string) func(*oracle.World) {
	return func(w *oracle.World) { w.ExternalIPs = []netip.Prefix{netip.MustParsePrefix(cidr)} }
}

func budgets(service, namespace, node int64) func(*oracle.World) {
	return func(w *oracle.World) { w.Budgets = oracle.Budgets{Service: service, Namespace: namespace, Node: node} }
}

func ep(w *oracle.World, i int) *model.Endpoint { return &w.Slices[0].Endpoints[i] }

func terminate(w *oracle.World, i int) { ep(w, i).Ready, ep(w, i).Terminating = false, true }

// unready has the health of this node, one of two, be other than ready for a time, and the rule in force that endpoints on such nodes come last.
func unready(h model.NodeHealth, since time.Duration) func(*oracle.World) {
	return func(w *oracle.World) {
		now := time.Unix(1000000, 0)
		w.NodeHealth = oracle.NodeHealth{Percent: 55, After: time.Minute, Now: now}
		w.Nodes[0].Health, w.Nodes[0].HealthSince = h, now.Add(-since)
		w.Nodes = append(w.Nodes, &model.Node{Name: "there"})
	}
}

// addSlice adds a slice like the first, with other endpoints.
func addSlice(w *oracle.World, name string, eps ...model.Endpoint) {
	s := *w.Slices[0]
	s.Name, s.Endpoints, s.Ports = name, eps, slices.Clone(s.Ports)
	w.Slices = append(w.Slices, &s)
}

func typicalSource(from probe.Client, dst netip.AddrPort) netip.Addr {
	if dst.Addr().Is6() {
		return addr("fd00:2::5")
	}
	return addr(map[probe.Client]string{probe.FromPod: "10.244.0.99", probe.FromNode: "172.16.0.1", probe.FromOutside: "192.0.2.5"}[from])
}

// line prints an answer in one line.
func line(a probe.Answer) string {
	words := []string{a.Outcome.String()}
	for _, c := range a.Choices {
		word := c.Endpoint.String()
		if c.Masquerade {
			word += "+masq"
		}
		words = append(words, word)
	}
	if a.Affinity != "" {
		words = append(words, "affinity="+a.Affinity)
	}
	return strings.Join(words, " ")
}

func addr(text string) netip.Addr { return netip.MustParseAddr(text) }
