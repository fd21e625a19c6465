package ui

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/internal/admin/view"
)

// fakeRelay is a relay with rows of its own.
type fakeRelay struct{ rows []*Node }

func (f *fakeRelay) Status() *view.Status { return &view.Status{Mode: "none", Healthy: true} }

func (f *fakeRelay) Nodes(after uint64) (rows []*Node) {
	for _, n := range f.rows {
		if n.Version > after {
			rows = append(rows, n)
		}
	}
	return rows
}

// set changes node i.
func (f *fakeRelay) set(i int, version uint64) {
	f.rows[i] = &Node{Version: version, Name: f.rows[i].Name, Clients: 1}
}

func newFakeRelay(nodes int) *fakeRelay {
	f := &fakeRelay{}
	for i := range nodes {
		f.rows = append(f.rows, &Node{Version: uint64(nodes - i), Name: fmt.Sprintf("node-%04d", i), Clients: 1})
	}
	return f
}

// TestRelayAnswers: a relay's page is about nodes, and knows nothing of Services.
func TestRelayAnswers(t *testing.T) {
	h := RelayHandler(t.Context(), newFakeRelay(1200))
	for _, tt := range []struct {
		path string
		code int
		want string
	}{
		{"/", 200, "app.js"},
		{"/api/status", 200, `{"page":"relay","program":""`},
		{"/api/nodes?limit=2", 200, `"next":"node-0001"`},
		{"/api/nodes?limit=2&after=node-1198", 200, `{"items":[{"name":"node-1199"`},
		{"/api/nodes?after=node-1199", 200, `{"items":[]}`},
		{"/api/nodes?key=node-0007&key=gone", 200, `{"items":[{"name":"node-0007"`},
		{"/api/nodes?" + strings.Repeat("key=a&", 101), 400, "101 keys are too many"},
		{"/api/nodes?limit=1001", 400, "limit must be a number from 0 to 1000"},
		{"/api/services", 404, "no such page"},
		{"/api/explain?from=node&to=x", 404, "no such page"},
	} {
		if w := get(h, tt.path); w.Code != tt.code || !strings.Contains(w.Body.String(), tt.want) {
			t.Errorf("%.60s: %d %.300s", tt.path, w.Code, w.Body)
		}
	}
	for _, tt := range []struct {
		source Source
		want   pageKind
	}{{newFake(t, 1), ofNode}, {&fakeLab{fake: newFake(t, 1)}, ofLab}} {
		var s status
		if err := json.Unmarshal(get(Handler(t.Context(), tt.source), "/api/status").Body.Bytes(), &s); err != nil || s.Page != tt.want || s.Node != "node-a" {
			t.Errorf("the status is %+v, %v, want that of a page of a %s", s, err, tt.want)
		}
	}
}

// TestRelayEvents: a page hears of each node that changes once; of very many, of the others with the next event.
func TestRelayEvents(t *testing.T) {
	f := newFakeRelay(2500)
	p := &relayPage{newServer(t.Context()), f}
	stream := p.follow()
	next := func() *relayEvent {
		m, ok := stream.next(t.Context())
		if !ok {
			t.Fatal("the stream has ended")
		}
		return m.(*relayEvent)
	}
	if e := next(); e.Status == nil || e.Status.Page != ofRelay || len(e.Set) > 0 {
		t.Errorf("the first event is %+v", e)
	}
	if e := next(); !e.empty() {
		t.Errorf("nothing has happened, and the event is %+v", e)
	}
	f.set(7, 2501)
	if e := next(); len(e.Set) != 1 || e.Set[0].Name != "node-0007" || e.Status != nil {
		t.Errorf("the event of one node is %+v", e)
	}
	for i := range f.rows {
		f.set(i, uint64(3000+i))
	}
	heard := map[string]bool{}
	for range 3 {
		e := next()
		if len(e.Set) > maxNodes {
			t.Errorf("an event has %d nodes", len(e.Set))
		}
		for _, n := range e.Set {
			heard[n.Name] = true
		}
	}
	if e := next(); len(heard) != len(f.rows) || !e.empty() {
		t.Errorf("%d of %d nodes are in the events, and then there is %+v", len(heard), len(f.rows), e)
	}
}
