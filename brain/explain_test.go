package brain_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestExplainIsCompute: for any input, the explained record equals the computed record. The endpoints without a reason
// against them are exactly the endpoints of its routes.
func TestExplainIsCompute(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	routed, left := 0, 0
	for range 20_000 {
		in := (&generator{randomBytes(r)}).input()
		record, why := in.compute(), brain.Explain(in.cfg, in.node, in.svc, in.slices)
		if !equal(record, why.Record) || (record == nil) != (why.NotRouted != "") {
			t.Fatalf("explained as %q, %s\nbut computed as %s", why.NotRouted, text(why.Record), text(record))
		}
		if record == nil {
			continue
		}
		for i := range record.Ports {
			p := &record.Ports[i]
			reasons := why.Port(p)
			if reasons == nil {
				t.Fatalf("no reasons for port %s/%v/%v", p.Name, p.Protocol, p.Family)
			}
			for _, c := range []struct {
				route  state.Route
				policy brain.Policy
			}{
				{p.Internal.Inside, reasons.Internal}, {p.Internal.Outside, reasons.Internal},
				{p.External.Inside, min(reasons.External, brain.PolicyCluster)}, {p.External.Outside, reasons.External},
			} {
				if (c.policy == brain.PolicyUnused) != (c.route.Verdict == state.Unused) {
					t.Fatalf("policy %v for verdict %v", c.policy, c.route.Verdict)
				}
				var in []netip.AddrPort
				for _, e := range reasons.Endpoints {
					if c.policy != brain.PolicyUnused && e.In(c.policy) {
						in = append(in, e.Addr)
					} else {
						left++
					}
				}
				var want []netip.AddrPort
				for _, e := range c.route.Endpoints {
					want = append(want, e.Addr)
				}
				if !slices.Equal(in, want) {
					t.Fatalf("port %s/%v/%v, policy %v: %v have no reason against them, and the route has %v", p.Name, p.Protocol, p.Family, c.policy, in, want)
				}
				routed += len(want)
			}
		}
	}
	if routed < 1000 || left < 1000 {
		t.Errorf("only %d endpoints in routes, and %d left out: the generator has become one-sided", routed, left)
	}
}

// TestReasons: each endpoint that gets nothing has its reason.
func TestReasons(t *testing.T) {
	tests := []struct {
		name      string
		endpoints []string
		change    func(*brain.Config, *model.Service)
		want      string // of policy Cluster; endpoint by endpoint
		local     string
		hints     string // for nodes, for zones
	}{
		{name: "ready", endpoints: []string{"10.1.0.1", "10.1.0.2 here"}, want: ". .", local: "OtherNode .", hints: "NoHints NoHints"},
		{name: "not ready", endpoints: []string{"10.1.0.1 notready", "10.1.0.2 here"}, want: "NotReady .", local: "NotReady+OtherNode .", hints: "NoHints NoHints"},
		{name: "terminating and ready ones", endpoints: []string{"10.1.0.1 here dying", "10.1.0.2 here", "10.1.0.3 dead here"},
			want: "Terminating . NotServing", local: "Terminating . NotServing", hints: "NoHints NoHints"},
		{name: "only terminating", endpoints: []string{"10.1.0.1 dying", "10.1.0.2 here notready", "10.1.0.3 dead"},
			want: ". NotReady NotServing", local: "OtherNode NotReady NotServing+OtherNode", hints: "NoHints NoHints"},
		{name: "zones", endpoints: []string{"10.1.0.1 zones=a", "10.1.0.2 zones=b here"}, want: ". HintedElsewhere", local: "OtherNode .", hints: "NoHints Used"},
		{name: "an endpoint without hints", endpoints: []string{"10.1.0.1 zones=a", "10.1.0.2"}, want: ". .", local: "OtherNode OtherNode", hints: "NoHints SomeUnhinted"},
		{name: "no zone for here", endpoints: []string{"10.1.0.1 zones=b", "10.1.0.2 zones=c"}, want: ". .", local: "OtherNode OtherNode", hints: "NoHints NoneForHere"},
		{name: "nodes before zones", endpoints: []string{"10.1.0.1 nodes=node1 zones=b", "10.1.0.2 nodes=other zones=a"}, want: ". HintedElsewhere",
			local: "OtherNode OtherNode", hints: "Used "},
		{name: "twice", endpoints: []string{"10.1.0.1 dying", "10.1.0.1"}, want: "Duplicate .", local: "Duplicate OtherNode", hints: "NoHints NoHints"},
		{name: "the very same twice", endpoints: []string{"10.1.0.1", "10.1.0.1"}, want: ". Duplicate", local: "OtherNode Duplicate", hints: "NoHints NoHints"},
		{name: "special", endpoints: []string{"127.0.0.1", "fd00::1"}, want: "Special OtherFamily", local: "Special OtherFamily", hints: "NoHints NoHints"},
		{name: "no room", endpoints: []string{"10.1.0.1"}, change: func(c *brain.Config, _ *model.Service) { c.MaxEntries = 15 }, want: "NoRoom", local: "NoRoom", hints: "NoHints NoHints"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, svc := config(), service()
			svc.Type, svc.Ports[0].NodePort, svc.ExternalLocal = model.TypeNodePort, 30080, true
			if tt.change != nil {
				tt.change(cfg, svc)
			}
			why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{slice(state.IPv4, tt.endpoints...)})
			p := why.Ports[0]
			show := func(policy brain.Policy) string {
				var all []string
				for i := range p.Endpoints {
					var reasons []string
					for _, r := range p.Endpoints[i].Out(policy) {
						reasons = append(reasons, string(r))
					}
					if len(reasons) == 0 {
						reasons = []string{"."}
					}
					all = append(all, strings.Join(reasons, "+"))
				}
				return strings.Join(all, " ")
			}
			got := []string{show(brain.PolicyCluster), show(brain.PolicyLocal), fmt.Sprintf("%s %s", p.NodeHints, p.ZoneHints)}
			if want := []string{tt.want, tt.local, tt.hints}; !slices.Equal(got, want) {
				t.Errorf("got  %q\nwant %q", got, want)
			}
		})
	}
}

// TestServicesThatAreNotRouted have their reason, and so has each address, port and slice that is left out.
func TestServicesThatAreNotRouted(t *testing.T) {
	tests := []struct {
		name   string
		change func(*brain.Config, *model.Service, *model.EndpointSlice)
		want   string
	}{
		{"routed", func(*brain.Config, *model.Service, *model.EndpointSlice) {}, ""},
		{"headless", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.Headless = true }, "Headless"},
		{"alias", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.Type = model.TypeExternalName }, "ExternalName"},
		{"opted out", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.HasProxyName = true }, "OtherProxy"},
		{"not ours", func(c *brain.Config, _ *model.Service, _ *model.EndpointSlice) { c.ServiceProxyName = "mine" }, "OtherProxy"},
		{"no cluster IP", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.ClusterIPs = nil }, "NothingToRoute"},
		{"another family", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.ExternalIPs = addrs("2001:db8::1") }, "ExternalIP 2001:db8::1 NoClusterIP"},
		{"not allowed", func(c *brain.Config, s *model.Service, _ *model.EndpointSlice) {
			s.ExternalIPs, c.ExternalIPs = addrs("192.0.2.1 192.0.2.2"), prefixes("192.0.2.1/32")
		}, "ExternalIP 192.0.2.2 Refused"},
		{"not of a load balancer", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) {
			s.LoadBalancerIPs = addrs("192.0.2.1")
		}, "LoadBalancer 192.0.2.1 NotLoadBalancer"},
		{"an address twice", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) { s.ExternalIPs = addrs("10.96.0.1") }, "ExternalIP 10.96.0.1 Duplicate"},
		{"a number twice", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) {
			s.Ports = append(s.Ports, model.ServicePort{Name: "again", Protocol: state.TCP, Port: 80})
		}, "port again NumberTaken"},
		{"a name twice", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) {
			s.Ports = append(s.Ports, model.ServicePort{Name: "http", Protocol: state.TCP, Port: 81})
		}, "port http Duplicate"},
		{"no number", func(_ *brain.Config, s *model.Service, _ *model.EndpointSlice) {
			s.Ports = append(s.Ports, model.ServicePort{Name: "none", Protocol: state.TCP})
		}, "port none Invalid"},
		{"no room", func(c *brain.Config, _ *model.Service, _ *model.EndpointSlice) { c.MaxEntries = 3 }, "NothingToRoute port http NoRoom"},
		{"another port", func(_ *brain.Config, _ *model.Service, s *model.EndpointSlice) { s.Ports[0].Name = "https" }, "slice NoSuchPort"},
		{"another protocol", func(_ *brain.Config, _ *model.Service, s *model.EndpointSlice) { s.Ports[0].Protocol = state.UDP }, "slice NoSuchPort"},
		{"a slice of another family", func(_ *brain.Config, _ *model.Service, s *model.EndpointSlice) { s.Family = state.IPv6 }, "slice OtherFamily"},
		{"a headless slice", func(_ *brain.Config, _ *model.Service, s *model.EndpointSlice) { s.Headless = true }, "slice Headless"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, svc, s := config(), service(), slice(state.IPv4, "10.1.0.1")
			tt.change(cfg, svc, s)
			why := brain.Explain(cfg, thisNode(), svc, []*model.EndpointSlice{s})
			got := []string{string(why.NotRouted)}
			for _, a := range why.Addresses {
				got = append(got, fmt.Sprintf("%v %v %s", a.Kind, a.Addr, a.Reason))
			}
			for _, p := range why.UnroutedPorts {
				got = append(got, fmt.Sprintf("port %s %s", p.Port.Name, p.Reason))
			}
			for _, p := range why.Ports {
				for _, s := range p.Slices {
					got = append(got, fmt.Sprintf("slice %s", s.Reason))
				}
			}
			if got := strings.TrimSpace(strings.Join(got, " ")); got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}
