package protoconv

import (
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// TestDeltasAreMadeOnce: nodes that need the same message share it, and no other one.
func TestDeltasAreMadeOnce(t *testing.T) {
	var e Encoder
	record, other := sheetRecord(1, 1), sheetRecord(2, 1)
	message := func(u state.Update, at Position) *byte {
		for part := range Parts(&e, &u, nil, at, 64<<10) {
			b := part.buffers[0].ReadOnlyData()
			return &b[0]
		}
		return nil
	}
	at, when := Position{1, 7}, []time.Time{time.Unix(5, 0)}
	one := message(state.Update{Changed: []*state.Service{record}}, at)
	timed := message(state.Update{Changed: []*state.Service{record}, Triggers: when}, at)
	if message(state.Update{Changed: []*state.Service{record}}, at) != one ||
		message(state.Update{Changed: []*state.Service{record}, Triggers: when}, at) != timed {
		t.Error("a message was made for more than one node")
	}
	for what, u := range map[string]state.Update{
		"another service":          {Changed: []*state.Service{other}},
		"a time":                   {Changed: []*state.Service{record}, Triggers: when},
		"two services":             {Changed: []*state.Service{record, other}},
		"one that is removed, too": {Changed: []*state.Service{record}, Removed: []state.ServiceName{other.Name}},
		"all":                      {Full: true, Changed: []*state.Service{record}},
	} {
		if message(u, at) == one {
			t.Errorf("a node that needs %s gets the message without", what)
		}
	}
	if message(state.Update{Changed: []*state.Service{record}}, Position{1, 8}) == one {
		t.Error("a message has the position of another one")
	}
	for i := range 10 * maxDeltas {
		message(state.Update{Changed: []*state.Service{sheetRecord(i, 2)}}, Position{1, 9})
	}
	if n := len(e.deltas.made); n > maxDeltas {
		t.Errorf("%d messages are kept, want %d at most", n, maxDeltas)
	}
}

// TestDeltasChangeNothing has nodes ask for random updates at once, some of them late, and wants each to get its own.
func TestDeltasChangeNothing(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	var e Encoder
	var records []*state.Service
	for n := range 5 {
		records = append(records, sheetRecord(n, 0))
	}
	var nodes sync.WaitGroup
	for step := range 3000 {
		u := &state.Update{Changed: []*state.Service{records[rng.IntN(len(records))]}}
		at := Position{1, state.Revision(1 + step/20 + rng.IntN(3))}
		for range rng.IntN(3) {
			u.Triggers = append(u.Triggers, time.Unix(int64(rng.IntN(2)), 0))
		}
		nodes.Go(func() {
			m := &localnetv1.WatchResponse{}
			for part := range Parts(&e, u, nil, at, 1) {
				if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(part.Bytes(), m); err != nil {
					t.Error(err)
				}
			}
			want := &localnetv1.WatchResponse{Changed: []*localnetv1.ServiceEndpoints{Service(u.Changed[0])}, Position: at.Message()}
			for _, trigger := range u.Triggers {
				want.Triggers = append(want.Triggers, timestamppb.New(trigger))
			}
			if !proto.Equal(m, want) {
				t.Errorf("got %v, want %v", m, want)
			}
		})
	}
	nodes.Wait()
}
