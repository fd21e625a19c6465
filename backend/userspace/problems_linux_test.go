package userspace

import (
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/ledger"
	"github.com/switchyard-net/switchyard/state"
)

// What was wrong with a Service is a problem for a minute, and no longer than the Service is there: also if a connection was refused while it was removed.
func TestProblemsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &relay{
			log: slog.New(slog.DiscardHandler), places: ledger.NewRoom[*conn](), flowPlaces: ledger.NewRoom[*flow](), problems: map[state.ServiceName]problem{},
		}
		b := &Backend{relay: r}
		name := state.ServiceName{Namespace: "ns", Name: "web"}
		want := func(n int, when string) {
			t.Helper()
			if problems := b.Problems(); len(problems) != n {
				t.Errorf("%s, the problems are %v, want %d", when, problems, n)
			}
		}
		r.set(&state.Update{Changed: []*state.Service{{Name: name}}})
		r.noteProblem(name, errors.New("first"))
		time.Sleep(50 * time.Second)
		r.noteProblem(name, errors.New("again"))
		time.Sleep(50 * time.Second)
		want(1, "within a minute")
		time.Sleep(10 * time.Second)
		want(0, "after a minute")
		r.set(&state.Update{Removed: []state.ServiceName{name}})
		r.noteProblem(name, errors.New("late"))
		want(0, "for a Service that is gone")
	})
}
