package ui

import (
	"strings"
	"testing"
	"time"

	"github.com/switchyard-net/switchyard/state"
)

// fakeLab is a process that connects to its Services.
type fakeLab struct {
	*fake
	round *Round
}

func (f *fakeLab) Round() *Round { return f.round }

// TestRounds: a page hears of each round of a lab once, and has the paths of one Service.
func TestRounds(t *testing.T) {
	f := &fakeLab{fake: newFake(t, 2)}
	p := &page{newServer(t.Context()), f}
	stream := p.follow()
	next := func() *event {
		m, _ := stream.next(t.Context())
		return m.(*event)
	}
	if e := next(); e.Round != nil {
		t.Errorf("before the first round there is %+v", e.Round)
	}
	web := state.ServiceName{Namespace: "shop", Name: "web-001"}
	f.round = &Round{Ended: time.Unix(7, 0), Paths: map[state.ServiceName][]Path{web: {
		{Client: "pod", Address: "10.96.0.1:80", Connections: 8, Endpoints: map[string]int{"10.244.0.1:8080": 8}},
		{Client: "outside", Outside: true, Address: "192.0.2.1:80", Connections: 3, Faults: []string{"nobody answered", "again"}},
	}}}
	e := next()
	if e.Round == nil || e.Round.Services["shop/web-001"] != (flow{Paths: 2, Connections: 11, Faulty: 1, Fault: "outside to 192.0.2.1:80: nobody answered"}) {
		t.Errorf("the event of the first round is %+v", e.Round)
	}
	if e := next(); e.Round != nil {
		t.Errorf("the same round is there again: %+v", e.Round)
	}
	h := Handler(t.Context(), f)
	if w := get(h, "/api/service?key=shop/web-001"); !strings.Contains(w.Body.String(), `"endpoints":{"10.244.0.1:8080":8}`) {
		t.Errorf("the Service has no paths: %s", w.Body)
	}
	if w := get(h, "/api/service?key=shop/web-000"); strings.Contains(w.Body.String(), "paths") {
		t.Errorf("a Service without connections has paths: %s", w.Body)
	}
}
