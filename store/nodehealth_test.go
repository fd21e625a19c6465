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

// healthRule is the rule of these tests.
var healthRule = brain.NodeHealth{Enabled: true, NotReadyAfter: 40 * time.Second, IgnoreAbove: 55}

// healthStore has a service with an endpoint on each of three nodes, n1, n2 and n3, which are ready.
func healthStore(t *testing.T, rule brain.NodeHealth) (s *Store, sink model.Sink, logs *bytes.Buffer) {
	t.Helper()
	logs = &bytes.Buffer{}
	s = New(Options{Brain: brain.Config{NodeName: "n1", NodeHealth: rule}, Logger: slog.New(slog.NewTextHandler(logs, nil))})
	t.Cleanup(s.Close)
	sink = s.Source("test")
	var set []model.Object
	slice := &model.EndpointSlice{Namespace: "ns", Name: "a-1", Service: "a", Family: state.IPv4, Ports: []model.EndpointPort{{Protocol: state.TCP, Port: 80}}}
	for i, name := range []string{"n1", "n2", "n3"} {
		set = append(set, &model.Node{Name: name})
		slice.Endpoints = append(slice.Endpoints, model.Endpoint{Addr: netip.AddrFrom4([4]byte{10, 1, 0, byte(i + 1)}), NodeName: name, Ready: true, Serving: true})
	}
	sink.Update(append(set, slice, &model.Service{
		Name: state.ServiceName{Namespace: "ns", Name: "a"}, ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
		Ports: []model.ServicePort{{Protocol: state.TCP, Port: 80}},
	}), nil)
	sink.Complete()
	return s, sink, logs
}

// chosen are the last numbers of the addresses that get connections.
func chosen(s *Store) (numbers string) {
	for _, e := range s.Snapshot().Get(state.ServiceName{Namespace: "ns", Name: "a"}).Ports[0].Internal.Inside.Endpoints {
		b := e.Addr.Addr().As4()
		numbers += fmt.Sprint(b[3])
	}
	return numbers
}

// TestNodeHealth tells stories of nodes. Each step sets the health of a node, "-" for its deletion, or lets time pass, and then has the endpoints
// that get connections.
func TestNodeHealth(t *testing.T) {
	const ready, notReady, shutdown, silent = model.NodeReady, model.NodeNotReady, model.NodeShuttingDown, model.NodeSilent
	type step struct {
		node   string
		health model.NodeHealth
		ago    time.Duration // of the transition, negative for none known
		pass   time.Duration
		want   string
	}
	for name, story := range map[string][]step{
		"a node shuts down and comes back": {
			{node: "n2", health: shutdown, want: "13"}, {pass: time.Hour, want: "13"}, {node: "n2", want: "123"},
		},
		"a machine is off after its shutdown": {
			{node: "n2", health: shutdown, want: "13"}, {node: "n2", health: silent, pass: time.Second, want: "13"}, {node: "n2", want: "123"},
		},
		"a shutdown is cancelled while something else is wrong": {
			{node: "n2", health: shutdown, want: "13"}, {node: "n2", health: notReady, want: "123"}, {pass: 40 * time.Second, want: "13"},
		},
		"a node is not ready for long": {
			{node: "n2", health: notReady, want: "123"}, {pass: 39 * time.Second, want: "123"}, {pass: time.Second, want: "13"}, {node: "n2", want: "123"},
		},
		"a node was not ready before the process started": {
			{node: "n2", health: notReady, ago: 30 * time.Second, want: "123"}, {pass: 10 * time.Second, want: "13"},
		},
		"a node says nothing about the transition": {
			{node: "n2", health: silent, ago: -1, want: "123"}, {pass: 40 * time.Second, want: "13"},
		},
		"the clock of a node is ahead": {
			{node: "n2", health: notReady, ago: -time.Hour, want: "123"}, {pass: 40 * time.Second, want: "13"},
		},
		"the condition changes from False to Unknown": {
			{node: "n2", health: notReady, want: "123"}, {pass: 30 * time.Second, want: "123"}, {node: "n2", health: silent, want: "123"},
			{pass: 10 * time.Second, want: "13"},
		},
		"a node flaps": {
			{node: "n2", health: notReady, want: "123"}, {pass: 30 * time.Second, node: "n2", want: "123"}, {node: "n2", health: notReady, want: "123"},
			{pass: 30 * time.Second, want: "123"},
		},
		"the control plane is broken": {
			{node: "n2", health: silent, want: "123"}, {pass: 10 * time.Second, want: "123"}, {node: "n3", health: silent, want: "123"},
			{pass: time.Hour, want: "123"}, {node: "n3", want: "13"},
		},
		"further nodes end the rule, and others bring it back": {
			{node: "n2", health: shutdown, want: "13"}, {node: "n3", health: notReady, want: "123"}, {node: "n4", want: "13"}, {node: "-n4", want: "123"},
		},
		"a node is deleted":    {{node: "n2", health: shutdown, want: "13"}, {node: "-n2", want: "123"}},
		"this node shuts down": {{node: "n1", health: shutdown, want: "23"}},
		"all endpoints are on such nodes": {
			{node: "n4", want: "123"}, {node: "n5", want: "123"}, {node: "n6", want: "123"}, {node: "n1", health: shutdown, want: "23"},
			{node: "n2", health: shutdown, want: "3"}, {node: "n3", health: shutdown, want: "123"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s, sink, _ := healthStore(t, healthRule)
				for i, step := range story {
					time.Sleep(step.pass)
					if name, gone := strings.CutPrefix(step.node, "-"); gone {
						sink.Update(nil, []model.Ref{{Kind: model.KindNode, Name: name}})
					} else if name != "" {
						n := &model.Node{Name: name, Health: step.health}
						if step.health != ready && step.ago != -1 {
							n.HealthSince = time.Now().Add(-step.ago).UTC()
						}
						sink.Update([]model.Object{n}, nil)
					}
					synctest.Wait()
					if got := chosen(s); got != step.want {
						t.Fatalf("step %d: connections go to %s, want %s", i, got, step.want)
					}
				}
			})
		})
	}
}

// TestNodeHealthIsOff has no endpoint come last without the rule, and ends and begins with the rule.
func TestNodeHealthIsOff(t *testing.T) {
	s, sink, _ := healthStore(t, brain.NodeHealth{})
	sink.Update([]model.Object{&model.Node{Name: "n2", Health: model.NodeShuttingDown}}, nil)
	if got := chosen(s); got != "123" || s.objects.places != nil {
		t.Errorf("without the rule, connections go to %s, and services are indexed: %v", got, s.objects.places != nil)
	}
	for _, rule := range []brain.NodeHealth{healthRule, {}, healthRule} {
		want := "123"
		if rule.Enabled {
			want = "13"
		}
		s.Reconfigure(brain.Config{NodeHealth: rule}, Budgets{})
		if got := chosen(s); got != want {
			t.Errorf("with %+v, connections go to %s, want %s", rule, got, want)
		}
	}
}

// TestNodeHealthIsReported names the nodes and the numbers, in the log and to those who ask.
func TestNodeHealthIsReported(t *testing.T) {
	s, sink, logs := healthStore(t, healthRule)
	sink.Update([]model.Object{&model.Node{Name: "n2", Health: model.NodeShuttingDown}}, nil)
	if h := s.NodeHealth(); !h.Enabled || h.Nodes != 3 || h.NotReady != 1 || h.Ignored || !slices.Equal(h.Last, []string{"n2"}) {
		t.Errorf("the health is %+v", h)
	}
	e := s.Explain(state.ServiceName{Namespace: "ns", Name: "a"})
	if c := e.UnreadyNodes["n2"]; len(e.UnreadyNodes) != 1 || c.Health != model.NodeShuttingDown {
		t.Errorf("the explanation has the nodes %v", e.UnreadyNodes)
	}
	sink.Update([]model.Object{&model.Node{Name: "n3", Health: model.NodeNotReady}}, nil)
	if h := s.NodeHealth(); h.NotReady != 2 || !h.Ignored || len(h.Last) > 0 {
		t.Errorf("the health is %+v", h)
	}
	sink.Update([]model.Object{&model.Node{Name: "n3"}}, nil)
	for _, want := range []string{
		`msg="endpoints of unready nodes come last" nodes=[n2] count=1`, `msg="endpoints of nodes no longer come last" nodes=[n2] count=1`,
		`msg="no endpoint comes last because of its node: too many nodes are not ready" notReady=2 nodes=3 mostPercent=55`,
		`msg="the health of nodes counts again" notReady=1 nodes=3`,
	} {
		if !strings.Contains(logs.String(), want) {
			t.Errorf("the log lacks %s:\n%s", want, logs)
		}
	}
}

// TestNodeFlood has nodes with names of any length fill their budget, and others are judged as before.
func TestNodeFlood(t *testing.T) {
	s, sink, logs := healthStore(t, healthRule)
	flood := maxNodeBytes/(253+nodeCost) + 100
	var set []model.Object
	var names []model.Ref
	for i := range flood {
		name := fmt.Sprintf("%0253d", i)
		set, names = append(set, &model.Node{Name: name}), append(names, model.Ref{Kind: model.KindNode, Name: name})
	}
	sink.Update(set, nil)
	h := &s.objects.health
	if h.bytes > maxNodeBytes || len(h.known) >= flood || !strings.Contains(logs.String(), "too many nodes") {
		t.Errorf("%d nodes take %d bytes; the log is %s", len(h.known), h.bytes, logs)
	}
	sink.Update([]model.Object{&model.Node{Name: "n2", Health: model.NodeShuttingDown}}, nil)
	if got := chosen(s); got != "13" {
		t.Errorf("connections go to %s, want 13", got)
	}
	sink.Update(nil, names)
	if got := chosen(s); got != "13" || len(h.known) != 3 || h.bytes != 3*(2+nodeCost) {
		t.Errorf("without the flood, %d nodes take %d bytes, and connections go to %s", len(h.known), h.bytes, got)
	}
}

// TestNodeHealthConcernsFew computes only the services on a node again, and forgets services that are gone.
func TestNodeHealthConcernsFew(t *testing.T) {
	s, sink, _ := healthStore(t, healthRule)
	set(t, sink, "service ns/b 10.96.0.2:80; slice ns/b-1 b 10.1.0.9")
	sink.Update([]model.Object{&model.EndpointSlice{Namespace: "ns", Name: "c-1", Service: "c", Endpoints: []model.Endpoint{{NodeName: "n2"}, {NodeName: "n2"}, {NodeName: "n9"}}}}, nil)
	sink.Update([]model.Object{&model.Node{Name: "n2", Health: model.NodeShuttingDown}}, nil)
	if on := s.objects.places; len(on["n2"]) != 2 || len(on["n9"]) != 1 {
		t.Errorf("services by node: %v", on)
	}
	before := s.Snapshot()
	sink.Update([]model.Object{&model.Node{Name: "n2"}}, nil)
	if after := s.Snapshot(); after.Get(state.ServiceName{Namespace: "ns", Name: "b"}) != before.Get(state.ServiceName{Namespace: "ns", Name: "b"}) {
		t.Error("a service without endpoints on the node was computed again")
	}
	for _, name := range []string{"a-1", "b-1", "c-1"} {
		sink.Update(nil, []model.Ref{{Kind: model.KindEndpointSlice, Namespace: "ns", Name: name}})
	}
	if on := s.objects.places; len(on) > 0 {
		t.Errorf("left over: %v", on)
	}
}

// TestNodeHealthEndsWithTheStore has no timer outlive the store.
func TestNodeHealthEndsWithTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink, _ := healthStore(t, healthRule)
		sink.Update([]model.Object{&model.Node{Name: "n2", Health: model.NodeNotReady}}, nil)
		if s.judgment == nil {
			t.Error("no judgment is due")
		}
		s.Close()
		sink.Update([]model.Object{&model.Node{Name: "n3", Health: model.NodeNotReady}}, nil)
		if s.judgment != nil {
			t.Error("a judgment is due after the store is closed")
		}
	})
}
