package store

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

func newStore(t testing.TB) (*Store, model.Sink) {
	s := New(Options{Brain: brain.Config{NodeName: "n1"}})
	t.Cleanup(s.Close)
	return s, s.Source("test")
}

func set(t *testing.T, sink model.Sink, text string) {
	t.Helper()
	sink.Update(parseObjects(t, text))
}

func TestNextBlocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		var got []*state.Update
		var wg sync.WaitGroup
		results := make(chan *state.Update, 3)
		for range 3 {
			wg.Go(func() {
				u, err := s.Next(t.Context(), 0)
				if err != nil {
					t.Error(err)
				}
				results <- u
			})
		}
		synctest.Wait()
		if len(results) > 0 {
			t.Fatal("Next returned before there was a state")
		}
		sink.Complete()
		wg.Wait()
		for range 3 {
			got = append(got, <-results)
		}
		for _, u := range got {
			if u.Revision != 1 || !u.Full || len(u.Changed) != 0 || u.Node.Name != "n1" {
				t.Errorf("got %+v, want the empty state", u)
			}
		}
	})
}

func TestNextEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		sink.Complete()
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := s.Next(ctx, 1)
			done <- err
		}()
		synctest.Wait()
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v, want that the context ended", err)
		}
	})
}

func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, sink := newStore(t)
		sink.Complete()
		done := make(chan error, 2)
		for range 2 {
			go func() {
				_, err := s.Next(t.Context(), 1)
				done <- err
			}()
		}
		synctest.Wait()
		s.Close()
		s.Close()
		set(t, sink, "service default/late 10.96.0.1:80")
		_, err := s.Next(t.Context(), 0)
		for _, err := range []error{err, <-done, <-done} {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("got %v, want ErrClosed", err)
			}
		}
		if got := s.Snapshot().Revision(); got != 1 {
			t.Errorf("revision %d was published after Close", got)
		}
	})
}

// TestNextWithRevisionOfAnotherStore is about a consumer that knows revisions of a store that is gone.
func TestNextWithRevisionOfAnotherStore(t *testing.T) {
	s, sink := newStore(t)
	set(t, sink, "service default/a 10.96.0.1:80")
	sink.Complete()
	u, err := s.Next(t.Context(), 77)
	if err != nil || !u.Full || u.Revision != 1 || len(u.Changed) != 1 {
		t.Errorf("got %+v, %v, want the full state", u, err)
	}
}

func TestSnapshotIsImmutable(t *testing.T) {
	s, sink := newStore(t)
	before := s.Snapshot()
	if before.Revision() != 0 || before.Len() != 0 || before.Node() == nil {
		t.Errorf("got revision %d with %d services and node %v, want nothing yet", before.Revision(), before.Len(), before.Node())
	}
	set(t, sink, "service b/a 10.96.0.1:80; service a/z 10.96.0.2:80; service a-b/a 10.96.0.3:80; service a/a 10.96.0.4:80")
	sink.Complete()
	first := s.Snapshot()
	set(t, sink, "delete service a/a; service c/c 10.96.0.5:80; node n1 192.0.2.1")

	var names []string
	for r := range first.Services() {
		names = append(names, r.Name.String())
	}
	if want := []string{"a/a", "a/z", "a-b/a", "b/a"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v, ordered by name", names, want)
	}
	if first.Get(parseName("a/a")) == nil || first.Get(parseName("c/c")) != nil || first.Len() != 4 || len(first.Node().Addresses) != 0 {
		t.Error("a snapshot changed after it was taken")
	}
	if now := s.Snapshot(); now.Get(parseName("a/a")) != nil || now.Get(parseName("c/c")) == nil || now.Revision() != 2 {
		t.Error("the new snapshot does not show the change")
	}
	for range first.Services() {
		break // an early end is fine
	}
}

// TestReadersDuringUpdates runs consumers and snapshot readers against two sources. Every consumer must end with the
// last state, and services that are always set in pairs must never appear apart.
func TestReadersDuringUpdates(t *testing.T) {
	s := New(Options{Brain: brain.Config{NodeName: "n1"}})
	defer s.Close()
	const rounds = 500
	var done atomic.Bool
	var sources, readers sync.WaitGroup
	for i, ns := range []string{"x", "y"} {
		sink := s.Source(ns)
		sources.Go(func() {
			sink.Complete()
			for n := range rounds {
				a := &model.Service{Name: state.ServiceName{Namespace: ns, Name: "a"}, ClusterIPs: parseService(t, "x/a", []string{"10.96.0.1:1"}).ClusterIPs,
					Ports: []model.ServicePort{{Protocol: state.TCP, Port: uint16(1 + 2*n + 5000*i)}}}
				b := *a
				b.Name.Name = "b"
				b.Ports = []model.ServicePort{{Protocol: state.TCP, Port: a.Ports[0].Port + 1}}
				sink.Update([]model.Object{a, &b}, nil)
			}
		})
	}
	check := func(get func(name string) *state.Service) {
		for _, ns := range []string{"x/", "y/"} {
			a, b := get(ns+"a"), get(ns+"b")
			if (a == nil) != (b == nil) || a != nil && a.Ports[0].Frontends[0].Port+1 != b.Ports[0].Frontends[0].Port {
				t.Errorf("%v and %v were seen apart", a, b)
			}
		}
	}
	for range 2 {
		readers.Go(func() {
			for !done.Load() {
				snapshot := s.Snapshot()
				check(func(name string) *state.Service { return snapshot.Get(parseName(name)) })
			}
		})
		readers.Go(func() {
			held := replica{}
			get := func(name string) *state.Service { return held.services[parseName(name)] }
			isLast := func(a *state.Service, port uint16) bool { return a != nil && a.Ports[0].Frontends[0].Port == port }
			for !isLast(get("x/a"), 2*rounds-1) || !isLast(get("y/a"), 5000+2*rounds-1) {
				if !held.apply(t, s) {
					return
				}
				check(get)
			}
		})
	}
	sources.Wait()
	done.Store(true)
	readers.Wait()
}
