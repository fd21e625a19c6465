package backend

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestFailedServicesCostOthersNothing: many services were refused, and keep what they had. A change of another one looks at none of them, and one that
// takes a frontend looks at the service that had it.
func TestFailedServicesCostOthersNothing(t *testing.T) {
	const many = 1000
	numbered := func(name string, ports ...int) *state.Service {
		s := &state.Service{Name: state.ServiceName{Name: name}, Ports: []state.Port{{Protocol: state.TCP, Family: state.IPv4}}}
		for _, n := range ports {
			f := state.Frontend{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: uint16(n)}
			s.Ports[0].Frontends = append(s.Ports[0].Frontends, f)
		}
		return s
	}
	h := newHeld(0)
	all, refused := &state.Update{Full: true}, &refusals{map[state.ServiceName]error{}, nil}
	for n := range many {
		s := numbered(fmt.Sprintf("s%d", n), 2*n, 2*n+1)
		all.Changed = append(all.Changed, s)
		refused.refused[s.Name] = errors.New("refused")
	}
	h.note(all, all, &refusals{}, nil)
	next := &state.Update{}
	for _, s := range all.Changed {
		next.Changed = append(next.Changed, numbered(s.Name.Name))
	}
	v := h.resolve(next, refused)
	if len(v.Changed) > 0 || len(v.Refused) != many {
		t.Fatalf("%d services change, %d were refused", len(v.Changed), len(v.Refused))
	}
	h.note(next, v, refused, nil)

	change := func(when string, s *state.Service, want ...*state.Service) {
		t.Helper()
		u := &state.Update{Changed: []*state.Service{s}}
		v := h.resolve(u, &refusals{})
		if !slices.EqualFunc(v.Changed, want, func(a, b *state.Service) bool { return a.Equal(b) }) {
			t.Errorf("%s: the update has %v, want %v", when, v.Changed, want)
		}
		if len(want) == 1 && v != u {
			t.Errorf("%s: the update is another one", when)
		}
		h.note(u, v, &refusals{}, nil)
	}
	other, takes := numbered("other", 2*many), numbered("takes", 10)
	change("another service", other, other)
	change("one that takes a frontend", takes, numbered("s5", 11), takes)
	change("the same again", takes, takes)
	change("the one that had it heals", numbered("s5", 11), numbered("s5", 11))
	change("another takes what that one has now", numbered("other", 11), numbered("other", 11))
	gone := &state.Update{Full: true}
	h.note(gone, gone, &refusals{}, nil)
	change("all are gone", numbered("takes", 20), numbered("takes", 20))
	if len(h.failed)+len(h.holders) > 0 {
		t.Errorf("%d services and %d frontends are kept for services that are gone", len(h.failed), len(h.holders))
	}
}
