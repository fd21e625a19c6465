package store

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// peer is a Node that takes part by an annotation.
func peer(name, annotation string) *model.Node {
	last := name[len(name)-1] - '0'
	return &model.Node{Name: name, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, last})}, PodCIDRs: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, last, 0, 0}), 24)}, Edge: annotation}
}

// edgeStore has a Service with an endpoint on each of three Nodes, n1, n2 and n3, which take part. It is the store of n1. After a change, the peers stay as
// they are for a pause for each Node.
func edgeStore(t *testing.T, rule brain.Edge, pause time.Duration) (s *Store, sink model.Sink, logs *bytes.Buffer) {
	t.Helper()
	logs = &bytes.Buffer{}
	s = New(Options{Brain: brain.Config{NodeName: "n1", Edge: rule}, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	t.Cleanup(s.Close)
	s.objects.edge.pause = pause
	sink = s.Source("test")
	slice := &model.EndpointSlice{Namespace: "ns", Name: "a-1", Service: "a", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}}}
	set := []model.Object{&model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "a"}, Type: model.TypeLoadBalancer, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		LoadBalancerIPs: []netip.Addr{netip.MustParseAddr("192.0.2.100")}, Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
	}}
	for i, name := range []string{"n1", "n2", "n3"} {
		set = append(set, peer(name, "v1,7635"))
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), NodeName: name, Ready: true, Serving: true})
	}
	sink.Update(append(set, slice), nil)
	sink.Complete()
	return s, sink, logs
}

// edgeOf writes who has shares of the Service, by the peers of the node, such as "n1 n3".
func edgeOf(s *Store) string {
	snapshot := s.Snapshot()
	edge := snapshot.Get(state.ServiceName{Namespace: "ns", Name: "a"}).Ports[0].Edge
	if edge == nil {
		return "no edge"
	}
	var names []string
	for _, share := range edge.Shares {
		name := "unknown"
		if i := slices.IndexFunc(snapshot.Node().Peers, func(p state.Peer) bool { return p.ID == share.Node && p.Port != 0 }); i >= 0 {
			name = snapshot.Node().Peers[i].Name
		}
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// showPeers writes the peers of the node, such as "n1:7635 n2".
func showPeers(s *Store) string {
	var texts []string
	for _, p := range s.Snapshot().Node().Peers {
		text := p.Name
		if p.Port != 0 {
			text += fmt.Sprintf(":%d", p.Port)
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, " ")
}

// TestEdge tells a story of who takes part. Each step changes a Node, and has the Nodes with shares and the peers.
func TestEdge(t *testing.T) {
	const all = "n1 n2 n3"
	noAddress := peer("n2", "v1,7635")
	noAddress.Addresses = nil
	s, sink, _ := edgeStore(t, brain.Edge{Enabled: true}, 0)
	for i, step := range []struct {
		set           *model.Node
		gone          string
		shares, peers string
	}{
		{shares: all, peers: "n1:7635 n2:7635 n3:7635"},
		{set: peer("n2", ""), shares: "", peers: "n1:7635 n2 n3:7635"},
		{set: peer("n2", "v1,7636"), shares: all, peers: "n1:7635 n2:7636 n3:7635"},
		{set: peer("n2", "v2,7636"), shares: "", peers: "n1:7635 n2 n3:7635"},
		{set: peer("n3", ""), shares: "", peers: "n1:7635 n2 n3"},
		{set: peer("n2", "v1,7635"), shares: "", peers: "n1:7635 n2:7635 n3"},
		{set: peer("n3", "v1,7635"), shares: all, peers: "n1:7635 n2:7635 n3:7635"},
		{set: peer("n4", "v1,7635"), shares: all, peers: "n1:7635 n2:7635 n3:7635 n4:7635"},
		{set: noAddress, shares: "", peers: "n1:7635 n2 n3:7635 n4:7635"},
		{gone: "n2", shares: "", peers: "n1:7635 n3:7635 n4:7635"},
		{set: peer("n2", "v1,7635"), shares: all, peers: "n1:7635 n2:7635 n3:7635 n4:7635"},
		{gone: "n4", shares: all, peers: "n1:7635 n2:7635 n3:7635"},
		{gone: "n1", shares: "", peers: "n2:7635 n3:7635"},
	} {
		before := s.Snapshot()
		switch {
		case step.set != nil:
			sink.Update([]model.Object{step.set}, nil)
		case step.gone != "":
			sink.Update(nil, []model.Ref{{Kind: model.KindNode, Name: step.gone}})
		}
		if shares, peers := edgeOf(s), showPeers(s); shares != step.shares || peers != step.peers {
			t.Fatalf("step %d: shares have %q, want %q; the peers are %q, want %q", i, shares, step.shares, peers, step.peers)
		}
		if after := s.Snapshot(); i > 0 && after.Revision() != before.Revision()+1 {
			t.Errorf("step %d: shares and peers are in revisions up to %d, not in the one after %d", i, after.Revision(), before.Revision())
		}
		if !slices.IsSortedFunc(s.Snapshot().Node().Peers, func(a, b state.Peer) int { return a.Compare(&b) }) {
			t.Errorf("step %d: the peers are not in order", i)
		}
	}
	if s.Snapshot().Node().Peers[0].PodCIDRs[0].String() != "10.3.0.0/24" {
		t.Errorf("the first peer is %+v", s.Snapshot().Node().Peers[0])
	}
}

// TestEdgeIsOff: without the edge, a store knows no other Nodes. It stays off, or on, with another configuration.
func TestEdgeIsOff(t *testing.T) {
	s, _, _ := edgeStore(t, brain.Edge{}, 0)
	if got := edgeOf(s); got != "no edge" || len(s.Snapshot().Node().Peers) > 0 || len(s.objects.edge.known) > 0 || s.objects.places != nil {
		t.Errorf("shares have %q, the peers are %q, and %d Nodes are known", got, showPeers(s), len(s.objects.edge.known))
	}
	s.Reconfigure(brain.Config{Edge: brain.Edge{Enabled: true}}, Budgets{})
	if got := edgeOf(s); got != "no edge" || s.Edge().Enabled {
		t.Errorf("a store that knows no other Nodes has %q", got)
	}
	s, _, _ = edgeStore(t, brain.Edge{Enabled: true}, 0)
	s.Reconfigure(brain.Config{Edge: brain.Edge{Annotated: true}}, Budgets{})
	if got := edgeOf(s); got != "no edge" || showPeers(s) != "n1:7635 n2:7635 n3:7635" {
		t.Errorf("for annotated Services, shares have %q, and the peers are %q", got, showPeers(s))
	}
	s.Reconfigure(brain.Config{}, Budgets{})
	if got := edgeOf(s); got != "n1 n2 n3" {
		t.Errorf("for all Services, shares have %q", got)
	}
}

// TestEdgeIsReported: bad annotations, names with the same hash and the numbers of Nodes are in the log, the problems and the reasons.
func TestEdgeIsReported(t *testing.T) {
	s, sink, logs := edgeStore(t, brain.Edge{Enabled: true}, 0)
	sink.Update([]model.Object{peer("n2", "v2,7635"), peer("n5", "7635")}, nil)
	sink.Update([]model.Object{peer("n-cd0200255", "v1,7635"), peer("n-fc845fb54", "v1,7635")}, nil)
	e := s.Edge()
	if !e.Enabled || e.Nodes != 6 || e.Part != 2 || e.Rejected != 0 || len(e.Problems) != 3 {
		t.Errorf("the edge is %+v", e)
	}
	text := fmt.Sprint(s.Problems())
	for _, want := range []string{
		`node n2: metadata.annotations[switchyard.net/edge]: "v2,7635" is not "v1," and a UDP port`, `node n5: metadata.annotations[switchyard.net/edge]: "7635"`,
		"node n-cd0200255 and node n-fc845fb54: their names have the same hash, 09dab5cb",
	} {
		if !strings.Contains(text, want) || strings.Count(strings.ReplaceAll(logs.String(), `\"`, `"`), want) != 1 {
			t.Errorf("%s is not in the problems, or not once in the log:\n%s\n%s", want, text, logs)
		}
	}
	why := s.Explain(state.ServiceName{Namespace: "ns", Name: "a"})
	if p := &why.Ports[0]; p.Edge != brain.EdgeNodeApart || p.EdgeNode != "n2" {
		t.Errorf("the reason is %q and node %q", p.Edge, p.EdgeNode)
	}
	sink.Update([]model.Object{peer("n2", "v1,7635"), peer("n5", "")}, []model.Ref{{Kind: model.KindNode, Name: "n-cd0200255"}})
	if e := s.Edge(); e.Part != 4 || len(e.Problems) != 0 || edgeOf(s) != "n1 n2 n3" {
		t.Errorf("the edge is %+v, and shares have %q", e, edgeOf(s))
	}
	for _, want := range []string{
		`msg="nodes take part in the edge" nodes="[n1 n2 n3]" count=3`, `msg="nodes no longer take part in the edge" nodes=[n2] count=1`,
		`msg="nodes take part in the edge" nodes="[n-fc845fb54 n2]" count=2`,
	} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, logs)
		}
	}
}

// TestEdgePause: after a change of the peers, further changes wait, for longer with more Nodes. They come in one revision.
func TestEdgePause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink, _ := edgeStore(t, brain.Edge{Enabled: true}, peerPause)
		time.Sleep(time.Second)
		sink.Update([]model.Object{peer("n2", "")}, nil)
		if got := edgeOf(s); got != "" {
			t.Errorf("after a pause, shares have %q", got)
		}
		before := s.Snapshot().Revision()
		sink.Update([]model.Object{peer("n2", "v1,7635")}, nil)
		sink.Update([]model.Object{peer("n3", "v1,1")}, nil)
		set(t, sink, "service ns/b 10.96.0.2:80")
		if got := s.Snapshot(); got.Revision() != before+1 || showPeers(s) != "n1:7635 n2 n3:7635" {
			t.Errorf("revision %d, want %d; the peers are %q", got.Revision(), before+1, showPeers(s))
		}
		time.Sleep(3*peerPause - time.Nanosecond)
		if got := showPeers(s); got != "n1:7635 n2 n3:7635" {
			t.Errorf("in the pause, the peers are %q", got)
		}
		time.Sleep(time.Nanosecond)
		synctest.Wait()
		if got := s.Snapshot(); got.Revision() != before+2 || showPeers(s) != "n1:7635 n2:7635 n3:1" || edgeOf(s) != "n1 n2 n3" {
			t.Errorf("revision %d, want %d; the peers are %q, and shares have %q", got.Revision(), before+2, showPeers(s), edgeOf(s))
		}
		// A change that is taken back is none, and no timer outlives the store.
		sink.Update([]model.Object{peer("n3", "")}, nil)
		sink.Update([]model.Object{peer("n3", "v1,1")}, nil)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := s.Snapshot().Revision(); got != before+2 {
			t.Errorf("revision %d, want %d", got, before+2)
		}
		sink.Update([]model.Object{peer("n2", "")}, nil)
		sink.Update([]model.Object{peer("n3", "")}, nil)
		if s.edgeJudgment == nil {
			t.Error("no judgment is due")
		}
		s.Close()
		sink.Update([]model.Object{peer("n1", "")}, nil)
		if s.edgeJudgment != nil {
			t.Error("a judgment is due after the store is closed")
		}
	})
}

// TestEdgeConcernsFew: a Node that begins or ceases to take part costs the services with endpoints on it. What else changes of a Node costs none.
func TestEdgeConcernsFew(t *testing.T) {
	s, sink, _ := edgeStore(t, brain.Edge{Enabled: true}, 0)
	for i := range 20 {
		set(t, sink, fmt.Sprintf("service ns/b%d 10.96.1.%d:80; slice ns/b%d-1 b%d 10.1.0.9", i, i, i, i))
	}
	moved := peer("n2", "v1,7635")
	moved.Addresses = append(moved.Addresses, netip.MustParseAddr("fd00::2"))
	for i, step := range []struct {
		node *model.Node
		want int
	}{{peer("n2", ""), 1}, {peer("n2", "v1,7635"), 1}, {peer("n2", "v1,7636"), 0}, {moved, 0}, {peer("n9", "v1,7635"), 0}, {peer("n1", "v1,7636"), 0}, {peer("n1", ""), 1}} {
		s.mu.Lock()
		s.objects.put(step.node)
		s.judgeNodes()
		if got := len(s.objects.dirty); got != step.want {
			t.Errorf("step %d: %d services are computed again, want %d", i, got, step.want)
		}
		s.publish()
		s.mu.Unlock()
	}
	if on := s.objects.places; len(on["n2"]) != 1 || len(on["n3"]) != 1 {
		t.Errorf("services by node: %v", on)
	}
}

// TestEdgeFlood: Nodes fill their budget in bytes, and those that had room take part as before.
func TestEdgeFlood(t *testing.T) {
	s, sink, logs := edgeStore(t, brain.Edge{Enabled: true}, 0)
	flood := maxPeerBytes/(253+peerCost) + 100
	var add []model.Object
	var names []model.Ref
	for i := range flood {
		n := peer(fmt.Sprintf("%0253d", i), strings.Repeat("x", 256))
		add, names = append(add, n), append(names, n.Ref())
	}
	sink.Update(add, nil)
	e := &s.objects.edge
	if e.bytes > maxPeerBytes || len(e.known) >= flood || s.Edge().Rejected == 0 || len(s.Edge().Problems) != maxListed+1 || !strings.Contains(fmt.Sprint(s.Problems()), "more problems keep nodes") {
		t.Errorf("%d nodes take %d bytes; the edge is %+v", len(e.known), e.bytes, s.Edge())
	}
	if n := strings.Count(logs.String(), "a node takes no part"); n > 2*maxListed {
		t.Errorf("there are %d log lines", n)
	}
	if got := edgeOf(s); got != "n1 n2 n3" {
		t.Errorf("shares have %q", got)
	}
	sink.Update(nil, names)
	if got := edgeOf(s); got != "n1 n2 n3" || len(e.known) != 3 || len(e.faults) > 0 {
		t.Errorf("without the flood, %d nodes take %d bytes, and shares have %q", len(e.known), e.bytes, got)
	}
	// A Node with very many addresses takes no more room than others.
	large := peer("n2", "v1,7635")
	for i := range 100_000 {
		large.Addresses = append(large.Addresses, netip.AddrFrom4([4]byte{172, byte(i >> 16), byte(i >> 8), byte(i)}))
	}
	sink.Update([]model.Object{large}, nil)
	if p := e.known["n2"]; len(p.Addresses) != model.MostOfNode || cap(p.Addresses) > 2*model.MostOfNode {
		t.Errorf("it has %d addresses", len(p.Addresses))
	}
}
