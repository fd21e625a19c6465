//go:build linux

package lab

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/oracle"
	"github.com/switchyard-net/switchyard/test/probe"
	"github.com/switchyard-net/switchyard/test/topology"
)

var (
	podAddr    = netip.MustParseAddr("10.1.0.9")
	nodeAddr   = netip.MustParseAddr("192.0.2.1")
	clientAddr = netip.MustParseAddr("192.0.2.100")
	endpoint1  = netip.MustParseAddrPort("10.1.0.20:8080")
	endpoint2  = netip.MustParseAddrPort("10.1.1.20:8080")
	web        = &model.Service{
		Name: state.ServiceName{Namespace: "shop", Name: "web"}, Type: model.TypeNodePort,
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.5")},
		Ports:      []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}},
	}
	names = directory{{"TCP", endpoint1}: "shop/web-1|8080", {"TCP", endpoint2}: "shop/web-2|8080",
		{"TCP", netip.AddrPortFrom(nodeAddr, 8080)}: "shop/host|8080"}
)

func testPlan() []call {
	slice := &model.EndpointSlice{Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4,
		Ports:     []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
		Endpoints: []model.Endpoint{{Addr: endpoint1.Addr(), Ready: true, Serving: true, NodeName: "node-a"}, {Addr: endpoint2.Addr(), Ready: true, Serving: true}}}
	world := &oracle.World{NodeName: "node-a", DetectLocal: true, NodePortAddrs: func(a netip.Addr) bool { return a == nodeAddr },
		Services: []*model.Service{web}, Slices: []*model.EndpointSlice{slice}}
	clients := []client{{probe.FromPod, []netip.Addr{podAddr}}, {probe.FromNode, []netip.Addr{nodeAddr}}, {probe.FromOutside, []netip.Addr{clientAddr}}}
	return plan(world, clients, []netip.Addr{nodeAddr}, state.AllFeatures)
}

func TestPlan(t *testing.T) {
	var got []string
	for _, c := range testPlan() {
		got = append(got, c.kind.String()+" "+c.packet.String()+" "+c.expect.Outcome.String())
	}
	want := []string{
		"ClusterIP pod TCP from 10.1.0.9 to 10.96.0.5:80 forward",
		"ClusterIP node TCP from 192.0.2.1 to 10.96.0.5:80 forward",
		"ClusterIP outside TCP from 192.0.2.100 to 10.96.0.5:80 forward",
		"NodePort pod TCP from 10.1.0.9 to 192.0.2.1:30080 forward",
		"NodePort node TCP from 192.0.2.1 to 192.0.2.1:30080 forward",
		"NodePort outside TCP from 192.0.2.100 to 192.0.2.1:30080 forward",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("plan (-want +got):\n%s", d)
	}
}

func answered(server string, source netip.Addr) topology.Answer {
	return topology.Answer{Outcome: topology.Answered, Server: server, Source: netip.AddrPortFrom(source, 4711), Latency: 50 * time.Microsecond}
}

func TestJudge(t *testing.T) {
	const one, two = "shop/web-1|8080", "shop/web-2|8080"
	forward := func(masquerade, affinity bool) probe.Answer {
		return probe.Answer{Outcome: probe.Forward, Affinity: map[bool]string{true: "shop/web:/TCP/IPv4"}[affinity], Choices: []probe.Choice{{Endpoint: endpoint1, Masquerade: masquerade}, {Endpoint: endpoint2, Masquerade: masquerade}}}
	}
	refused, silent := topology.Answer{Outcome: topology.Refused}, topology.Answer{Outcome: topology.TimedOut}
	tests := []struct {
		name    string
		expect  probe.Answer
		answers []topology.Answer
		want    string // in the only surprise; empty means none
	}{
		{"kept", forward(false, false), []topology.Answer{answered(one, podAddr), answered(two, podAddr)}, ""},
		{"masqueraded", forward(true, false), []topology.Answer{answered(one, nodeAddr), answered(two, nodeAddr)}, ""},
		{"wrongly masqueraded", forward(false, false), []topology.Answer{answered(one, podAddr), answered(two, nodeAddr)}, "its address must be kept"},
		{"not masqueraded", forward(true, false), []topology.Answer{answered(one, podAddr), answered(two, nodeAddr)}, "must be replaced by the node's"},
		{"the node itself answers", probe.Answer{Outcome: probe.Forward, Choices: []probe.Choice{{Endpoint: netip.AddrPortFrom(nodeAddr, 8080), Masquerade: true}}},
			[]topology.Answer{answered("shop/host|8080", podAddr)}, ""},
		{"foreign source", forward(false, false), []topology.Answer{answered(one, clientAddr), answered(two, podAddr)}, "saw the source 192.0.2.100"},
		{"one missing", forward(false, false), []topology.Answer{answered(one, podAddr)}, two + " never answered"},
		{"stranger", forward(false, false), []topology.Answer{answered(one, podAddr), answered(two, podAddr), answered("shop/db-0|8080", podAddr)}, "none of its endpoints"},
		{"affinity", forward(false, true), []topology.Answer{answered(one, podAddr), answered(one, podAddr)}, ""},
		{"no affinity", forward(false, true), []topology.Answer{answered(one, podAddr), answered(two, podAddr)}, "in spite of sessionAffinity"},
		{"some refused", forward(false, false), []topology.Answer{answered(one, podAddr), answered(two, podAddr), refused}, "1 of 3 connections: refused, want answered"},
		{"rejected", probe.Answer{Outcome: probe.Reject}, []topology.Answer{refused, refused}, ""},
		{"rejected silently", probe.Answer{Outcome: probe.Reject}, []topology.Answer{silent, silent}, "timed out, want refused"},
		{"dropped", probe.Answer{Outcome: probe.Drop}, []topology.Answer{silent}, ""},
		{"dropped loudly", probe.Answer{Outcome: probe.Drop}, []topology.Answer{refused}, "refused, want timed out"},
		{"let in", probe.Answer{Outcome: probe.Drop}, []topology.Answer{answered(one, podAddr)}, "answered, want timed out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := testPlan()[0]
			c.expect = tt.expect
			got := judge(c, tt.answers, names, []netip.Addr{nodeAddr}).surprises
			if (tt.want == "") != (len(got) == 0) || tt.want != "" && !strings.Contains(got[0], tt.want) || len(got) > 1 {
				t.Errorf("surprises = %q, want one that contains %q", got, tt.want)
			}
		})
	}
}

// TestBalance: weights and hashes decide how many connections a call makes, and whose silence is a fault, as far as the dataplane knows them.
func TestBalance(t *testing.T) {
	for name, tt := range map[string]struct {
		first, second string // the weights
		annotation    string
		value         string
		can           state.Features
		want          string // outcome, endpoints, shares, connections in a round, hashed
		due           bool   // the second endpoint in all rounds
	}{
		"none":               {"", "", model.BalanceAnnotation, "", state.AllFeatures, "forward 2 0 16 false", true},
		"bad":                {"x", "-1", model.BalanceAnnotation, "random", state.AllFeatures, "forward 2 0 16 false", true},
		"a canary":           {"95", "5", model.BalanceAnnotation, "", state.AllFeatures, "forward 2 2 160 false", true},
		"one without":        {"3", "", model.BalanceAnnotation, "", state.AllFeatures, "forward 2 2 32 false", true},
		"too rare":           {"65535", "1", model.BalanceAnnotation, "", state.AllFeatures, "forward 2 2 512 false", false},
		"none for the first": {"0", "1", model.BalanceAnnotation, "", state.AllFeatures, "forward 1 0 8 false", true},
		"none at all":        {"0", "0", model.BalanceAnnotation, "", state.AllFeatures, "reject 0 0 0 false", true},
		"a hash":             {"", "", model.BalanceAnnotation, "hash", state.AllFeatures, "forward 2 0 16 true", true},
		"not known":          {"95", "0", model.BalanceAnnotation, "hash", state.Ping, "forward 1 0 8 false", true},
		"by zone":            {"", "", model.ZoneWeightsAnnotation, "same=3,other=1", state.AllFeatures, "forward 2 2 32 false", true},
		"by zone, not known": {"", "", model.ZoneWeightsAnnotation, "same=3,other=1", state.Ping, "forward 2 0 16 false", true},
		"a slow start":       {"3", "", model.SlowStartAnnotation, "8s", state.AllFeatures, "forward 2 0 16 false", false},
	} {
		svc := *web
		svc.Annotations = []model.Annotation{{Name: tt.annotation, Value: tt.value}}
		slice := func(endpoint netip.AddrPort, weight string) *model.EndpointSlice {
			zone := map[netip.AddrPort]string{endpoint1: "zone-a", endpoint2: "zone-b"}[endpoint]
			return &model.EndpointSlice{
				Namespace: "shop", Name: endpoint.String(), Service: "web", Family: state.IPv4, Weight: weight,
				Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}}, Endpoints: []model.Endpoint{{Addr: endpoint.Addr(), Ready: true, Serving: true, Zone: zone}},
			}
		}
		world := &oracle.World{NodeName: "node-a", DetectLocal: true, Services: []*model.Service{&svc}, Slices: []*model.EndpointSlice{slice(endpoint1, tt.first), slice(endpoint2, tt.second)},
			NodePortAddrs: func(netip.Addr) bool { return false }, Nodes: []*model.Node{{Name: "node-a", Zone: "zone-a"}}}
		c := plan(world, []client{{probe.FromPod, []netip.Addr{podAddr}}}, nil, tt.can)[0]
		got := fmt.Sprintf("%v %d %d %d %t", c.expect.Outcome, len(c.expect.Choices), len(c.shares), c.inRound(), c.hashed)
		if due := c.isDue(endpoint2, maxRounds*c.inRound()); got != tt.want || due != tt.due {
			t.Errorf("%s: %s, due %t; want %s, due %t", name, got, due, tt.want, tt.due)
		}
	}
}

func testResults() []result {
	calls := testPlan()
	var results []result
	for i, c := range calls {
		answers := []topology.Answer{answered("shop/web-1|8080", podAddr), answered("shop/web-2|8080", podAddr), answered("shop/web-2|8080", podAddr)}
		switch {
		case i == 5:
			answers = []topology.Answer{{Outcome: topology.Refused, Latency: 1500 * time.Microsecond}}
		case i == 4:
			c.expect = probe.Answer{Outcome: probe.Drop}
			answers = []topology.Answer{{Outcome: topology.TimedOut, Latency: time.Second}}
		case i > 0:
			for j := range answers {
				answers[j].Source = netip.AddrPortFrom(nodeAddr, 1)
			}
		default:
			c.expect.Choices = []probe.Choice{{Endpoint: endpoint1}, {Endpoint: endpoint2}}
		}
		results = append(results, judge(c, answers, names, []netip.Addr{nodeAddr}))
	}
	return results
}

func TestTable(t *testing.T) {
	got := strings.Join(table{width: 100}.lines(groups(testResults())), "\n")
	want := strings.TrimPrefix(`
  FRONTEND          ADDRESS          FROM          ANSWERED BY                      SOURCE    P50
shop/web  web-[1 2]  NodePort
  cluster IP    TCP 10.96.0.5:80     pod           ████▒▒▒▒▒▒▒▒ 1×1 2×2             kept     50µs ✓
                                     node, client  ████▒▒▒▒▒▒▒▒ 1×2 2×4             node     50µs ✓
  node port     TCP 192.0.2.1:30080  pod           ████▒▒▒▒▒▒▒▒ 1×1 2×2             node     50µs ✓
                                     node          dropped                                      - ✓
                                     client        refused                                  1.5ms ✗
    ✗ node port TCP 192.0.2.1:30080 from the client: 1 of 1 connections: refused, want answered`, "\n")
	if d := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); d != "" {
		t.Errorf("table (-want +got):\n%s\n%s", d, got)
	}
}

func TestLegendSaysHowManyItLeavesOut(t *testing.T) {
	names := naming{pods: []string{"web-1", "web-2", "web-3"}, prefix: "web-"}
	for room, want := range map[int]string{20: "1×10 2×20 3×30      ", 14: "1×10 2×20 3×30", 12: "1×10 2×20 +1", 8: "1×10 +2 "} {
		if got := (table{}).legend(&names, []int{10, 20, 30}, room); got != want {
			t.Errorf("legend in %d columns = %q, want %q", room, got, want)
		}
	}
}

func TestTableStaysInsideItsWidth(t *testing.T) {
	results := testResults()
	long := netip.MustParseAddrPort("[2001:db8:1234:5678:9abc:def0:1234:5678]:30080")
	for i := range results {
		results[i].surprises = nil // sentences are wrapped by the terminal
	}
	for _, addr := range []netip.AddrPort{results[0].packet.Dst, long} {
		results[0].packet.Dst = addr
		for _, width := range []int{80, 100, 140} {
			lines := table{width: width}.lines(groups(results))
			for _, line := range lines {
				if n := len([]rune(line)); n > width {
					t.Errorf("width %d: %d columns: %s", width, n, line)
				}
			}
			if !strings.Contains(strings.Join(lines, "\n"), addr.String()) {
				t.Errorf("width %d: %v is not shown", width, addr)
			}
		}
	}
}

func TestColoursAreOnlyColours(t *testing.T) {
	list := groups(testResults())
	plain := table{width: 100}.lines(list)
	coloured := table{paint: palette{colour: true}, width: 100}.lines(list)
	for i := range plain {
		text := stripColours(coloured[i])
		if strings.NewReplacer("▒", "█", "▓", "█", "░", "█").Replace(plain[i]) != text {
			t.Errorf("line %d differs beyond its colours:\n%s\n%s", i, plain[i], text)
		}
	}
}

// TestChosenKeepsColours: the line is reversed, except for what has a colour.
func TestChosenKeepsColours(t *testing.T) {
	p := palette{colour: true}
	want := "\x1b[7mpod \x1b[27;36m██\x1b[0;7m 1×2 \x1b[27;32m✓\x1b[0;7m\x1b[0m"
	if got := p.chosen("pod " + p.share(0, "██") + " 1×2 " + p.good("✓")); got != want {
		t.Errorf("chosen = %q, want %q", got, want)
	}
}

func stripColours(s string) string {
	var b strings.Builder
	for {
		before, rest, found := strings.Cut(s, "\x1b[")
		b.WriteString(before)
		if !found {
			return b.String()
		}
		_, s, _ = strings.Cut(rest, "m")
	}
}
