package explain

import (
	"net/netip"
	"strings"
	"testing"
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

// TestBalance: the answer has the annotation that chooses endpoints, what wins over it, and what is wrong with it.
func TestBalance(t *testing.T) {
	for _, tt := range []struct {
		balance  string
		affinity time.Duration
		want     string // the policies, and the findings' reasons
	}{
		{"random", 0, ""},
		{"hash", 0, "switchyard.net/balance hash: all connections of a client address go to one endpoint, which is the same on all nodes"},
		{"hash-connection", 0, "switchyard.net/balance hash-connection: the client's address and port choose the endpoint, which is the same on all nodes"},
		{"hash", time.Hour, "sessionAffinity ClientIP: connections of one client stay with one endpoint until it has made none for 1h0m0s; " +
			"switchyard.net/balance hash: it has no effect, because the Service has session affinity"},
		{"least-connections", 0, "AnnotationIgnored"},
		{"least-connections", time.Hour, "sessionAffinity ClientIP: connections of one client stay with one endpoint until it has made none for 1h0m0s; AnnotationIgnored"},
	} {
		svc := &model.Service{
			Name: state.ServiceName{Namespace: "ns", Name: "svc"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}}, Annotations: []model.Annotation{{Name: model.BalanceAnnotation, Value: tt.balance}}, Affinity: tt.affinity,
		}
		slice := &model.EndpointSlice{Namespace: "ns", Name: "svc-1", Service: "svc", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{{Addr: netip.MustParseAddr("10.244.1.20"), Ready: true, Serving: true}}}
		s := store.New(store.Options{Brain: brain.Config{NodeName: "n1"}})
		sink := s.Source("test")
		sink.Update([]model.Object{svc, slice}, nil)
		sink.Complete()
		a := New(Options{Store: s}).Explain(Connection{Class: Outside, Dst: netip.MustParseAddrPort("10.96.0.1:80"), Protocol: state.TCP})
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
			t.Errorf("%q with an affinity of %v: %v with %q, want %q", tt.balance, tt.affinity, a.Verdict, text, tt.want)
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
