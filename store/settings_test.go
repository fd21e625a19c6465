package store

import (
	"testing"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// TestNodeHasTheSettings: what dataplanes must go by is in each node, and a change of it is a new state, also without any service.
func TestNodeHasTheSettings(t *testing.T) {
	c := brain.Config{NodeName: "n", LocalDetector: state.LocalDetector{BridgeInterface: "cni0"}, NodePorts: state.NodePortAddresses{Primary: true}}
	s, all := New(Options{Brain: c}), NewCluster(ClusterOptions{Brain: c})
	defer s.Close()
	defer all.Close()
	s.Source("test").Complete()
	all.Source("test").Complete()
	for name, feed := range map[string]state.Feed{"store": s, "cluster": all.Node("n")} {
		u, err := feed.Next(t.Context(), 0)
		if err != nil || !u.Node.LocalDetector.Equal(c.LocalDetector) || !u.Node.NodePorts.Equal(c.NodePorts) {
			t.Errorf("%s: the node is %+v, %v", name, u.Node, err)
		}
	}
	before := s.Snapshot()
	s.Reconfigure(c, Budgets{})
	if s.Snapshot().Revision() != before.Revision() {
		t.Error("the same configuration again is a new state")
	}
	c.LocalDetector, c.NodePorts = state.LocalDetector{NodeCIDR: true}, state.NodePortAddresses{}
	s.Reconfigure(c, Budgets{})
	now := s.Snapshot()
	if n := now.Node(); now.Revision() != before.Revision()+1 || !n.LocalDetector.NodeCIDR || n.NodePorts.Primary {
		t.Errorf("after a change the state is %d, its node %+v", now.Revision(), n)
	}
}
