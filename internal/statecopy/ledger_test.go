package statecopy_test

import (
	"testing"

	"github.com/switchyard-net/switchyard/internal/statecopy"
	"github.com/switchyard-net/switchyard/state"
)

func TestLedgerTranslatesRevisions(t *testing.T) {
	var l statecopy.Ledger[string]
	at := func(revision state.Revision, want string) {
		t.Helper()
		if got := l.At(revision); got != want {
			t.Errorf("At(%d) = %q, want %q", revision, got, want)
		}
	}
	at(7, "")
	l.Note(3, "a")
	at(2, "")
	at(3, "a")
	l.Note(3, "b") // nothing was different, so the replica has no new revision
	at(3, "b")
	l.Note(5, "c")
	l.Note(6, "d")
	at(4, "b")
	at(5, "c")
	at(9, "d")
}

// A dataplane that has not applied anything for a long time costs bounded memory, and still receives changes.
func TestLedgerForgetsTheOldest(t *testing.T) {
	var l statecopy.Ledger[int]
	for i := 1; i <= 10_000; i++ {
		l.Note(state.Revision(i), i)
	}
	if got := l.At(1); got != 0 {
		t.Errorf("At(1) = %d, want it forgotten", got)
	}
	if got := l.At(9_999); got != 9_999 {
		t.Errorf("At(9999) = %d", got)
	}
}
