package state_test

import (
	"hash/fnv"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/state"
)

// TestPeerID: the ID of a node is FNV-1a of its name.
func TestPeerID(t *testing.T) {
	for _, name := range []string{"", "a", "node-1", "ip-10-0-12-34.eu-central-1.compute.internal", "\xff\x00"} {
		h := fnv.New32a()
		h.Write([]byte(name))
		if got := state.PeerID(name); got != h.Sum32() {
			t.Errorf("%q has ID %d, want %d", name, got, h.Sum32())
		}
	}
}

// TestEdgeTakes: an edge is for frontends of clients outside, without the kinds that it excepts.
func TestEdgeTakes(t *testing.T) {
	kinds := []state.FrontendKind{state.ClusterIP, state.ExternalIP, state.LoadBalancer, state.NodePort}
	for except, want := range map[state.FrontendKinds][]state.FrontendKind{
		0:                               kinds[1:],
		state.KindsOf(state.NodePort):   kinds[1:3],
		state.KindsOf(kinds[1:]...):     nil,
		state.KindsOf(state.ClusterIP):  kinds[1:],
		state.KindsOf(state.ExternalIP): kinds[2:],
	} {
		e := &state.Edge{Except: except}
		var got []state.FrontendKind
		for _, k := range kinds {
			if e.Takes(k) {
				got = append(got, k)
			}
			if (*state.Edge)(nil).Takes(k) {
				t.Errorf("no edge takes %v", k)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("except %v: it takes %v, want %v", except, got, want)
		}
		if again := state.KindsOf(slices.Collect(except.Each)...); again != except {
			t.Errorf("%v became %v", except, again)
		}
	}
	if got := (state.KindsOf(state.NodePort, state.ExternalIP)).String(); got != "ExternalIP,NodePort" || state.FrontendKinds(0).String() != "none" {
		t.Errorf("the kinds are written as %q", got)
	}
}

// TestWithoutEdge: a port that loses the last frontend that its edge takes loses its edge. The record itself stays unchanged.
func TestWithoutEdge(t *testing.T) {
	edge := &state.Edge{Shares: []state.EdgeShare{{Node: 1, Weight: 1}}, Local: state.Route{Verdict: state.Drop}, Except: state.KindsOf(state.NodePort)}
	to := state.Route{Verdict: state.Reject}
	s := &state.Service{Ports: []state.Port{{
		Protocol: state.TCP, Family: state.IPv4, Edge: edge, Internal: state.Traffic{Inside: to, Outside: to}, External: state.Traffic{Inside: to, Outside: to},
		Frontends: []state.Frontend{
			{Kind: state.ClusterIP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}, {Kind: state.ExternalIP, Addr: netip.MustParseAddr("192.0.2.1"), Port: 80},
			{Kind: state.LoadBalancer, Addr: netip.MustParseAddr("192.0.2.2"), Port: 80}, {Kind: state.NodePort, Port: 30080},
		},
	}}}
	for name, c := range map[string]struct {
		taken []int
		want  *state.Edge
	}{
		"another kind is left":    {[]int{1}, edge},
		"the excepted kind goes":  {[]int{3}, edge},
		"the cluster IP goes":     {[]int{0}, edge},
		"only excepted ones left": {[]int{1, 2}, nil},
		"only the cluster IP":     {[]int{1, 2, 3}, nil},
	} {
		taken := map[state.FrontendKey]bool{}
		for _, i := range c.taken {
			taken[s.Ports[0].Key(&s.Ports[0].Frontends[i])] = true
		}
		if got := s.Without(taken).Ports[0].Edge; got != c.want {
			t.Errorf("%s: the edge is %+v", name, got)
		}
	}
	if s.Ports[0].Edge != edge {
		t.Error("the record has changed")
	}
}
