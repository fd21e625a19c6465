package refdataplane_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/recordtest"
	"github.com/switchyard-net/switchyard/test/refdataplane"
)

// The node of all tests: three services.
//
//   - web: a cluster IP (policy Cluster), an externalIP, a restricted load balancer IP and a node port (policy Local);
//   - dns: UDP, only an IPv6 cluster IP, with client affinity;
//   - none: no endpoints; its cluster IP rejects, and its external traffic is dropped.
func node() *refdataplane.State {
	web4 := state.Port{
		Name: "http", Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: ip("10.96.0.1"), Port: 80},
			{Kind: state.ExternalIP, Addr: ip("172.16.0.1"), Port: 30080}, // the node's address and another service's node port
			{Kind: state.LoadBalancer, Addr: ip("203.0.113.1"), Port: 80, Restricted: true, Sources: []netip.Prefix{
				netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("203.0.113.1/32"),
			}},
			{Kind: state.LoadBalancer, Addr: ip("203.0.113.2"), Port: 80, Restricted: true},
			{Kind: state.NodePort, Port: 30081},
		},
		Internal: state.Traffic{
			Inside: forward("10.1.0.1:8080 10.1.0.2:8080"), Outside: forward("10.1.0.1:8080 10.1.0.2:8080"),
			Masquerade: state.MasqueradeUnlessPod,
		},
		External: state.Traffic{
			Inside: forward("10.1.0.1:8080 10.1.0.2:8080"), Outside: forward("10.1.0.1:8080"), Masquerade: state.MasqueradeNode,
		},
	}
	dns6 := state.Port{
		Name: "dns", Protocol: state.UDP, Family: state.IPv6, Affinity: time.Hour,
		Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: ip("fd96::1"), Port: 53}},
		Internal:  state.Traffic{Inside: forward("[fd10::1]:53"), Outside: forward("[fd10::1]:53")},
	}
	none4 := state.Port{
		Name: "http", Protocol: state.TCP, Family: state.IPv4,
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: ip("10.96.0.2"), Port: 80},
			{Kind: state.LoadBalancer, Addr: ip("203.0.113.3"), Port: 80, Restricted: true},
			{Kind: state.NodePort, Port: 30080},
			{Kind: state.NodePort, Port: 30082},
		},
		Internal: state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Reject}},
		External: state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: state.Route{Verdict: state.Drop}},
	}
	s := &refdataplane.State{
		Services: map[state.ServiceName]*state.Service{},
		Node: &state.Node{Name: "node1", ServiceCIDRs: []netip.Prefix{
			netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd96::/112"),
		}},
		NodePortAddrs: func(a netip.Addr) bool { return a == ip("172.16.0.1") || a == ip("fd16::1") },
	}
	for name, port := range map[string]state.Port{"web": web4, "dns": dns6, "none": none4} {
		n := state.ServiceName{Namespace: "ns", Name: name}
		s.Services[n] = &state.Service{Name: n, Ports: []state.Port{port}}
	}
	return s
}

func ip(s string) netip.Addr { return netip.MustParseAddr(s) }

var forward = recordtest.To

// show writes an answer as "forward 10.1.0.1:8080 10.1.0.2:8080~ affinity=ns/web:http/TCP/IPv4", with ~ for masqueraded connections.
func show(a probe.Answer) string {
	var b strings.Builder
	b.WriteString(a.Outcome.String())
	for _, c := range a.Choices {
		fmt.Fprintf(&b, " %v", c.Endpoint)
		if c.Masquerade {
			b.WriteByte('~')
		}
	}
	if a.Affinity != "" {
		b.WriteString(" affinity=" + a.Affinity)
	}
	return b.String()
}

func TestTrace(t *testing.T) {
	const (
		pod, outside = "10.1.7.7", "198.51.100.7"
		host         = "172.16.0.1"
	)
	for _, c := range []struct {
		name     string
		from     probe.Client
		src, dst string
		protocol state.Protocol
		want     string
	}{
		// The route is by kind of frontend and class of client, and so is the masquerade (state.Traffic).
		{"pod to cluster IP", probe.FromPod, pod, "10.96.0.1:80", state.TCP, "forward 10.1.0.1:8080 10.1.0.2:8080"},
		{"node to cluster IP", probe.FromNode, host, "10.96.0.1:80", state.TCP, "forward 10.1.0.1:8080~ 10.1.0.2:8080~"},
		{"outside to cluster IP", probe.FromOutside, outside, "10.96.0.1:80", state.TCP, "forward 10.1.0.1:8080~ 10.1.0.2:8080~"},
		{"pod to node port", probe.FromPod, pod, "172.16.0.1:30081", state.TCP, "forward 10.1.0.1:8080 10.1.0.2:8080"},
		{"node to node port", probe.FromNode, host, "172.16.0.1:30081", state.TCP, "forward 10.1.0.1:8080~ 10.1.0.2:8080~"},
		{"outside to node port", probe.FromOutside, outside, "172.16.0.1:30081", state.TCP, "forward 10.1.0.1:8080"},
		{"pod to IPv6 cluster IP", probe.FromPod, "fd10::7", "[fd96::1]:53", state.UDP, "forward [fd10::1]:53 affinity=ns/dns:dns/UDP/IPv6"},
		{"hairpin", probe.FromPod, "10.1.0.2", "10.96.0.1:80", state.TCP, "forward 10.1.0.1:8080 10.1.0.2:8080~"},
		// Verdicts.
		{"reject", probe.FromPod, pod, "10.96.0.2:80", state.TCP, "reject"},
		{"reject by the route for inside", probe.FromNode, host, "172.16.0.1:30082", state.TCP, "reject"},
		{"drop by the route for outside", probe.FromOutside, outside, "172.16.0.1:30082", state.TCP, "drop"},
		// Sources are looked at before anything else (state.Frontend.Restricted).
		{"allowed source", probe.FromOutside, outside, "203.0.113.1:80", state.TCP, "forward 10.1.0.1:8080"},
		{"allowed source of a hairpinned load balancer IP", probe.FromNode, "203.0.113.1", "203.0.113.1:80", state.TCP, "forward 10.1.0.1:8080~ 10.1.0.2:8080~"},
		{"other source", probe.FromOutside, "192.0.2.7", "203.0.113.1:80", state.TCP, "drop"},
		{"pods are not exempt", probe.FromPod, pod, "203.0.113.1:80", state.TCP, "drop"},
		{"nobody is admitted", probe.FromOutside, outside, "203.0.113.2:80", state.TCP, "drop"},
		{"drop before reject", probe.FromPod, pod, "203.0.113.3:80", state.TCP, "drop"},
		// Node ports exist on node port addresses only, in the port's family, after all addresses (state.Frontend.Addr).
		{"address before node port", probe.FromOutside, outside, "172.16.0.1:30080", state.TCP, "forward 10.1.0.1:8080"},
		{"node port on another address", probe.FromOutside, outside, "172.16.0.2:30081", state.TCP, "pass"},
		{"node port of the other family", probe.FromOutside, "2001:db8::1", "[fd16::1]:30081", state.TCP, "pass"},
		{"node port of another protocol", probe.FromOutside, outside, "172.16.0.1:30081", state.UDP, "pass"},
		// What no frontend takes (semantics: stray ports and unowned cluster IPs).
		{"stray port of a cluster IP", probe.FromPod, pod, "10.96.0.1:81", state.TCP, "reject"},
		{"stray protocol of a cluster IP", probe.FromPod, pod, "10.96.0.1:80", state.UDP, "reject"},
		{"stray port of an IPv6 cluster IP", probe.FromOutside, "2001:db8::1", "[fd96::1]:54", state.UDP, "reject"},
		{"unowned cluster IP", probe.FromPod, pod, "10.96.0.9:80", state.TCP, "drop"},
		{"unowned IPv6 cluster IP", probe.FromPod, "fd10::7", "[fd96::9]:80", state.TCP, "drop"},
		{"stray port of a load balancer IP", probe.FromOutside, outside, "203.0.113.1:81", state.TCP, "pass"},
		{"somewhere else", probe.FromPod, pod, "192.0.2.1:80", state.TCP, "pass"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := probe.Packet{From: c.from, Src: ip(c.src), Dst: netip.MustParseAddrPort(c.dst), Protocol: c.protocol}
			if got := show(node().Trace(p)); got != c.want {
				t.Errorf("%v: %s, want %s", p, got, c.want)
			}
		})
	}
}

// Each masquerade rule against each kind of client (state.Masquerade).
func TestTraceMasquerade(t *testing.T) {
	for rule, want := range map[state.Masquerade]string{
		state.MasqueradeNever: "", state.MasqueradeAlways: "pod node outside",
		state.MasqueradeUnlessPod: "node outside", state.MasqueradeNode: "node",
	} {
		var got []string
		for _, from := range []probe.Client{probe.FromPod, probe.FromNode, probe.FromOutside} {
			s := node()
			for _, svc := range s.Services {
				svc.Ports[0].Internal.Masquerade = rule
			}
			a := s.Trace(probe.Packet{From: from, Src: ip("192.0.2.1"), Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
			if a.Choices[0].Masquerade {
				got = append(got, from.String())
			}
		}
		if got := strings.Join(got, " "); got != want {
			t.Errorf("%v masquerades %q, want %q", rule, got, want)
		}
	}
}

// A state without a node and without node ports.
func TestTraceBareState(t *testing.T) {
	s := node()
	s.Node, s.NodePortAddrs = nil, nil
	for _, dst := range []string{"172.16.0.1:30081", "10.96.0.9:80"} {
		p := probe.Packet{From: probe.FromPod, Src: ip("10.1.7.7"), Dst: netip.MustParseAddrPort(dst), Protocol: state.TCP}
		if got := show(s.Trace(p)); got != "pass" {
			t.Errorf("%v: %s, want pass", p, got)
		}
	}
}
