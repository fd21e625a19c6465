package explain

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// TestSourceAddressAndReplyPath: whose address a server sees, and where its answers go, by the client and by where the endpoints are.
func TestSourceAddressAndReplyPath(t *testing.T) {
	const (
		pod, other, outside = "10.244.1.10", "10.244.2.10", "198.51.100.7" // on this node, on another one, none of the cluster
		here, there, host   = "10.244.1.20", "10.244.2.20", "172.16.0.1"   // endpoints
	)
	tests := []struct {
		name      string
		class     Class
		src       string
		endpoints []string
		local     bool // the policy of a node port; otherwise the client connects to the cluster IP
		detects   bool
		source    string
		wayBack   string
	}{
		{"a pod", Pod, pod, []string{there}, false, true, pod + ", the client's own address", "the client is on this node"},
		{"a pod that is one of the servers", Pod, here, []string{here, there}, false, true, "where the client is its own server, an address of node n1", "the client is on this node"},
		{"a pod that is the server", Pod, here, []string{here}, false, true, "an address of node n1, such as 172.16.0.1, instead of the client's: the client is its own server", "the server answers this node"},
		{"the node", Node, host, []string{there}, false, true, "an address of node n1", "the server answers this node"},
		{"outside, masqueraded", Outside, outside, []string{there}, false, true, "instead of the client's: a client that is no pod", "the server answers this node"},
		{"outside, to servers elsewhere", Outside, outside, []string{there}, false, false, outside, "servers on other nodes answer the client directly"},
		{"outside, to a server here", Outside, outside, []string{here}, true, true, outside, "the server is on this node"},
		{"outside, to the node itself", Outside, outside, []string{host}, true, true, outside, "the server is on this node"},
		{"a pod of another node, without a detector", Outside, other, []string{here}, false, false, other, "the server is on this node"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			svc := &model.Service{
				Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Type: model.TypeNodePort, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
				Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80, NodePort: 30080}}, ExternalLocal: tt.local,
			}
			slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
			for _, e := range tt.endpoints {
				node := "n1"
				if e == there {
					node = "n2"
				}
				slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.MustParseAddr(e), Ready: true, Serving: true, NodeName: node})
			}
			node := &model.Node{Name: "n1", Addresses: []netip.Addr{netip.MustParseAddr(host)}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
			s := store.New(store.Options{Brain: brain.Config{NodeName: "n1", LocalDetector: state.LocalDetector{NodeCIDR: tt.detects}}})
			sink := s.Source("test")
			sink.Update([]model.Object{svc, slice, node}, nil)
			sink.Complete()
			c := Connection{Class: tt.class, Src: netip.MustParseAddr(tt.src), Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP}
			if tt.local {
				c.Dst = netip.MustParseAddrPort(host + ":30080")
			}
			a := New(Options{Store: s}).Explain(c)
			if a.Verdict != Forwarded || !strings.Contains(a.Source, tt.source) || !strings.HasPrefix(a.WayBack, tt.wayBack) {
				t.Errorf("%s: the server sees %q, and %q; want %q and %q", a.Verdict, a.Source, a.WayBack, tt.source, tt.wayBack)
			}
		})
	}
}

// TestDrain: the answer has the deadline of the Service, and of each endpoint that gets no new connections.
func TestDrain(t *testing.T) {
	svc := &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}, Annotations: []model.Annotation{{Name: model.DrainAnnotation, Value: "90s"}},
	}
	slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
	for i := range byte(4) {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, i}), Ready: i == 0, Serving: true, Terminating: i > 0})
	}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	sink := s.Source("test")
	sink.Update([]model.Object{svc, slice}, nil)
	sink.Complete()
	a := New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
	if p := a.Policies; !slices.Contains(p, Policy{model.DrainAnnotation, "1m30s", "connections to an endpoint are reset 1m30s after it has ceased to get new ones"}) {
		t.Errorf("policies: %v", p)
	}
	at := func(i byte) netip.AddrPort { return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, 1, i}), 8080) }
	if left := a.Left(); !slices.Equal(left, []netip.AddrPort{at(1), at(2), at(3)}) {
		t.Errorf("left: %v", left)
	}
	before := a.Endpoints[3].Text
	now := time.Date(2026, 1, 2, 12, 0, 0, 0, time.FixedZone("", 3600))
	a.Drain(map[netip.AddrPort]time.Time{at(0): now, at(1): now, at(2): now.Add(41 * time.Second)}, now)
	for i, want := range []string{"", "; open connections are reset, because their drain deadline has passed", "; open connections stay until 2026-01-02T11:00:41Z, for 41s"} {
		if text := a.Endpoints[i].Text; !strings.HasSuffix(text, want) || i == 0 && strings.Contains(text, "open") {
			t.Errorf("endpoint %d: %q, want %q at its end", i, text, want)
		}
	}
	if text := a.Endpoints[3].Text; text != before {
		t.Errorf("without a deadline: %q, want %q", text, before)
	}
}

// TestBalance: the answer has the annotation that chooses endpoints, what wins over it, and what is wrong with it.
func TestBalance(t *testing.T) {
	for _, tt := range []struct {
		balance  string
		affinity time.Duration
		port     uint16
		want     string // the policies, and the findings' reasons
	}{
		{"random", 0, 80, ""},
		{"hash", 0, 80, "switchyard.net/balance hash: all connections of a client address go to one endpoint, which is the same on all nodes"},
		{"hash-connection", 0, 80, "switchyard.net/balance hash-connection: the client's address and port choose the endpoint, which is the same on all nodes"},
		{"least-connections", 0, 80, "switchyard.net/balance least-connections: endpoints with fewer connections from this node get more of the new ones"},
		{"least-connections", 0, 1000, "switchyard.net/balance least-connections: it has no effect on ranges of ports"},
		{"hash", 0, 1000, "switchyard.net/balance hash: all connections of a client address go to one endpoint, which is the same on all nodes"},
		{"hash", time.Hour, 80, "sessionAffinity ClientIP: connections of one client stay with one endpoint until it has made none for 1h0m0s; " +
			"switchyard.net/balance hash: it has no effect, because the Service has session affinity"},
		{"nonsense", 0, 80, "AnnotationIgnored"},
		{"nonsense", time.Hour, 80, "sessionAffinity ClientIP: connections of one client stay with one endpoint until it has made none for 1h0m0s; AnnotationIgnored"},
	} {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}, Affinity: tt.affinity,
			Annotations: []model.Annotation{{Name: model.BalanceAnnotation, Value: tt.balance}, {Name: model.PortRangesAnnotation, Value: "all=1000-1999"}},
		}
		slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.1.20"), Ready: true, Serving: true}}}
		s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
		sink := s.Source("test")
		sink.Update([]model.Object{svc, slice}, nil)
		sink.Complete()
		a := New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.AddrPortFrom(svc.ClusterIPs[0], tt.port), Protocol: state.TCP})
		var got []string
		for _, p := range a.Policies {
			if p.Name == "sessionAffinity" || p.Name == model.BalanceAnnotation {
				got = append(got, p.Name+" "+p.Value+": "+p.Text)
			}
		}
		for _, f := range a.Findings {
			got = append(got, string(f.Reason))
		}
		if text := strings.Join(got, "; "); a.Verdict != Forwarded || text != tt.want {
			t.Errorf("%q with an affinity of %v at port %d: %v with %q, want %q", tt.balance, tt.affinity, tt.port, a.Verdict, text, tt.want)
		}
	}
}

// TestPing: the answer says whether the node answers echo requests of the client, at any port of the address.
func TestPing(t *testing.T) {
	const answers, silent = "the node, not an endpoint, answers echo requests of the client to 203.0.113.1", "echo requests of the client to 203.0.113.1 get no answer: no port there forwards its connections"
	for _, tt := range []struct {
		name, annotation string
		configured       bool
		src              string
		endpoints, port  int
		want             string
	}{
		{"admitted", "true", false, "198.51.100.7", 1, 80, answers},
		{"admitted, at another port", "true", false, "198.51.100.7", 1, 81, answers},
		{"by the configuration", "", true, "198.51.100.7", 1, 80, answers},
		{"not admitted", "true", false, "198.51.101.7", 1, 80, silent},
		{"without endpoints", "true", false, "198.51.100.7", 0, 80, silent},
		{"not asked", "", false, "198.51.100.7", 1, 80, ""},
		{"asked not to", "false", true, "198.51.100.7", 1, 80, ""},
		{"a bad value", "yes", false, "198.51.100.7", 1, 80, ""},
	} {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, Type: model.TypeLoadBalancer, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, SourceRanges: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		}
		if tt.annotation != "" {
			svc.Annotations = []model.Annotation{{Name: model.PingAnnotation, Value: tt.annotation}}
		}
		slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}}
		for range tt.endpoints {
			slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.MustParseAddr("10.244.1.20"), Ready: true, Serving: true})
		}
		s := store.New(store.Options{Brain: brain.Config{NodeName: "n1", Ping: tt.configured}})
		sink := s.Source("test")
		sink.Update([]model.Object{svc, slice}, nil)
		sink.Complete()
		a := New(Options{Store: s}).Explain(Connection{
			Class: Outside, Src: netip.MustParseAddr(tt.src), Dst: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.1"), uint16(tt.port)), Protocol: state.TCP,
		})
		var got []string
		for _, p := range a.Policies {
			if p.Name == model.PingAnnotation {
				got = append(got, p.Text)
			}
		}
		if text := strings.Join(got, "; "); text != tt.want {
			t.Errorf("%s: %q, want %q", tt.name, text, tt.want)
		}
	}
}

// TestEject: the answer says that silent endpoints are ejected, by the annotation or the configuration.
func TestEject(t *testing.T) {
	for _, tt := range []struct {
		annotation           string
		configured, want, ok bool
	}{{"true", false, true, true}, {"false", true, false, true}, {"", true, true, true}, {"", false, false, true}, {"maybe", false, false, false}} {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
		}
		slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.1.20"), Ready: true, Serving: true}}}
		if tt.annotation != "" {
			svc.Annotations = []model.Annotation{{Name: model.EjectAnnotation, Value: tt.annotation}}
		}
		s := store.New(store.Options{Brain: brain.Config{NodeName: "n1", Ejection: tt.configured}})
		sink := s.Source("test")
		sink.Update([]model.Object{svc, slice}, nil)
		sink.Complete()
		a := New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
		got, ignored := false, false
		for _, p := range a.Policies {
			got = got || p.Name == model.EjectAnnotation
		}
		for _, f := range a.Findings {
			ignored = ignored || f.Reason == "AnnotationIgnored"
		}
		if got != tt.want || ignored == tt.ok {
			t.Errorf("%+v: named %v, ignored %v", tt, got, ignored)
		}
	}
}

// TestRefusedShare: weights that no annotation sets refuse a share.
func TestRefusedShare(t *testing.T) {
	one, two := netip.MustParseAddrPort("10.244.1.20:80"), netip.MustParseAddrPort("10.244.1.21:80")
	a := &Answer{Endpoints: []Endpoint{{Addr: one, Gets: true, Text: "ready"}, {Addr: two, Text: "not ready"}}}
	a.shares(&state.Route{Verdict: state.Forward, Refused: 80, Endpoints: []state.Endpoint{{Addr: one, Weight: 20}}})
	if e := a.Endpoints; a.RefusedShare != 0.8 || a.Policies[0] != (Policy{"refused share", "80", "80.0% of new connections are refused"}) ||
		e[0].Text != "ready; weight 20 asks for 20.0%" || e[1].Text != "not ready" {
		t.Errorf("%+v", a)
	}
	a.Compare(Kernel{Endpoints: []netip.AddrPort{one}, Draw: &Draw{Even: true}})
	if text := a.Policies[0].Text; text != "80.0% of new connections are refused by the weights, but the dataplane refuses none" {
		t.Error(text)
	}
}

// TestManyEndpoints: items that users can create in any number are counted, unless all are requested.
func TestManyEndpoints(t *testing.T) {
	a := &Answer{Verdict: Forwarded}
	for i := range 300 {
		a.Endpoints = append(a.Endpoints, Endpoint{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 1, byte(i / 250), byte(i % 250)}), 80), Gets: i%2 == 0, Text: "text"})
	}
	for all, want := range map[bool]int{false: 2 * (maxEndpoints + 1), true: 300} {
		var b strings.Builder
		if err := (Style{All: all}).Write(&b, a); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(b.String(), "✓ ") + strings.Count(b.String(), "✗ ") - 1; got != want {
			t.Errorf("with all %t: %d lines of endpoints, want %d\n%s", all, got, want, b.String())
		}
	}
}

// TestPortRanges: the answer shows the range that a port is in, and a single port goes before it. It also shows why a range is left out.
func TestPortRanges(t *testing.T) {
	service := func(name, clusterIP, ranges string, created int64) *model.Service {
		return &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: name}, Created: time.Unix(created, 0), ClusterIPs: []netip.Addr{netip.MustParseAddr(clusterIP)},
			ExternalIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, Ports: []model.ServicePort{{Protocol: state.UDP, Port: 5060}},
			Annotations: []model.Annotation{{Name: model.PortRangesAnnotation, Value: ranges}},
		}
	}
	slice := &model.EndpointSlice{Namespace: "ns", Name: "a-1", Service: "a", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.UDP, Port: 5061}},
		Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.1.20"), Ready: true, Serving: true}}}
	s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
	sink := s.Source("test")
	sink.Update([]model.Object{service("a", "10.96.0.1", "rtp=5000-5999/UDP", 1), service("b", "10.96.0.2", "other=5500-6500/UDP", 2), slice}, nil)
	sink.Complete()
	for _, tt := range []struct{ dst, endpoint, policy, because string }{
		{"10.96.0.1:5060", "10.244.1.20:5061", "", "the only endpoint"},
		{"10.96.0.1:5061", "10.244.1.20:5061", "rtp=5000-5999/UDP", "the only endpoint"},
		{"203.0.113.1:5999", "10.244.1.20:5999", "rtp=5000-5999/UDP", "the only endpoint"},
		{"203.0.113.1:6400", "", "", "the range 203.0.113.1:5500-6500/UDP overlaps one of Service ns/a"},
	} {
		a := New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort(tt.dst), Protocol: state.UDP})
		var endpoint, policy string
		for _, e := range a.Endpoints {
			endpoint = e.Addr.String()
		}
		for _, p := range a.Policies {
			if p.Name == model.PortRangesAnnotation {
				policy = p.Value
			}
		}
		if endpoint != tt.endpoint || policy != tt.policy || !strings.Contains(strings.Join(append(a.Notes, a.Because), "\n"), tt.because) {
			t.Errorf("%s: endpoint %q, range %q, %q; want %q, %q, %q", tt.dst, endpoint, policy, a.Because, tt.endpoint, tt.policy, tt.because)
		}
		key, _ := a.Key()
		if want := (state.FrontendKey{Family: state.IPv4, Protocol: state.UDP, Addr: netip.MustParseAddr(tt.dst[:strings.Index(tt.dst, ":")]), Port: 5000, LastPort: 5999}); tt.policy != "" && key != want {
			t.Errorf("%s: the frontend is %v", tt.dst, key)
		}
	}
}

// TestFactors: the answer has the arithmetic of zone weights and slow starts, and says where they have no effect.
func TestFactors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
			Annotations: []model.Annotation{{Name: model.SlowStartAnnotation, Value: "30s"}, {Name: model.ZoneWeightsAnnotation, Value: "other=1, same=4"}},
		}
		slice := func(endpoints ...byte) *model.EndpointSlice {
			s := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}}, Weight: "5"}
			for _, n := range endpoints {
				s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 1, n}), Ready: true, Zone: []string{"west", "east"}[n%2]})
			}
			return s
		}
		s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
		defer s.Close()
		sink := s.Source("test")
		sink.Update([]model.Object{svc, slice(1, 2), &model.Node{Name: "n1", Zone: "west"}}, nil)
		sink.Complete()
		sink.Update([]model.Object{slice(1, 2, 4)}, nil)
		time.Sleep(12 * time.Second)
		synctest.Wait()
		explained := func() *Answer {
			return New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
		}
		a := explained()
		for i, want := range []string{
			"ready; weight 5 of slice svc-1, zone weight 1; weight 2 asks for 15.4%",
			"ready; weight 5 of slice svc-1, zone weight 4; weight 8 asks for 61.5%",
			"ready; weight 5 of slice svc-1, zone weight 4, slow start 0.375 of 30s; weight 3 asks for 23.1%",
		} {
			if got := a.Endpoints[i].Text; got != want {
				t.Errorf("endpoint %d: %q, want %q", i, got, want)
			}
		}
		says := func(a *Answer, name, value, text string) {
			t.Helper()
			if !slices.ContainsFunc(a.Policies, func(p Policy) bool { return p.Name == name && p.Value == value && strings.Contains(p.Text, text) }) {
				t.Errorf("policies %v, want %s %s: %s", a.Policies, name, value, text)
			}
		}
		says(a, model.SlowStartAnnotation, "30s", "beginning with a tenth")
		says(a, model.ZoneWeightsAnnotation, "same=4,other=1", "endpoints in zone west have weight 4, and all others 1")
		for _, test := range []struct {
			change func(svc *model.Service, s *model.EndpointSlice, n *model.Node)
			text   string
		}{
			{func(svc *model.Service, _ *model.EndpointSlice, _ *model.Node) { svc.InternalLocal = true }, "it has no effect: only endpoints on this node count"},
			{func(_ *model.Service, s *model.EndpointSlice, _ *model.Node) { s.Endpoints[0].Zone = "" }, "it has no effect: the zones of some ready endpoints are not known"},
			{func(_ *model.Service, _ *model.EndpointSlice, n *model.Node) { n.Zone = "north" }, "it has no effect: no ready endpoint is in zone north"},
			{func(_ *model.Service, _ *model.EndpointSlice, n *model.Node) { n.Zone = "" }, "it has no effect: the zone of this node is not known"},
			{func(_ *model.Service, s *model.EndpointSlice, _ *model.Node) {
				for i := range s.Endpoints {
					s.Endpoints[i].NodeHints = []string{"n1"}
				}
			}, "it has no effect: hints for nodes are in use"},
			{func(_ *model.Service, s *model.EndpointSlice, _ *model.Node) {
				for i := range s.Endpoints {
					s.Endpoints[i].Ready, s.Endpoints[i].Serving, s.Endpoints[i].Terminating = false, true, true
				}
			}, "it has no effect: no endpoint is ready"},
		} {
			other, s, n := new(*svc), slice(1, 2, 4), &model.Node{Name: "n1", Zone: "west"}
			test.change(other, s, n)
			sink.Update([]model.Object{other, s, n}, nil)
			says(explained(), model.ZoneWeightsAnnotation, "same=4,other=1", test.text)
		}
		only := new(*svc)
		only.Annotations = []model.Annotation{{Name: model.ZoneWeightsAnnotation, Value: "same=1,other=0"}}
		sink.Update([]model.Object{only, slice(1, 2), &model.Node{Name: "n1", Zone: "west"}}, nil)
		if a = explained(); a.Endpoints[0].Gets || a.Endpoints[0].Text != "it is in zone east, and the weight of its kind of zone is 0: switchyard.net/zone-weights" {
			t.Errorf("endpoint %+v", a.Endpoints[0])
		}
		says(a, model.ZoneWeightsAnnotation, "same=1,other=0", "only endpoints in zone west")
	})
}
