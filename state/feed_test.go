package state_test

import (
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestGone: in a full update, what the consumer has and the update lacks is gone. Another update names what is gone, also what the consumer does
// not have.
func TestGone(t *testing.T) {
	name := func(n string) state.ServiceName { return state.ServiceName{Namespace: "ns", Name: n} }
	held := slices.Values([]state.ServiceName{name("a"), name("b"), name("c")})
	u := &state.Update{Changed: []*state.Service{{Name: name("b")}, {Name: name("d")}}}
	u.Full = true
	if got, want := u.Gone(held), []state.ServiceName{name("a"), name("c")}; !slices.Equal(got, want) {
		t.Errorf("after a full update %v are gone, want %v", got, want)
	}
	u.Full, u.Removed = false, []state.ServiceName{name("c"), name("e")}
	if got := u.Gone(held); !slices.Equal(got, u.Removed) {
		t.Errorf("after a change %v are gone, want %v", got, u.Removed)
	}
}
