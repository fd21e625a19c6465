package protoconv_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/fields"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// These tests change every single value of a record or object that has all of them, found by reflection. So a new field
// is covered, or fails because its rule is missing. After any change, the result of the round trip equals the input, or
// an error explains the difference. Nothing is lost silently.

func TestNothingOfAServiceIsLost(t *testing.T) {
	testEveryChange(t, fullService, func(s *state.Service) (*state.Service, error) {
		for _, p := range s.Ports {
			for _, e := range p.Lingering {
				if e.Weight != 0 {
					return nil, fmt.Errorf("%+v breaks what package state promises: only routes have weights", e)
				}
				if p.Protocol == state.TCP && p.DrainSeconds == 0 {
					return nil, fmt.Errorf("%+v is for dataplanes in the process only", e)
				}
			}
		}
		return protoconv.ParseService(transmit(t, protoconv.Service(s)))
	}, (*state.Service).Equal, []string{
		".Name.Namespace", ".Name.Name", ".Ports[0].Name", ".Ports[0].Affinity", ".Ports[0].Frontends[0].Addr", ".Ports[0].Frontends[0].Port",
		".Ports[0].Frontends[2].Restricted", ".Ports[0].Internal.Inside.Endpoints[0].Addr (address)", ".Ports[0].External.Masquerade",
		".Ports[1].Balance", ".Ports[1].Ejection", ".Ports[1].DrainSeconds", ".Ports[0].Frontends[0].Ping", ".Ports[0].External.Inside.Endpoints[0].Weight",
		".Ports[0].External.Inside.Refused", ".Ports[2].Frontends[0].LastPort",
		".Ports[3].Edge (unset)", ".Ports[3].Edge.Shares[0].Weight", ".Ports[3].Edge.Shares[1].Node", ".Ports[3].Edge.Shares (one less)", ".Ports[3].Edge.Except (zero)",
		".Ports[3].Edge.Local.Endpoints[1].Weight", ".Ports[3].Edge.Local.Endpoints[1].Addr (port)",
		".HealthCheck.Port", ".HealthCheck.LocalIPv4", ".HealthCheck.LocalIPv6",
	})
}

func TestNothingOfANodeIsLost(t *testing.T) {
	testEveryChange(t, fullNode, func(n *state.Node) (*state.Node, error) {
		return protoconv.ParseNode(transmit(t, protoconv.Node(n)))
	}, (*state.Node).Equal, []string{".Name", ".Addresses[0]", ".Addresses (order)", ".PodCIDRs (one less)",
		".LocalDetector.ClusterCIDRs (order)", ".LocalDetector (unset)", ".NodePorts.Primary", ".NodePorts.CIDRs (one less)", ".NodePorts (unset)",
		".Peers[1].Port", ".Peers[1].Port (zero)", ".Peers[0].Addresses (order)", ".Peers[1].Addresses[0]", ".Peers[0].PodCIDRs (one less)", ".Peers (one less)"})
}

func TestNothingOfAnObjectIsLost(t *testing.T) {
	testObject(t, fullModelService, []string{
		".Name.Name", ".Created", ".ProxyName", ".Type", ".Headless", ".ClusterIPs (order)", ".SourceRanges (order)", ".Ports[0].NodePort", ".Ports (order)",
		".InternalLocal", ".ExternalLocal", ".Affinity", ".HealthCheckNodePort", ".Annotations[0].Name", ".Annotations[1].Value", ".Annotations (order)",
	})
	testObject(t, fullSlice, []string{
		".Service", ".ProxyName", ".Headless", ".Ports[1].Name", ".Endpoints[0].Addr", ".Endpoints[0].Ready", ".Endpoints[0].Serving", ".Endpoints[0].Terminating",
		".Endpoints[0].NodeName", ".Endpoints[0].Zone", ".Endpoints[0].ZoneHints[0]", ".Endpoints[0].NodeHints (one less)", ".TriggerTime", ".Weight", ".CiliumWeight",
	})
	testObject(t, func() *model.Node {
		return &model.Node{Name: "n", Zone: "z", Addresses: addrs("192.0.2.1", "2001:db8::1"), Internal: 1, PodCIDRs: prefixes("10.1.0.0/24", "fd00::/64"),
			Health: model.NodeNotReady, HealthSince: time.Unix(5, 0).UTC(), Edge: "v1,7635"}
	}, []string{".Name", ".Zone", ".Addresses (order)", ".PodCIDRs (order)", ".Health", ".HealthSince", ".Edge"})
	testObject(t, func() *model.Namespace { return &model.Namespace{Name: "n", ProxyDisabled: true} }, []string{".Name", ".ProxyDisabled"})
	testObject(t, func() *model.ServiceCIDR {
		return &model.ServiceCIDR{Name: "c", CIDRs: prefixes("10.1.0.0/24", "fd00::/64")}
	}, []string{".Name", ".CIDRs (order)"})
}

func testObject[T any, P interface {
	*T
	model.Object
}](t *testing.T, full func() P, survive []string) {
	testEveryChange(t, func() *T { return full() }, func(o *T) (*T, error) {
		got, err := protoconv.ParseObject(transmit(t, protoconv.Object(P(o))))
		if err != nil {
			return nil, err
		}
		return (*T)(got.(P)), nil
	}, func(a, b *T) bool { return sameObject(a, b) }, survive)
}

// sameObject reports whether two objects are the same in every field. Empty and nil lists are the same.
func sameObject(a, b any) bool {
	return cmp.Equal(a, b, cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}))
}

// testEveryChange makes every possible change of what full returns. survive are changes that must come back without an error.
func testEveryChange[T any](t *testing.T, full func() *T, there func(*T) (*T, error), equal func(a, b *T) bool, survive []string) {
	t.Helper()
	name := reflect.TypeFor[T]().String()
	if got, err := there(full()); err != nil || !equal(got, full()) {
		t.Fatalf("%s: unchanged it is %+v, %v", name, got, err)
	}
	survived := make(map[string]bool)
	n := 0
	for path, changed := range fields.Changes(t, full) {
		if strings.HasSuffix(path, ".NodeUnready") || strings.HasSuffix(path, ".NodeApart") {
			continue // the store's own
		}
		n++
		if equal(changed, full()) {
			t.Errorf("%s: a change of %s makes no difference", name, path)
		}
		got, err := there(changed)
		if err == nil && !equal(got, changed) {
			t.Errorf("%s: a change of %s is lost:\nwent %+v\ncame %+v", name, path, changed, got)
		}
		if err == nil {
			survived[path] = true
		}
	}
	for _, path := range survive {
		if !survived[path] {
			t.Errorf("%s: a change of %s is refused, or was never made", name, path)
		}
	}
	t.Logf("%s: %d changes, %d of them allowed", name, n, len(survived))
}

// transmit marshals m and reads it again.
func transmit[M any, P interface {
	*M
	proto.Message
}](t testing.TB, m P) P {
	t.Helper()
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	out := P(new(M))
	if err := proto.Unmarshal(b, out); err != nil {
		t.Fatal(err)
	}
	return out
}

var addrs, prefixes = recordtest.Addrs, recordtest.Prefixes

func endpoints(list ...string) (out []state.Endpoint) {
	for i, s := range list {
		out = append(out, state.Endpoint{Addr: netip.MustParseAddrPort(s), Local: i%2 == 0})
	}
	return out
}

func forward(list ...string) state.Route {
	return state.Route{Verdict: state.Forward, Endpoints: endpoints(list...)}
}

// weighted gives endpoints weights from first on.
func weighted(first uint16, refused uint32, list ...string) state.Route {
	r := forward(list...)
	r.Refused = refused
	for i := range r.Endpoints {
		r.Endpoints[i].Weight = first + uint16(i)
	}
	return r
}

// fullService has something in every field. Its lists share no memory.
func fullService() *state.Service {
	return &state.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "dns"},
		Ports: []state.Port{
			{
				Name: "dns", Protocol: state.UDP, Family: state.IPv4, Affinity: 3 * time.Hour,
				Frontends: []state.Frontend{
					{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 53, Ping: true},
					{Kind: state.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 53},
					{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.2"), Port: 53, Restricted: true},
					{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.4"), Port: 53, Restricted: true,
						Sources: prefixes("10.0.0.0/8", "192.0.2.0/24")},
					{Kind: state.NodePort, Port: 30053},
				},
				Internal:  state.Traffic{Inside: forward("10.1.0.1:53", "10.1.0.3:53"), Outside: forward("10.1.0.1:53", "10.1.0.3:53"), Masquerade: state.MasqueradeUnlessPod},
				External:  state.Traffic{Inside: weighted(5, 65535, "10.1.0.5:53"), Outside: state.Route{Verdict: state.Drop}, Masquerade: state.MasqueradeAlways},
				Lingering: endpoints("10.1.0.7:53", "10.1.0.9:53"),
			},
			{
				Name: "http", Protocol: state.TCP, Family: state.IPv6,
				Balance: state.HashConnection, Ejection: true, DrainSeconds: 60, Lingering: endpoints("[fd01::1]:80"),
				Frontends: []state.Frontend{{Kind: state.ClusterIP, Addr: netip.MustParseAddr("fd96::1"), Port: 80}},
				Internal:  state.Traffic{Inside: state.Route{Verdict: state.Reject}, Outside: weighted(1, 0, "[fd01::2]:80", "[fd01::3]:80")},
			},
			{
				Name: "rtp", Protocol: state.UDP, Family: state.IPv4, Balance: state.LeastConnections,
				Frontends: []state.Frontend{
					{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 10000, LastPort: 19999},
					{Kind: state.NodePort, Port: 31000, LastPort: 31099},
				},
				Internal: state.Traffic{Inside: forward("10.1.0.1:0"), Outside: forward("10.1.0.1:0")},
				External: state.Traffic{Inside: forward("10.1.0.1:0"), Outside: forward("10.1.0.2:0")},
			},
			{
				Name: "web", Protocol: state.TCP, Family: state.IPv4,
				Frontends: []state.Frontend{
					{Kind: state.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80},
					{Kind: state.NodePort, Port: 30080},
				},
				External: state.Traffic{Inside: forward("10.1.0.1:80", "10.1.0.3:80"), Outside: forward("10.1.0.1:80", "10.1.0.3:80"), Masquerade: state.MasqueradeAlways},
				Edge: &state.Edge{
					Shares: []state.EdgeShare{{Node: 7, Weight: 3}, {Node: 1 << 31, Weight: 70000}},
					Local:  state.Route{Verdict: state.Forward, Endpoints: local("10.1.0.1:80", "10.1.0.5:80")},
					Except: state.KindsOf(state.NodePort),
				},
			},
		},
		HealthCheck: state.HealthCheck{Port: 30000, LocalIPv4: 1, LocalIPv6: 2},
	}
}

// local returns endpoints on this node, with the weights 1, 2 and so on.
func local(list ...string) (out []state.Endpoint) {
	for i, s := range list {
		out = append(out, state.Endpoint{Addr: netip.MustParseAddrPort(s), Local: true, Weight: uint16(i + 1)})
	}
	return out
}

func fullNode() *state.Node {
	return &state.Node{Name: "node-a", Addresses: addrs("192.0.2.1", "2001:db8::1"), PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"),
		ServiceCIDRs:  prefixes("10.96.0.0/12", "fd96::/108"),
		LocalDetector: &state.LocalDetector{ClusterCIDRs: prefixes("10.0.0.0/8", "fd00::/16")},
		NodePorts:     &state.NodePortAddresses{Primary: true, CIDRs: prefixes("192.0.2.0/24", "2001:db8::/32")},
		Peers: []state.Peer{
			{ID: state.PeerID("node-a"), Name: "node-a", Addresses: addrs("192.0.2.1", "2001:db8::1"), PodCIDRs: prefixes("10.1.0.0/24", "fd00:1::/64"), Port: 7635},
			{ID: state.PeerID("node-b"), Name: "node-b", Addresses: addrs("192.0.2.2"), Port: 7636},
		}}
}

func fullModelService() *model.Service {
	return &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "dns"}, Created: time.Date(2026, 5, 4, 3, 2, 1, 0, time.UTC), HasProxyName: true, Type: model.TypeLoadBalancer, Headless: true,
		ClusterIPs: addrs("10.96.0.1", "fd96::1"), ExternalIPs: addrs("192.0.2.1", "192.0.2.3"), LoadBalancerIPs: addrs("192.0.2.5", "192.0.2.7"),
		SourceRanges: prefixes("10.0.0.1/8", "fd00::/8"),
		Ports: []model.ServicePort{
			{Name: "dns", Protocol: state.UDP, Port: 53, NodePort: 30053}, {Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080},
		},
		InternalLocal: true, ExternalLocal: true, Affinity: 3 * time.Hour, HealthCheckNodePort: 30000, ExternalName: "www.example.com",
		Annotations: []model.Annotation{{Name: "switchyard.net/a", Value: "1"}, {Name: "switchyard.net/b", Value: "2"}},
	}
}

func fullSlice() *model.EndpointSlice {
	return &model.EndpointSlice{
		Namespace: "ns", Name: "dns-1", Service: "dns", HasProxyName: true, Headless: true, Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "dns", Protocol: state.UDP, Port: 53}, {Name: "http", Protocol: state.TCP, Port: 80}},
		Endpoints: []model.Endpoint{
			{Addr: netip.MustParseAddr("10.1.0.1"), Ready: true, Serving: true, Terminating: true, NodeName: "n",
				Zone: "a", ZoneHints: []string{"a", "b"}, NodeHints: []string{"n", "m"}},
			{Addr: netip.MustParseAddr("10.1.0.3")},
		},
		Hostnames:   []string{"dns-0", "dns-1"},
		Pods:        model.PackPods("", []string{"dns-x7k2p", "dns-q2w3e"}),
		Weight:      "70",
		TriggerTime: time.Date(2026, 5, 4, 3, 2, 1, 7, time.UTC),
	}
}
