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
			got := brain.Names(c.svc, slices, brain.MaxNames)
			if c.want == nil && got != nil || c.want != nil && (got == nil || !got.Equal(c.want)) {
				t.Fatalf("%s: got %+v, want %+v", c.what, got, c.want)
			}
			rand.Shuffle(len(slices), reflect.Swapper(slices)) // slices come in order of arrival
		}
	}
}

// TestNamesWithLittleRoom gives services less and less room. The remaining names do not depend on the order of the
// slices, take no more than the room, and are complete while there is room for them.
func TestNamesWithLittleRoom(t *testing.T) {
	name := state.ServiceName{Namespace: "shop", Name: "db"}
	addr := netip.MustParseAddr
	slice := func(name string, first byte) *model.EndpointSlice {
		s := &model.EndpointSlice{Name: name, Family: state.IPv4, Ports: []model.EndpointPort{{Name: "sql", Protocol: state.TCP, Port: 5432}}}
		for i := range byte(3) {
			s.Endpoints = append(s.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, first + i}), Ready: i != 1})
		}
		return s
	}
	from := []*model.EndpointSlice{slice("a", 20), slice("b", 10), nil, slice("c", 0)}
	for _, c := range []struct {
		what    string
		svc     *model.Service
		entries int64
	}{
		{"no service", nil, 0},
		{"external name", &model.Service{Name: name, Type: model.TypeExternalName, ExternalName: "www.example.com"}, 6},
		{"cluster IPs", &model.Service{Name: name, ClusterIPs: []netip.Addr{addr("10.96.0.1"), addr("fd00::1")},
			Ports: []model.ServicePort{{Name: "a", Port: 80}, {Name: "b", Port: 81}}}, 10},
		{"headless", &model.Service{Name: name, Headless: true}, 18},
	} {
		if got := brain.NamesEntries(c.svc, from); got != c.entries {
			t.Errorf("%s: %d entries, want %d", c.what, got, c.entries)
		}
		whole := brain.Names(c.svc, from, brain.MaxNames)
		for room := int64(20); room >= 0; room-- {
			got := brain.Names(c.svc, from, room)
			if (got == nil) != (c.svc == nil || room < 6) || room >= c.entries && got != nil && !got.Equal(whole) {
				t.Errorf("%s: with room for %d of %d entries: %+v", c.what, room, c.entries, got)
			}
			if got == nil {
				continue
			}
			size := 6 + len(got.ClusterIPs) + len(got.Ports)
			for _, g := range got.Endpoints {
				size += len(g.Ports) + len(g.Endpoints)
			}
			if int64(size) > room {
				t.Errorf("%s: with room for %d entries there are %d: %+v", c.what, room, size, got)
			}
			for range 5 {
				rand.Shuffle(len(from), reflect.Swapper(from))
				if again := brain.Names(c.svc, from, room); !again.Equal(got) {
					t.Fatalf("%s: with room for %d entries in another order: %+v, before %+v", c.what, room, again, got)
				}
			}
		}
	}
	// Slice a has room for its port and two of its endpoints, of which the second is not ready.
	if got := brain.Names(&model.Service{Name: name, Headless: true}, from, 9).Endpoints; len(got) != 1 || len(got[0].Endpoints) != 1 || got[0].Endpoints[0].Addr != addr("10.1.0.20") {
		t.Errorf("of the slices there are %+v", got)
	}
}
