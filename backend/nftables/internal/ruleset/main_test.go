package ruleset

import (
	"net/netip"

	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/recordtest"
)

// Records to plan for.
var (
	testNode          = recordtest.Node()
	addr, prefix      = recordtest.Addr, recordtest.Prefix
	endpointsOf       = recordtest.Endpoints
	forward           = recordtest.Forward
	serviceOf         = recordtest.Service
	restrictedService = recordtest.Restricted
	nodeAddr          = recordtest.NodeAddr
	delta             = recordtest.Delta
)

// testSettings are settings with which pods of some families are recognized by their addresses.
func testSettings(pods ...state.Family) *Settings {
	s := &Settings{MasqueradeMark: testMark, MaxAffinityClients: 1 << 20, UpstreamMark: 1 << 13}
	s.LocalDetector.ClusterCIDRs = recordtest.PodCIDRs(pods...)
	return s
}

// testMark marks connections for masquerading in tests.
const testMark = 1 << 14

// testEdge marks packets of the edge in tests.
const testEdge = 1 << 11

// withTestEdge returns settings with an edge.
func withTestEdge(s *Settings) *Settings {
	s.Edge = testEdge
	return s
}

// elementsOnly is Change without the sets, chains and rules, which take most of the time of a plan that needs new ones.
func elementsOnly(m *Mirror, s *Settings, u *state.Update, nodePorts []netip.Addr) *Plan {
	p := newPlan(s, m, m)
	p.update(u)
	p.eject()
	p.finalize(nodePorts)
	return p
}

// counting returns settings with which connections are counted.
func counting(s *Settings) *Settings {
	s.Counters = true
	return s
}
