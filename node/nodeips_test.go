package node

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/model"
)

// lastNode is a sink that remembers the addresses of the Node.
type lastNode struct {
	addresses []netip.Addr
	updates   int
	others    int
}

func (s *lastNode) Update(set []model.Object, deleted []model.Ref) {
	s.updates++
	for _, o := range set {
		if n, ok := o.(*model.Node); ok {
			s.addresses = n.Addresses
		} else {
			s.others++
		}
	}
	if len(deleted) > 0 {
		s.addresses = nil
	}
}

func (s *lastNode) Complete() {}

// TestNodeIPs lets the configuration change before, while and after there is a Node.
func TestNodeIPs(t *testing.T) {
	addrs := func(list ...string) (out []netip.Addr) {
		for _, a := range list {
			out = append(out, netip.MustParseAddr(a))
		}
		return out
	}
	with := func(policy config.IPFamilyPolicy, override ...string) *config.Config {
		c := config.Default()
		c.IPFamilyPolicy, c.NodeIPOverride = policy, addrs(override...)
		return c
	}
	var got lastNode
	faults := 0
	sink := &nodeIPs{Sink: &got, name: "n", config: with(""), fault: func(error) { faults++ }}
	want := func(what string, updates int, list ...string) {
		t.Helper()
		if !slices.Equal(got.addresses, addrs(list...)) || got.updates != updates {
			t.Errorf("%s: the node has %v after %d updates, want %v after %d", what, got.addresses, got.updates, list, updates)
		}
	}
	node := &model.Node{Name: "n", Addresses: addrs("10.0.0.1", "fd00::1")}
	service := &model.Service{}

	sink.set(with("", "10.0.0.2"))
	want("there is no Node to change", 0)
	sink.Update([]model.Object{service, node}, nil)
	want("the override counts", 1, "10.0.0.2")
	sink.set(with("", "10.0.0.3"))
	want("another override", 2, "10.0.0.3")
	sink.set(with("", "10.0.0.3"))
	want("the same override", 2, "10.0.0.3")
	sink.set(with(config.SingleStack))
	want("a policy", 3, "10.0.0.1")
	sink.set(with(config.RequireDualStack))
	want("the Node's own", 4, "10.0.0.1", "fd00::1")
	if faults > 0 {
		t.Errorf("%d faults of a node with both families", faults)
	}
	sink.Update([]model.Object{&model.Node{Name: "n", Addresses: addrs("10.0.0.1")}}, nil)
	if want("a Node of one family", 5, "10.0.0.1"); faults != 1 {
		t.Errorf("%d faults of a node without IPv6, want 1", faults)
	}
	sink.set(with("", "10.0.0.4"))
	want("an override again", 6, "10.0.0.4")
	other := &model.Node{Name: "other", Addresses: addrs("10.0.0.9")}
	sink.Update([]model.Object{other}, nil)
	want("another Node keeps its addresses", 7, "10.0.0.9")
	sink.Update(nil, []model.Ref{other.Ref()})
	sink.set(with("", "10.0.0.5"))
	want("another Node is gone", 9, "10.0.0.5")
	sink.Update(nil, []model.Ref{node.Ref()})
	sink.set(with("", "10.0.0.6"))
	want("the Node is gone", 10)
	if len(node.Addresses) != 2 || got.others != 1 {
		t.Errorf("the Node that was delivered has %v, and %d other objects came through, want both addresses and 1", node.Addresses, got.others)
	}
}

// TestNodeIPFault: a node without the addresses that it must have ends the process at its start, if a broken configuration may.
func TestNodeIPFault(t *testing.T) {
	for _, tt := range []struct {
		name             string
		hard, programmed bool
		ends             bool
	}{
		{"at the start", true, false, true},
		{"at the start, softly", false, false, false},
		{"later", true, true, false},
	} {
		n := &Node{ready: make(chan struct{}), log: slog.New(slog.DiscardHandler), group: newGroup(t.Context())}
		c := config.Default()
		c.ConfigHardFail = tt.hard
		n.config.Store(c)
		if tt.programmed {
			close(n.ready)
		}
		n.nodeIPFault(errors.New("one family only"))
		if ended := n.group.wait(); (ended != nil) != tt.ends {
			t.Errorf("%s: the process ended with %v", tt.name, ended)
		}
	}
}
