package apifollower

import (
	"log/slog"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestKeepUnreadable: a full update lists the services that keep their last state. Any other update lists only the
// services that lose frontends, so that its cost depends on the changes.
func TestKeepUnreadable(t *testing.T) {
	service := func(name string, port uint16) *state.Service {
		return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Ports: []state.Port{{
			Protocol: state.TCP, Family: state.IPv4, Frontends: []state.Frontend{{Kind: state.NodePort, Port: port}},
		}}}
	}
	loses, stays, changes := service("loses", 80), service("stays", 90), service("changes", 80)
	held := map[state.ServiceName]*state.Service{loses.Name: loses, stays.Name: stays}
	old := func(name state.ServiceName) *state.Service { return held[name] }
	f := &Follower{log: slog.New(slog.DiscardHandler)}
	for full, want := range map[bool]int{true: 3, false: 2} {
		u := &state.Update{Full: full, Changed: []*state.Service{changes}}
		f.keepUnreadable(u, old, map[state.ServiceName]error{loses.Name: nil, stays.Name: nil})
		if len(u.Changed) != want || u.Changed[0] != changes || len(u.Changed[1].Ports) != 0 || full && u.Changed[2] != stays {
			t.Errorf("full %t: the update has %v, want %d services", full, u.Changed, want)
		}
	}
}
