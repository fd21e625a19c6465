package state_test

import (
	"maps"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestKeep: a full update has the services that stay. Any other update has them only if they lose frontends, so that its cost does not grow with their
// number. The update itself does not change.
func TestKeep(t *testing.T) {
	service := func(name string, ports ...uint16) *state.Service {
		s := &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}}
		for _, port := range ports {
			s.Ports = append(s.Ports, state.Port{
				Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{{Kind: state.NodePort, Port: port}},
			})
		}
		return s
	}
	loses, stays, gone, changes := service("loses", 80, 81), service("stays", 90), service("removed", 91), service("changes", 80)
	held := map[state.ServiceName]*state.Service{loses.Name: loses, stays.Name: stays, gone.Name: gone}
	names := map[state.ServiceName]bool{loses.Name: true, stays.Name: true, gone.Name: true, {Namespace: "ns", Name: "unknown"}: true}
	for full, want := range map[bool][]*state.Service{
		true:  {changes, service("loses", 81), gone, stays},
		false: {changes, service("loses", 81)},
	} {
		u := &state.Update{Revision: 3, Full: full, Changed: []*state.Service{changes, service("loses", 82), service("unknown", 83)}}
		if !full {
			u.Removed = []state.ServiceName{gone.Name, {Namespace: "ns", Name: "other"}}
		}
		v := u.Keep(maps.Keys(names), func(n state.ServiceName) *state.Service { return held[n] })
		if !full && (len(v.Removed) != 1 || v.Removed[0].Name != "other" || len(u.Removed) != 2) {
			t.Errorf("%v are removed", v.Removed)
		}
		if len(v.Changed) != len(want) || len(u.Changed) != 3 || v.Revision != 3 {
			t.Fatalf("full %t: the update has %v, want %v", full, v.Changed, want)
		}
		for i := range want {
			if !v.Changed[i].Equal(want[i]) {
				t.Errorf("full %t: the update has %v, want %v", full, v.Changed[i], want[i])
			}
		}
	}
	u := &state.Update{}
	if u.Keep(maps.Keys(map[state.ServiceName]bool{}), nil) != u {
		t.Error("nothing stays as it is, and the update is another one")
	}
}
