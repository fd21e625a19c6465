package apifollower

import (
	"testing"

	"github.com/switchyard-net/switchyard/client"
	"github.com/switchyard-net/switchyard/state"
)

func position(revision uint64) client.Position { return client.Position{InstanceID: 1, Rev: revision} }

func TestLedgerTranslatesRevisions(t *testing.T) {
	var l ledger
	at := func(revision state.Revision, want uint64) {
		t.Helper()
		if got := l.at(revision).Rev; got != want {
			t.Errorf("at(%d) = %d, want %d", revision, got, want)
		}
	}
	at(7, 0)
	l.note(3, position(1))
	at(2, 0)
	at(3, 1)
	l.note(3, position(2)) // nothing was different, so there is no new revision
	at(3, 2)
	l.note(5, position(3))
	l.note(6, position(4))
	at(4, 2)
	at(5, 3)
	at(9, 4)
}

// A dataplane that has not applied anything for a long time costs bounded memory, and still receives changes.
func TestLedgerForgetsTheOldest(t *testing.T) {
	var l ledger
	for i := 1; i <= 10_000; i++ {
		l.note(state.Revision(i), position(uint64(i)))
	}
	if got := l.at(1).Rev; got != 0 {
		t.Errorf("at(1) = %d, want it forgotten", got)
	}
	if got := l.at(9_999).Rev; got != 9_999 {
		t.Errorf("at(9999) = %d", got)
	}
}
