package objectlog

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

func namespace(name string) model.Object { return &model.Namespace{Name: name} }

func disabled(name string) model.Object { return &model.Namespace{Name: name, ProxyDisabled: true} }

func ref(name string) model.Ref { return model.Ref{Kind: model.KindNamespace, Name: name} }

func refs(names ...string) (list []model.Ref) {
	for _, name := range names {
		list = append(list, ref(name))
	}
	return list
}

// newsOf describes the next update of a consumer at revision after: "nothing" if it would have to wait.
func newsOf(t *testing.T, f *Feed, after state.Revision) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	u, err := f.Next(ctx, after)
	switch {
	case errors.Is(err, context.Canceled):
		return "nothing"
	case err != nil:
		return err.Error()
	}
	var words []string
	for _, obj := range u.Set {
		word := obj.Ref().Name
		if n, ok := obj.(*model.Namespace); ok && n.ProxyDisabled {
			word += "!"
		}
		words = append(words, word)
	}
	slices.Sort(words)
	for _, r := range u.Deleted {
		words = append(words, "-"+r.Name)
	}
	kind := "delta"
	if u.Full {
		kind = "full"
	}
	return strings.Join(append([]string{fmt.Sprint(u.Revision), kind}, words...), " ")
}

// revisionOf returns the latest revision.
func revisionOf(f *Feed) state.Revision {
	revision, _ := f.log.Latest()
	return revision
}

func TestFeed(t *testing.T) {
	f := New(Options{})
	expect := func(after state.Revision, want string) {
		t.Helper()
		if got := newsOf(t, f, after); got != want {
			t.Errorf("after %d comes %q, want %q", after, got, want)
		}
	}
	expect(0, "nothing") // there is no source yet
	one, two := f.Source("one"), f.Source("two")
	one.Update([]model.Object{namespace("a")}, nil)
	one.Complete()
	one.Complete() // counts once
	expect(0, "nothing")
	two.Update([]model.Object{namespace("b"), disabled("c")}, nil)
	select {
	case <-f.Ready():
		t.Error("the feed is ready before its second source is complete")
	default:
	}
	two.Complete()
	<-f.Ready()
	expect(0, "1 full a b c!")
	expect(1, "nothing")

	one.Update([]model.Object{namespace("a"), disabled("c")}, refs("unknown"))
	one.Update([]model.Object{namespace("a")}, refs("a"))
	one.Update([]model.Object{disabled("a"), namespace("a")}, nil)
	expect(1, "nothing") // no news

	one.Update([]model.Object{disabled("a")}, refs("a", "b"))
	expect(1, "2 delta a! -b")
	two.Update([]model.Object{namespace("d"), disabled("d")}, nil)
	expect(2, "3 delta d!")
	expect(1, "3 delta a! d! -b")
	two.Update(nil, refs("d"))
	expect(3, "4 delta -d")
	expect(2, "4 delta -d")
	expect(0, "4 full a! c!")
	expect(5, "4 full a! c!") // of another life
	one.Update([]model.Object{namespace("x")}, refs("x"))
	expect(4, "5 delta x")
	one.Update([]model.Object{namespace("y"), namespace("y")}, nil)
	expect(5, "6 delta y")

	f.Close()
	f.Close()
	one.Update([]model.Object{namespace("y")}, nil)
	two.Complete()
	expect(0, ErrClosed.Error())
	expect(4, ErrClosed.Error())
}

func TestEmptyClusterIsHandedOut(t *testing.T) {
	f := New(Options{})
	f.Source("").Complete()
	if got := newsOf(t, f, 0); got != "1 full" {
		t.Errorf("got %q, want an empty full set", got)
	}
}

func TestConsumerThatIsFarBehindGetsEverything(t *testing.T) {
	f := New(Options{})
	f.log.SetLimit(3)
	s := f.Source("")
	s.Complete()
	for _, name := range []string{"a", "b", "c", "d"} {
		s.Update([]model.Object{namespace(name)}, nil)
	}
	for after, want := range map[state.Revision]string{1: "5 full a b c d", 2: "5 delta b c d", 4: "5 delta d"} {
		if got := newsOf(t, f, after); got != want {
			t.Errorf("after %d comes %q, want %q", after, got, want)
		}
	}
	// A revision of which a part is forgotten is forgotten.
	s.Update([]model.Object{disabled("a"), disabled("b"), disabled("c"), disabled("d")}, nil)
	if got := newsOf(t, f, 5); got != "6 full a! b! c! d!" {
		t.Errorf("got %q, want everything", got)
	}
}

func TestNextWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := New(Options{})
		s := f.Source("")
		s.Complete()
		ctx, cancel := context.WithCancel(t.Context())
		var got [3]*Update
		var errs [3]error
		var wg sync.WaitGroup
		begin := func(ctx context.Context, after state.Revision) {
			for i := range got {
				wg.Go(func() { got[i], errs[i] = f.Next(ctx, after) })
			}
			synctest.Wait()
		}
		begin(ctx, 1)
		cancel()
		wg.Wait()
		if !errors.Is(errors.Join(errs[:]...), context.Canceled) {
			t.Errorf("%v, want that the context ended", errs)
		}

		begin(t.Context(), 1)
		s.Update([]model.Object{namespace("a")}, nil)
		wg.Wait()
		for i, u := range got {
			if errs[i] != nil || u.Revision != 2 || len(u.Set) != 1 {
				t.Errorf("consumer %d got %+v, %v", i, u, errs[i])
			}
		}

		begin(t.Context(), 2)
		f.Close()
		wg.Wait()
		for _, err := range errs {
			if !errors.Is(err, ErrClosed) {
				t.Errorf("%v, want ErrClosed", err)
			}
		}
		<-f.Closed()
	})
}

// TestHistories plays random histories to a feed with a short memory. In the end, consumers that read now and then must
// have the same objects as a simple model, and no update may report unneeded changes.
func TestHistories(t *testing.T) {
	for seed := range uint64(100) {
		rng := rand.New(rand.NewPCG(seed, 1))
		history := randcluster.New(seed, randcluster.Options{})
		f := New(Options{})
		f.log.SetLimit(1 + rng.IntN(40))
		sinks := []model.Sink{f.Source("a"), f.Source("b")}
		twin := make(map[model.Ref]model.Object)
		consumers := make([]consumer, 4)
		fulls, deltas := 0, 0
		look := func(c *consumer) {
			for newsOf(t, f, c.revision) != "nothing" {
				full := c.take(t, f)
				if full {
					fulls++
				} else {
					deltas++
				}
			}
		}
		complete := rng.IntN(20)
		for step := range 80 {
			set, deleted := history.Step()
			before := maps.Clone(twin)
			for _, ref := range deleted {
				delete(twin, ref)
			}
			for _, obj := range set {
				twin[obj.Ref()] = obj
			}
			revision := revisionOf(f)
			sinks[rng.IntN(2)].Update(set, deleted)
			if complete == step {
				sinks[0].Complete()
				sinks[1].Complete()
			} else if news, now := !maps.EqualFunc(before, twin, equal), revisionOf(f); step > complete && (now > revision) != news {
				t.Fatalf("seed %d, step %d: the revision went from %d to %d, and news is %v", seed, step, revision, now, news)
			}
			for i := range consumers {
				if rng.IntN(4*(i+1)) == 0 {
					look(&consumers[i])
				}
			}
		}
		for i := range consumers {
			look(&consumers[i])
			if !maps.EqualFunc(consumers[i].objects, twin, equal) {
				t.Fatalf("seed %d: consumer %d has other objects than there are", seed, i)
			}
		}
		if fulls < len(consumers) || deltas == 0 {
			t.Errorf("seed %d: %d full updates and %d others: that tests nothing", seed, fulls, deltas)
		}
	}
}

// consumer has what updates lead to.
type consumer struct {
	revision state.Revision
	objects  map[model.Ref]model.Object
}

// take takes the next update, which must be there, and reports whether it is full.
func (c *consumer) take(t *testing.T, f *Feed) bool {
	t.Helper()
	u, err := f.Next(t.Context(), c.revision)
	if err != nil || u.Revision <= c.revision || (u.Full && u.Deleted != nil) {
		t.Fatalf("after %d came %+v, %v", c.revision, u, err)
	}
	seen := make(map[model.Ref]bool)
	if u.Full {
		c.objects = make(map[model.Ref]model.Object)
	}
	for _, ref := range u.Deleted {
		seen[ref] = true
		delete(c.objects, ref)
	}
	for _, obj := range u.Set {
		if seen[obj.Ref()] {
			t.Fatalf("%s is twice in one update", obj.Ref())
		}
		seen[obj.Ref()] = true
		c.objects[obj.Ref()] = obj
	}
	c.revision = u.Revision
	return u.Full
}

func TestTee(t *testing.T) {
	a, b := New(Options{}), New(Options{})
	both := Tee(a.Source(""), b.Source(""))
	obj := namespace("a")
	both.Update([]model.Object{obj, namespace("b")}, nil)
	both.Update(nil, refs("b"))
	if revisionOf(a)+revisionOf(b) > 0 {
		t.Error("handed out before the source is complete")
	}
	both.Complete()
	for _, f := range []*Feed{a, b} {
		u, err := f.Next(t.Context(), 0)
		if err != nil || !u.Full || len(u.Set) != 1 || u.Set[0] != obj {
			t.Errorf("got %+v, %v, want the object itself", u, err)
		}
	}
}

// TestNothingIsLeft requires a feed to forget deleted objects, and to keep the newest of equal objects, which other
// holders also keep.
func TestNothingIsLeft(t *testing.T) {
	f := New(Options{})
	s := f.Source("")
	s.Complete()
	s.Update([]model.Object{namespace("a")}, nil)
	newest := namespace("a")
	s.Update([]model.Object{newest}, nil)
	if revision, objects := f.log.Latest(); objects.Get(ref("a")) != newest || revision != 2 {
		t.Errorf("the feed holds %p in revision %d, want %p", objects.Get(ref("a")), revision, newest)
	}
	s.Update(nil, refs("a"))
	if _, objects := f.log.Latest(); objects.Len() > 0 {
		t.Errorf("left over: %v", objects.All())
	}
}

// TestUpdatesAreShared: consumers with the same revision get the same update, so that its derived values are made once.
func TestUpdatesAreShared(t *testing.T) {
	f := New(Options{})
	s := f.Source("")
	s.Complete()
	for _, name := range []string{"a", "b", "c"} {
		s.Update([]model.Object{namespace(name)}, nil)
	}
	next := func(after state.Revision) *Update {
		u, err := f.Next(t.Context(), after)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	full, delta := next(0), next(2)
	if next(0) != full || next(9) != full || next(2) != delta || next(1) == delta {
		t.Error("consumers with the same revision got different updates, or others the same")
	}
	calls := 0
	for range 2 {
		if got := delta.Memo(func(u *Update) any { calls++; return u.Revision }); got != state.Revision(4) || calls != 1 {
			t.Errorf("got %v after %d calls", got, calls)
		}
	}
	s.Update([]model.Object{namespace("d")}, nil)
	if next(0) == full || next(2) == delta || len(next(0).Set) != 4 || len(next(2).Set) != 3 {
		t.Error("an update of an older revision is handed out")
	}
	for after := range state.Revision(4) {
		next(after)
	}
	for n := range 3 * maxDeltas {
		s.Update([]model.Object{namespace(strings.Repeat("x", n))}, nil)
	}
	for after := range state.Revision(3 * maxDeltas) {
		next(after)
		if len(f.given.deltas) > maxDeltas {
			t.Fatalf("%d updates are kept", len(f.given.deltas))
		}
	}
}
