package store

import (
	"runtime"
	"slices"
	"testing"
	"weak"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// TestOverviewIsOfItsState: a node that asked before a change gets the state before it, even if that is computed late.
// A node that asks afterwards gets the state after it.
func TestOverviewIsOfItsState(t *testing.T) {
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update(concernObjects(func(services, slicesOf, nodes) {}), nil)
	sink.Complete()
	look := func() *look {
		c.feed.mu.Lock()
		defer c.feed.mu.Unlock()
		return c.feed.look(c.feed.node("n1"))
	}
	before := look()
	all := len(before.full().Changed)
	sink.Update(nil, []model.Ref{{Kind: model.KindService, Namespace: "ns", Name: "plain"}})
	after := look()
	for range 2 {
		if got := len(before.full().Changed); got != all {
			t.Errorf("before the change there were %d services, want %d", got, all)
		}
		if got := len(after.full().Changed); got != all-1 {
			t.Errorf("after it there are %d, want %d", got, all-1)
		}
	}
}

// TestRecordsOfSingleNodesAreNotKept: a service has a record for each node that one of its endpoints is on, and these
// records are unused once sent. The records of zones are for many nodes.
func TestRecordsOfSingleNodesAreNotKept(t *testing.T) {
	c := NewCluster(ClusterOptions{})
	defer c.Close()
	sink := c.Source("test")
	sink.Update(concernObjects(func(services, slicesOf, nodes) {}), nil)
	sink.Complete()
	record := func(node, service string) weak.Pointer[state.Service] {
		u, err := c.Node(node).Next(t.Context(), 0)
		if err != nil {
			t.Fatal(err)
		}
		i := slices.IndexFunc(u.Changed, func(s *state.Service) bool { return s.Name.Name == service })
		return weak.Make(u.Changed[i])
	}
	local, zonal := record("n1", "internal-local"), record("n3", "zonal")
	runtime.GC()
	if local.Value() != nil {
		t.Error("the record of a single node is kept")
	}
	if zonal.Value() == nil {
		t.Error("the record of a zone is not kept")
	}
}
