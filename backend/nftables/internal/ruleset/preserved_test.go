package ruleset

import (
	"fmt"
	"testing"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// TestConcernsCostsWhatTheUpdateHas: an update that is not about what is preserved costs the same, however much that is.
func TestConcernsCostsWhatTheUpdateHas(t *testing.T) {
	u := delta(recordtest.DualStack("other", 5000, 3, 0))
	cost := func(services int) float64 {
		preserved := Preserved{Services: map[state.ServiceName]*state.Service{}}
		for n := range services {
			s := recordtest.DualStack(fmt.Sprintf("s%d", n), n, 1, 0)
			preserved.Services[s.Name] = s
		}
		for name, about := range map[string]*state.Update{
			"another with its frontend": delta(recordtest.DualStack("takes", services-1, 3, 0)),
			"its change":                delta(recordtest.DualStack("s0", 5000, 3, 0)),
			"its removal":               {Removed: []state.ServiceName{recordtest.DualStack("s0", 0, 1, 0).Name}},
		} {
			if !preserved.Concerns(about) {
				t.Errorf("%s does not concern %d services", name, services)
			}
		}
		return testing.AllocsPerRun(1, func() {
			if preserved.Concerns(u) {
				t.Errorf("another service concerns %d services", services)
			}
		})
	}
	if one, many := cost(1), cost(1000); many > one {
		t.Errorf("it takes %v allocations with one service, and %v with many", one, many)
	}
}
