package node

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/state"
)

// TestDegraded follows Services that use features, through updates and a switch to a dataplane that knows one of them.
func TestDegraded(t *testing.T) {
	var text bytes.Buffer
	can := state.Features(0)
	d := degraded{log: slog.New(slog.NewTextHandler(&text, nil)), can: func() state.Features { return can }, mode: func() string { return "m" }}
	svc := func(name string, p state.Port) *state.Service {
		return &state.Service{Name: state.ServiceName{Namespace: "ns", Name: name}, Ports: []state.Port{p}}
	}
	hashed, drained, plain := state.Port{Balance: state.HashClient}, state.Port{Balance: state.HashClient, DrainSeconds: 1}, state.Port{}
	expect := func(balance, drain, lines int, u *state.Update, err error) {
		t.Helper()
		d.attempted(backend.Attempt{Update: u, Err: err})
		got := d.byName()
		if n := strings.Count(text.String(), "\n"); got["balance"] != balance || got["drain-deadline"] != drain || len(got) != 7 || n != lines {
			t.Errorf("got %v and %d lines, want balance=%d drain-deadline=%d and %d lines\n%s", got, n, balance, drain, lines, &text)
		}
	}
	expect(0, 0, 0, &state.Update{Full: true, Changed: []*state.Service{svc("a", plain)}}, nil)
	expect(1, 0, 1, &state.Update{Changed: []*state.Service{svc("a", hashed)}}, nil)
	expect(1, 0, 1, &state.Update{Changed: []*state.Service{svc("b", drained)}}, errors.New("not applied"))
	expect(2, 1, 2, &state.Update{Changed: []*state.Service{svc("b", drained)}}, nil)
	expect(2, 1, 2, nil, nil)
	if missing := d.of(state.ServiceName{Namespace: "ns", Name: "b"}); missing != state.Balances|state.DrainDeadline {
		t.Errorf("of a degraded Service: %v", missing)
	}
	if missing := d.of(state.ServiceName{Namespace: "ns", Name: "c"}); missing != 0 {
		t.Errorf("of another Service: %v", missing)
	}
	expect(1, 1, 2, &state.Update{Removed: []state.ServiceName{{Namespace: "ns", Name: "a"}}}, nil)
	can = state.Balances
	expect(0, 1, 2, &state.Update{Full: true, Changed: []*state.Service{svc("a", hashed), svc("b", drained)}}, nil)
	can = 0
	expect(2, 1, 3, &state.Update{Full: true, Changed: []*state.Service{svc("a", hashed), svc("b", drained)}}, nil)
	if !strings.Contains(text.String(), "mode=m feature=drain-deadline services=1") {
		t.Error(&text)
	}
}
