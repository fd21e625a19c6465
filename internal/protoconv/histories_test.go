package protoconv_test

import (
	"iter"
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/switchyard-net/switchyard/brain"
	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/internal/protoconv"
	"github.com/switchyard-net/switchyard/internal/protoconv/protoconvtest"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
	"github.com/switchyard-net/switchyard/test/randcluster"
)

// TestHistoriesComeBack plays random histories of clusters. The state of a store survives the round trip unchanged, in
// large and small updates, and so do objects that an API server admits.
func TestHistoriesComeBack(t *testing.T) {
	const seeds, steps = 150, 25
	records, objects := 0, 0
	for seed := range uint64(seeds) {
		h := randcluster.New(seed, randcluster.Options{Admissible: seed%2 == 0, Annotations: seed%4 < 2})
		w := h.World()
		s := store.New(store.Options{Brain: brain.Config{
			NodeName: w.NodeName, MasqueradeAll: seed%3 == 0, LocalDetector: state.LocalDetector{NodeCIDR: seed%2 == 0}, NodePorts: state.NodePortAddresses{Primary: seed%5 == 0},
		}})
		sink := s.Source("history")
		sink.Complete()
		var encoder protoconv.Encoder
		var a protoconvtest.Assembly
		var after state.Revision
		for range steps {
			set, deleted := h.Step()
			sink.Update(set, deleted)
			for _, o := range set {
				if seed%2 != 0 {
					break
				}
				objects++
				got, err := protoconv.ParseObject(transmit(t, protoconv.Object(o)))
				if err != nil || !sameObject(o, got) {
					t.Fatalf("seed %d: %v\nwent %+v\ncame %+v", seed, err, o, got)
				}
			}
			for _, ref := range deleted {
				if got, err := protoconv.ParseRef(transmit(t, protoconv.Ref(ref))); err != nil || got != ref {
					t.Fatalf("seed %d: went %v, came %v, %v", seed, ref, got, err)
				}
			}
			if s.Snapshot().Revision() == after {
				continue
			}
			u, err := s.Next(t.Context(), after)
			if err != nil {
				t.Fatal(err)
			}
			records += len(u.Changed)
			r := assemble(t, &a, protoconv.Parts(&encoder, u, u.Node, protoconv.Position{Instance: 7, Revision: u.Revision}, int(seed)*10))
			sameUpdate(t, r.Update, u)
			after = u.Revision
		}
		s.Close()
	}
	t.Logf("%d records, %d objects", records, objects)
	if records < 1000 || objects < 1000 {
		t.Error("there is too little in the histories")
	}
}

// assemble sends all parts and returns the update that comes of it.
func assemble(t testing.TB, a *protoconvtest.Assembly, parts iter.Seq2[*protoconv.Raw, bool]) *protoconvtest.Received {
	t.Helper()
	for part, last := range parts {
		m := new(localnetv1.WatchResponse)
		if err := proto.Unmarshal(part.Bytes(), m); err != nil {
			t.Fatal(err)
		}
		r, err := a.Add(m)
		if err != nil {
			t.Fatal(err)
		}
		if last != (r != nil) {
			t.Fatalf("part %v: it is the last: %v, but the update is whole: %v", m, last, r != nil)
		}
		if last {
			return r
		}
	}
	t.Fatal("there is no last part")
	return nil
}

func sameUpdate(t testing.TB, got, want *state.Update) {
	t.Helper()
	same := got.Revision == want.Revision && got.Full == want.Full && got.Node.Equal(want.Node) &&
		len(got.Changed) == len(want.Changed) && len(got.Removed) == len(want.Removed) && len(got.Triggers) == len(want.Triggers)
	for i := range got.Changed {
		same = same && got.Changed[i].Equal(want.Changed[i])
	}
	for i := range got.Removed {
		same = same && got.Removed[i] == want.Removed[i]
	}
	for i := range got.Triggers {
		same = same && got.Triggers[i].Equal(want.Triggers[i])
	}
	if !same {
		t.Fatalf("went %+v\ncame %+v", want, got)
	}
}
