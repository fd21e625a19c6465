package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
)

// TestASinkThatFailsForLong: the memory for a failing sink is bounded by the state, not by the number of changes.
func TestASinkThatFailsForLong(t *testing.T) {
	var got *Change
	result := errors.New("busy")
	r := &runner{
		sink:   SinkFunc(func(_ context.Context, c *Change) (map[ServiceName]error, error) { got = c; return nil, result }),
		report: func(Status) {}, log: slog.New(slog.DiscardHandler), state: newReplica(), first: true,
		dirty: make(map[ServiceName]bool), known: make(map[ServiceName]bool),
	}
	o := Options{}.withDefaults()
	r.pace = newPacer(&o)
	r.take(&Update{Full: true, Node: node("a"), Changed: []*localnetv1.ServiceEndpoints{service("first", 1, 1)}})
	r.apply(t.Context())
	for i := range 5000 {
		s := service(fmt.Sprint("brief-", i), 1, 1)
		r.take(&Update{Node: r.node, Changed: []*localnetv1.ServiceEndpoints{s}, Triggers: []time.Time{time.Unix(int64(i), 0)}})
		r.take(&Update{Node: r.node, Removed: []ServiceName{NameOf(s)}})
	}
	r.take(&Update{Node: r.node, Removed: []ServiceName{{"shop", "first"}}})
	result = nil
	r.apply(t.Context())
	if len(got.Removed) != 1 || got.Removed[0].Name != "first" || len(r.dirty)+len(r.known) != 0 {
		t.Errorf("removed are %d services, want the one that the sink had got; %d dirty, %d known", len(got.Removed), len(r.dirty), len(r.known))
	}
	if n := len(got.Triggers); n != 1024 || got.Triggers[0] != time.Unix(0, 0) {
		t.Errorf("there are %d triggers, want the first 1024", n)
	}
}
