//go:build linux

package nftables

import (
	"fmt"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestStaleServicesCostOthersNothing: many services have failed, and keep what they had. A change of another one looks at none of them, and
// one that takes a frontend looks at the service that had it.
func TestStaleServicesCostOthersNothing(t *testing.T) {
	const many = 1000
	numbered := func(name string, n ...int) *state.Service {
		var ports []state.Port
		for _, i := range n {
			ports = append(ports, clusterIPPort(state.IPv4, state.TCP, i, endpointsOf(state.IPv4, 1, 1)))
		}
		return serviceOf(name, ports...)
	}
	programmed := records{}
	looks := 0
	record := func(name state.ServiceName) *state.Service {
		looks++
		return programmed[name]
	}
	u, failed := delta(), map[state.ServiceName]error{}
	for n := range many {
		s := numbered(fmt.Sprintf("s%d", n), 2*n, 2*n+1)
		u.Changed = append(u.Changed, s)
		failed[s.Name], programmed[s.Name] = errInjected, s
	}
	var stale staleServices
	stale.note(u, failed, record)

	change := func(when string, want []*state.Service, most int, s ...*state.Service) {
		t.Helper()
		looks = 0
		u := delta(s...)
		good, unknown := programmable(u, nil, &stale, record)
		equal := func(a, b *state.Service) bool { return a.Equal(b) }
		if !slices.EqualFunc(good.Changed, want, equal) || len(unknown) > 0 {
			t.Errorf("%s: planned are %v, want %v; unknown are %v", when, good.Changed, want, unknown)
		}
		if looks > most {
			t.Errorf("%s: looked at %d records", when, looks)
		}
		for _, s := range good.Changed {
			programmed[s.Name] = s
		}
		stale.note(u, nil, record)
	}
	other := numbered("other", 2*many)
	change("another service", []*state.Service{other}, 0, other)
	takes, left := numbered("takes", 10), numbered("s5", 11)
	change("one that takes a frontend", []*state.Service{left, takes}, 1, takes)
	change("the same again", []*state.Service{takes}, 1, takes)
	healed := numbered("s5", 11)
	change("the one that had it heals", []*state.Service{healed}, 0, healed)
	change("another takes what that one has now", []*state.Service{numbered("other", 11)}, 0, numbered("other", 11))
	gone := delta()
	gone.Full = true
	stale.note(gone, nil, record)
	change("all are gone", []*state.Service{numbered("takes", 20)}, 0, numbered("takes", 20))
}
