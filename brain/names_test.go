package brain_test

import (
	"math/rand/v2"
	"net/netip"
	"reflect"
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

func TestNames(t *testing.T) {
	name := state.ServiceName{Namespace: "shop", Name: "db"}
	addr := netip.MustParseAddr
	sql, metrics := model.EndpointPort{Name: "sql", Protocol: state.TCP, Port: 5432}, model.EndpointPort{Protocol: state.TCP, Port: 9100}
	ready := func(a string) model.Endpoint { return model.Endpoint{Addr: addr(a), Ready: true, Serving: true} }
	dying := ready("10.1.0.9")
	dying.Ready, dying.Terminating = false, true
	slices := []*model.EndpointSlice{
		{Name: "b", Family: state.IPv4, Ports: []model.EndpointPort{sql, metrics}, Endpoints: []model.Endpoint{ready("10.1.0.2"), dying}},
		{Name: "a", Family: state.IPv4, Ports: []model.EndpointPort{metrics, sql}, Endpoints: []model.Endpoint{ready("10.1.0.1"), ready("10.1.0.2")},
			Hostnames: []string{"db-0", ""}},
		{Name: "c", Family: state.IPv4, Ports: []model.EndpointPort{sql}, Endpoints: []model.Endpoint{dying}},
		{Name: "d"}, nil,
	}
	ports := []state.NamedPort{{Protocol: state.TCP, Port: 9100}, {Name: "sql", Protocol: state.TCP, Port: 5432}}
	for _, c := range []struct {
		what string
		svc  *model.Service
		want *state.Names
	}{
		{"no service", nil, nil},
		{"headless", &model.Service{Name: name, Headless: true}, &state.Names{Name: name, Endpoints: []state.EndpointGroup{{
			Ports: ports, Endpoints: []state.NamedEndpoint{{Addr: addr("10.1.0.1"), Hostname: "db-0"}, {Addr: addr("10.1.0.2")}},
		}}}},
		{"cluster IP, opted out", &model.Service{
			Name: name, ClusterIPs: []netip.Addr{addr("10.96.0.1")}, HasProxyName: true, ProxyName: "another",
			Ports: []model.ServicePort{{Name: "sql", Protocol: state.TCP, Port: 5432, NodePort: 30000}, {Protocol: state.TCP, Port: 9100}},
		}, &state.Names{Name: name, ClusterIPs: []netip.Addr{addr("10.96.0.1")}, Ports: ports}},
		{"external name", &model.Service{Name: name, Type: model.TypeExternalName, ExternalName: "www.example.com"},
			&state.Names{Name: name, ExternalName: "www.example.com"}},
	} {
		for range 10 {
			got := brain.Names(c.svc, slices)
			if c.want == nil && got != nil || c.want != nil && (got == nil || !got.Equal(c.want)) {
				t.Fatalf("%s: got %+v, want %+v", c.what, got, c.want)
			}
			rand.Shuffle(len(slices), reflect.Swapper(slices)) // their order is that of arrival
		}
	}
}

// TestNamesFitIntoAMessage has a service with more endpoints than a message of the API has room for.
func TestNamesFitIntoAMessage(t *testing.T) {
	s := &model.EndpointSlice{Family: state.IPv6}
	next := netip.MustParseAddr("fd00::1")
	for range 600_000 {
		s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: next, Ready: true})
		next = next.Next()
	}
	n := brain.Names(&model.Service{Headless: true}, []*model.EndpointSlice{s})
	if got := len(n.Endpoints[0].Endpoints); got != 500_000 || n.Endpoints[0].Endpoints[0].Addr != netip.MustParseAddr("fd00::1") {
		t.Errorf("there are %d endpoints", got)
	}
}
