package server

import (
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

func formed() *state.Service {
	to := state.Route{Verdict: state.Forward, Endpoints: []state.Endpoint{{Addr: netip.MustParseAddrPort("10.1.0.1:80"), Weight: 80}}}
	return &state.Service{Ports: []state.Port{{
		Balance: state.HashClient, Ejection: true, DrainSeconds: 30, Internal: state.Traffic{Inside: to, Outside: to},
		Frontends: []state.Frontend{{Port: 80, Ping: true}},
	}}}
}

// TestFormsAreShared: clients that lack the same features get one record, whatever else they accept.
func TestFormsAreShared(t *testing.T) {
	var f forms
	u := &state.Update{Full: true, Changed: []*state.Service{{}, formed()}}
	if same, lacking := f.update(u, state.AllFeatures); same != u || lacking != nil {
		t.Error("a client that accepts all features gets another update")
	}
	plain := &state.Update{Full: true, Changed: u.Changed[:1]}
	if same, lacking := f.update(plain, 0); same != plain || lacking != nil {
		t.Error("an update without features is converted")
	}
	got := make([]*state.Update, 20)
	var all sync.WaitGroup
	for i := range got {
		all.Go(func() {
			accepted := state.Weights
			if i%2 == 0 {
				accepted |= state.Ranges // which the record does not use
			}
			got[i], _ = f.update(u, accepted)
		})
	}
	all.Wait()
	for _, v := range got {
		if v.Changed[0] != u.Changed[0] || v.Changed[1] == u.Changed[1] || v.Changed[1] != got[0].Changed[1] {
			t.Fatal("clients do not share the record")
		}
	}
	if _, lacking := f.update(u, state.Weights); len(lacking) != 4 || lacking[state.Ping] != 1 || lacking[state.Weights] != 0 {
		t.Errorf("it lacks %v", lacking)
	}
}

// TestFormsOfNodes: a client without the edge gets nodes without peers.
func TestFormsOfNodes(t *testing.T) {
	var f forms
	node := &state.Node{Name: "n", Peers: []state.Peer{{Name: "n"}}}
	u := &state.Update{Full: true, Node: node, Changed: []*state.Service{{}}}
	if same, _ := f.update(u, state.EdgeShares); same != u {
		t.Error("a client with the edge gets another update")
	}
	v, lacking := f.update(u, state.AllFeatures&^state.EdgeShares)
	if v == u || len(v.Node.Peers) > 0 || v.Node.Name != "n" || v.Changed[0] != u.Changed[0] || len(lacking) > 0 || u.Node != node || len(node.Peers) != 1 {
		t.Errorf("got %+v, which lacks %v", v, lacking)
	}
}

// TestFormsAreBounded: a client that names another set with each call makes the server keep no more than a few forms of a record.
func TestFormsAreBounded(t *testing.T) {
	var f forms
	kept := formed()
	u := &state.Update{Changed: []*state.Service{kept, formed()}}
	for range 3 {
		for accepted := range state.AllFeatures + 1 {
			v, _ := f.update(u, accepted)
			if want, _ := kept.For(accepted); !v.Changed[0].Equal(want) {
				t.Fatalf("for %v: got %+v", accepted, v.Changed[0])
			}
		}
	}
	if len(f.made) != 2 {
		t.Errorf("forms of %d records are kept, want 2", len(f.made))
	}
	// The forms of a record that nobody has go with it.
	u.Changed = nil
	for range 100 {
		runtime.GC()
		f.mu.Lock()
		n := len(f.made)
		f.mu.Unlock()
		if n == 1 {
			runtime.KeepAlive(kept)
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("the forms of a record outlive it")
}
