package view_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/admin/view"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

var (
	web = state.ServiceName{Namespace: "shop", Name: "web"}
	db  = state.ServiceName{Namespace: "shop", Name: "db"}
)

// shop is what a node knows that is one of two: a Service for everybody, with endpoints in different states, and a headless one.
func shop() []model.Object {
	at := func(last byte, node string) model.Endpoint {
		return model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, last}), Ready: true, Serving: true, NodeName: node}
	}
	notReady := at(3, "node-a")
	notReady.Ready, notReady.Serving = false, false
	return []model.Object{
		&model.Service{
			Name: web, Type: model.TypeLoadBalancer, ExternalLocal: true, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
			LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("203.0.113.1")}, ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
			Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80, NodePort: 30080}},
		},
		&model.EndpointSlice{
			Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4, Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
			Endpoints: []model.Endpoint{notReady, at(2, "node-b"), at(1, "node-a")}, Pods: model.PackPods("", []string{"", "web-q2w3e", "web-x7k2p"}),
		},
		&model.Service{Name: db, Headless: true, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 5432}}},
		&model.Node{Name: "node-b", Addresses: []netip.Addr{netip.MustParseAddr("172.16.0.2")}},
		&model.Node{Name: "node-a", Zone: "a", Addresses: []netip.Addr{netip.MustParseAddr("172.16.0.1")}, PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/24")}},
	}
}

func viewOf(t *testing.T, objects ...model.Object) *view.View {
	s := store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
	t.Cleanup(s.Close)
	sink := s.Source("test")
	sink.Update(objects, nil)
	sink.Complete()
	return &view.View{Store: s}
}

// TestServices: a row has what the Service asks for, and how much of it is served.
func TestServices(t *testing.T) {
	v := viewOf(t, shop()...)
	v.Failed = func(name state.ServiceName) error {
		if name == web {
			return errors.New("no room in the kernel")
		}
		return nil
	}
	v.Lacks = func(name state.ServiceName) (missing state.Features) {
		if name == web {
			missing = state.Weights | state.Balances
		}
		return missing
	}
	var rows []string
	for s := range v.Services(view.Selection{}) {
		p := s.Ports[0]
		rows = append(rows, fmt.Sprintf("%s %s %v %v %v %s %v %s:%d:%d/%s", s.Key(), s.Type, s.ClusterIPs, s.ExternalIPs, s.Endpoints, s.NotRouted, s.Problems,
			p.Name, p.Port, p.NodePort, p.Protocol))
	}
	want := []string{
		"shop/db Headless [] [] 0/0 Headless [] :5432:0/TCP",
		"shop/web LoadBalancer [10.96.0.10] [203.0.113.1 192.0.2.1] 2/3 NotReady=1  [the dataplane lacks weights,balance, and serves the Service without; choose another mode, or remove the annotations no room in the kernel] http:80:30080/TCP",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

// TestEndpoints: clients outside are for the policy Local, and all others are not.
func TestEndpoints(t *testing.T) {
	var rows []string
	for e := range viewOf(t, shop()...).Endpoints(view.Selection{Namespace: "shop"}) {
		rows = append(rows, fmt.Sprintf("%s %s on %s: %v %v, %v %v", e.Key(), e.Pod, e.Node, e.Inside, e.Reasons, e.Outside, e.OutsideReasons))
	}
	want := []string{
		"shop/web/http/TCP/10.244.0.1:8080/web-1 web-x7k2p on node-a: true [], true []",
		"shop/web/http/TCP/10.244.0.2:8080/web-1 web-q2w3e on node-b: true [], false [OtherNode]",
		"shop/web/http/TCP/10.244.0.3:8080/web-1  on node-a: false [NotReady], false [NotReady]",
	}
	if !slices.Equal(rows, want) {
		t.Errorf("rows\n%s\nwant\n%s", strings.Join(rows, "\n"), strings.Join(want, "\n"))
	}
}

// TestEndpointsAgreeWithRecords: what rows say is what the dataplane gets.
func TestEndpointsAgreeWithRecords(t *testing.T) {
	v := viewOf(t, shop()...)
	p := v.Store.Snapshot().Get(web).Ports[0]
	has := func(list []state.Endpoint, addr netip.AddrPort) bool {
		return slices.ContainsFunc(list, func(e state.Endpoint) bool { return e.Addr == addr })
	}
	n := 0
	for e := range v.Endpoints(view.Selection{}) {
		n++
		if has(p.Internal.Inside.Endpoints, e.Addr) != e.Inside || has(p.External.Outside.Endpoints, e.Addr) != e.Outside {
			t.Errorf("the record has %+v and %+v, the row %+v", p.Internal.Inside, p.External.Outside, e)
		}
	}
	if n != 3 {
		t.Errorf("%d rows", n)
	}
}

// TestTrafficHasEndpoints: a row has the endpoints of its port, by its name or its number; the row of a deleted
// Service has none.
func TestTrafficHasEndpoints(t *testing.T) {
	v := viewOf(t, shop()...)
	rows := []view.PortTraffic{
		{Namespace: "shop", Service: "db", Port: "5432"}, {Namespace: "shop", Service: "gone", Port: "http"},
		{Namespace: "shop", Service: "web", Port: "http"}, {Namespace: "shop", Service: "web", Port: "80"},
	}
	v.AddEndpoints(rows)
	for i, want := range []string{"0/0", "0/0", "2/3 NotReady=1", "0/0"} {
		if got := rows[i].Endpoints.String(); got != want {
			t.Errorf("%+v: %s, want %s", rows[i], got, want)
		}
	}
}

// TestNodes: a store of one node knows no other one.
func TestNodes(t *testing.T) {
	var rows []string
	for n := range viewOf(t, shop()...).Nodes(view.Selection{Names: []string{"node-*"}}) {
		rows = append(rows, fmt.Sprintf("%s %s %v %v %v", n.Key(), n.Zone, n.Addresses, n.PodCIDRs, n.Self))
	}
	if want := []string{"node-a a [172.16.0.1] [10.244.0.0/24] true"}; !slices.Equal(rows, want) {
		t.Errorf("rows %q, want %q", rows, want)
	}
}

// TestSelection: names are patterns, and so many and so long as anybody needs.
func TestSelection(t *testing.T) {
	v := viewOf(t, shop()...)
	for _, tt := range []struct {
		selection view.Selection
		want      int
	}{
		{view.Selection{}, 2},
		{view.Selection{Namespace: "other"}, 0},
		{view.Selection{Names: []string{"w*", "db", "web"}}, 2},
		{view.Selection{Names: []string{"[a-d]b"}}, 1},
		{view.Selection{Names: []string{"we"}}, 0},
	} {
		n := 0
		for range v.Services(tt.selection) {
			n++
		}
		if err := tt.selection.Check(); n != tt.want || err != nil {
			t.Errorf("%+v selects %d, %v; want %d", tt.selection, n, err, tt.want)
		}
	}
	for _, names := range [][]string{make([]string, 101), {strings.Repeat("a", 254)}, {"["}} {
		s := view.Selection{Names: names}
		if s.Check() == nil {
			t.Errorf("%.40q are accepted", names)
		}
	}
}

// TestEndpointsOfSeveralPorts: an endpoint of a Service counts once, however many ports it has.
func TestEndpointsOfSeveralPorts(t *testing.T) {
	objects := []model.Object{
		&model.Service{Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}, {Name: "metrics", Protocol: state.TCP, Port: 9090}}},
	}
	slice := &model.EndpointSlice{
		Namespace: "shop", Name: "web-1", Service: "web", Family: state.IPv4,
		Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}, {Name: "metrics", Protocol: state.TCP, Port: 9090}},
	}
	for i := range 5 {
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), Ready: i > 0, Serving: true})
	}
	row := viewOf(t, append(objects, slice)...).Service(web)
	if got := row.Endpoints.String(); got != "4/5 NotReady=1" {
		t.Errorf("the Service has %s", got)
	}
	if got := row.Ports[1].Endpoints.String(); got != "4/5 NotReady=1" {
		t.Errorf("a port has %s", got)
	}
}

// TestWeights: a row has the weight of its slice, and the share that the weights of those that get connections ask for.
func TestWeights(t *testing.T) {
	slice := func(name, weight string, endpoints ...model.Endpoint) model.Object {
		return &model.EndpointSlice{
			Namespace: "shop", Name: name, Service: "web", Family: state.IPv4, Weight: weight, Endpoints: endpoints,
			Ports: []model.EndpointPort{{Name: "http", Protocol: state.TCP, Port: 8080}},
		}
	}
	at := func(last byte, ready, terminating bool) model.Endpoint {
		return model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 244, 0, last}), Ready: ready, Serving: ready || terminating, Terminating: terminating, NodeName: "node-a"}
	}
	svc := &model.Service{Name: web, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")}, Ports: []model.ServicePort{{Name: "http", Protocol: state.TCP, Port: 80}}}
	zonal := *svc
	zonal.Annotations = []model.Annotation{{Name: model.ZoneWeightsAnnotation, Value: "same=4,other=1"}}
	in := func(zone string, e model.Endpoint) model.Endpoint { e.Zone = zone; return e }
	for name, test := range map[string]struct {
		slices []model.Object
		want   []string
	}{
		"even": {[]model.Object{slice("a", "", at(1, true, false), at(2, true, false), at(3, false, false))}, []string{"1: - 50.0% active", "2: - 50.0% active", "3: - 0.0% idle"}},
		"a canary": {[]model.Object{slice("a", "95", at(1, true, false), at(4, false, false)), slice("b", "5", at(2, true, false)), slice("c", "0", at(3, true, false))},
			[]string{"1: 95 95.0% active", "2: 5 5.0% active", "3: 0 0.0% draining", "4: 95 0.0% idle"}},
		"without an annotation": {[]model.Object{slice("a", "3", at(1, true, false)), slice("b", "", at(2, true, false))}, []string{"1: 3 75.0% active", "2: 1 25.0% active"}},
		"in two slices": {[]model.Object{slice("a", "1", at(1, true, false), at(2, true, false)), slice("b", "4", at(2, true, false))},
			[]string{"1: 1 20.0% active", "2: 4 80.0% active", "2: 4 0.0% idle"}},
		"terminating": {[]model.Object{slice("a", "", at(1, true, false), at(2, false, true))}, []string{"1: - 100.0% active", "2: - 0.0% draining"}},
		"zone weights": {[]model.Object{&zonal, &model.Node{Name: "node-a", Zone: "west"}, slice("a", "3", in("west", at(1, true, false))), slice("b", "2", in("east", at(2, true, false)), in("east", at(4, false, false)))},
			[]string{"1: 6 85.7% active", "2: 1 14.3% active", "4: 0 0.0% idle"}},
		"all terminate": {[]model.Object{slice("a", "", at(1, false, true))}, []string{"1: - 100.0% active"}},
	} {
		var rows []string
		for e := range viewOf(t, append([]model.Object{svc}, test.slices...)...).Endpoints(view.Selection{}) {
			weight := "-"
			if e.Weight != nil {
				weight = fmt.Sprint(*e.Weight)
			}
			rows = append(rows, fmt.Sprintf("%d: %s %.1f%% %s", e.Addr.Addr().As4()[3], weight, 100*e.Share, e.State))
		}
		if !slices.Equal(rows, test.want) {
			t.Errorf("%s: %q, want %q", name, rows, test.want)
		}
	}
}
