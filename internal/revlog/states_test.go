package revlog_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/revlog"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

var errClosed = errors.New("closed")

// origin is a store that can be replaced by a new one with the same objects.
type origin struct {
	*store.Store
	sink    model.Sink
	objects map[model.Ref]model.Object
}

func (o *origin) restart() {
	if o.Store != nil {
		o.Close()
	}
	o.Store = store.New(store.Options{Brain: brain.Config{NodeName: "node-a"}})
	o.sink = o.Source("test")
	for _, obj := range o.objects {
		o.sink.Update([]model.Object{obj}, nil)
	}
	o.sink.Complete()
}

func (o *origin) update(set []model.Object, deleted []model.Ref) {
	for _, ref := range deleted {
		delete(o.objects, ref)
	}
	for _, obj := range set {
		o.objects[obj.Ref()] = obj
	}
	o.sink.Update(set, deleted)
}

// poll returns the next update, or nil if there is none.
func poll(t *testing.T, feed state.Feed, after state.Revision) *state.Update {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that Next does not wait
	u, err := feed.Next(ctx, after)
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	return u
}

// TestStatesFollowsItsOrigin feeds a replica with the updates of a store, of which it misses some pauses, and which is
// restarted now and then. A second replica follows the first, at its own pace.
func TestStatesFollowsItsOrigin(t *testing.T) {
	for seed := range uint64(150) {
		rng := rand.New(rand.NewPCG(seed, 1))
		h := randcluster.New(seed, randcluster.Options{NodeName: "node-a"})
		o := &origin{objects: make(map[model.Ref]model.Object)}
		o.restart()
		first, second := revlog.NewStates(&state.Node{Name: "node-a"}, errClosed), revlog.NewStates(&state.Node{Name: "node-a"}, errClosed)
		var atOrigin, atFirst state.Revision
		for step := range 40 {
			o.update(h.Step())
			if rng.IntN(8) == 0 {
				o.restart()
				atOrigin = 0
			}
			if rng.IntN(3) == 0 {
				continue
			}
			previous := first.Snapshot()
			if u := poll(t, o, atOrigin); u != nil {
				first.Apply(u)
				atOrigin = u.Revision
			}
			if err := same(first, o.Store); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
			if now := first.Snapshot(); now.Revision() != previous.Revision() && previous.Revision() > 0 {
				if u := poll(t, first, previous.Revision()); u == nil || u.Full {
					t.Fatalf("seed %d, step %d: from revision %d the replica has %+v, want what is different", seed, step, previous.Revision(), u)
				}
				if equal(first, previous) {
					t.Fatalf("seed %d, step %d: revision %d is equal to the one before", seed, step, now.Revision())
				}
			}
			if rng.IntN(2) == 0 {
				if u := poll(t, first, atFirst); u != nil {
					if u.Revision <= atFirst {
						t.Fatalf("seed %d, step %d: revision %d came after %d", seed, step, u.Revision, atFirst)
					}
					second.Apply(u)
					atFirst = u.Revision
				}
				if err := same(second, o.Store); err != nil {
					t.Fatalf("seed %d, step %d, second replica: %v", seed, step, err)
				}
			}
		}
		o.Close()
	}
}

// snapshot is a state, with the methods that replicas and stores share.
type snapshot interface {
	Node() *state.Node
	Len() int
	Get(state.ServiceName) *state.Service
}

func same(r *revlog.States, o *store.Store) error {
	if got, want := r.Snapshot(), o.Snapshot(); !equal(r, want) {
		return fmt.Errorf("the replica holds %d services and %+v, the origin %d and %+v", got.Len(), got.Node(), want.Len(), want.Node())
	}
	return nil
}

func equal(r *revlog.States, want snapshot) bool {
	got := r.Snapshot()
	for record := range got.Services() {
		if other := want.Get(record.Name); other == nil || !other.Equal(record) {
			return false
		}
	}
	return got.Len() == want.Len() && got.Node().Equal(want.Node())
}

func record(name string, port uint16) *state.Service {
	return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, HealthCheck: state.HealthCheck{Port: port}}
}

// TestStatesHandsOutDifferences is about a full update, which the consumers of the replica see as a difference.
func TestStatesHandsOutDifferences(t *testing.T) {
	r := revlog.NewStates(&state.Node{Name: "n1"}, errClosed)
	node := &state.Node{Name: "n1"}
	r.Apply(&state.Update{Revision: 4, Node: node, Changed: []*state.Service{record("a", 1)}})
	if s := r.Snapshot(); s.Revision() != 0 || s.Len() != 0 || s.Node().Name != "n1" {
		t.Fatalf("a replica that holds nothing took a difference: %+v", s)
	}
	a := record("a", 1)
	r.Apply(&state.Update{Revision: 7, Full: true, Node: node, Changed: []*state.Service{a, record("b", 1), record("c", 1)}})

	held := r.Snapshot().Node()
	at := []time.Time{time.Unix(1, 0), time.Unix(2, 0)}
	r.Apply(&state.Update{Revision: 3, Full: true, Node: &state.Node{Name: "n1"}, Triggers: at,
		Changed: []*state.Service{record("a", 1), record("b", 2), record("d", 1)}})
	u := poll(t, r, 1)
	if u == nil || u.Full || u.Revision != 2 || len(u.Changed) != 2 || u.Changed[0].Name.Name != "b" || u.Changed[1].Name.Name != "d" ||
		len(u.Removed) != 1 || u.Removed[0].Name != "c" || len(u.Triggers) != 2 {
		t.Errorf("got %+v, want b and d changed, c removed, and two triggers", u)
	}
	if u != nil && u.Node != held || r.Snapshot().Get(a.Name) != a {
		t.Error("what is equal was replaced")
	}

	r.Apply(&state.Update{Revision: 9, Node: node, Changed: []*state.Service{record("a", 1)}, Removed: []state.ServiceName{{Name: "unknown"}}, Triggers: at})
	if u := poll(t, r, 2); u != nil {
		t.Errorf("an update without news was handed on: %+v", u)
	}
	r.Apply(&state.Update{Revision: 10, Node: &state.Node{Name: "n1", PodCIDRs: nil, Addresses: nil, ServiceCIDRs: nil}, Removed: []state.ServiceName{a.Name}})
	if u := poll(t, r, 2); u == nil || len(u.Removed) != 1 || u.Removed[0] != a.Name {
		t.Errorf("got %+v, want a removed", u)
	}
}

func TestStatesIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := revlog.NewStates(&state.Node{Name: "n1"}, errClosed)
		done := make(chan error, 1)
		go func() {
			_, err := r.Next(t.Context(), 0)
			done <- err
		}()
		synctest.Wait()
		r.Close()
		r.Apply(&state.Update{Revision: 1, Full: true, Node: &state.Node{Name: "n1"}})
		if err := <-done; !errors.Is(err, errClosed) || r.Snapshot().Revision() != 0 {
			t.Errorf("got %v and revision %d, want ErrClosed and nothing applied", err, r.Snapshot().Revision())
		}
	})
}
