package drain

import (
	"net/netip"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/backend/userspace/internal/plan"
	"github.com/switchyard-net/switchyard/state"
)

// TestAfter: the deadline is the port's, and counts if no route of it has the endpoint.
func TestAfter(t *testing.T) {
	a, b := netip.MustParseAddrPort("10.0.0.1:80"), netip.MustParseAddrPort("10.0.0.2:80")
	name := state.ServiceName{Namespace: "ns", Name: "web"}
	record := func(seconds uint32, to netip.AddrPort) *state.Service {
		p := state.Port{Name: "http", Protocol: state.TCP, DrainSeconds: seconds}
		p.External.Outside.Endpoints = []state.Endpoint{{Addr: to, Weight: 3}}
		return &state.Service{Name: name, Ports: []state.Port{p}}
	}
	id := plan.PortID{Service: name, Port: "http", Protocol: state.TCP}
	for what, c := range map[string]struct {
		before, now *state.Service
		id          plan.PortID
		want        time.Duration
		uses        bool
	}{
		"in a route":      {record(9, a), record(9, a), id, 0, true},
		"in none":         {record(9, a), record(7, b), id, 7 * time.Second, true},
		"no deadline":     {record(9, a), record(0, b), id, 0, true},
		"deleted":         {record(9, a), nil, id, 9 * time.Second, true},
		"never known":     {nil, nil, id, 0, false},
		"another port":    {nil, record(9, b), plan.PortID{Service: name, Port: "https", Protocol: state.TCP}, 0, true},
		"without and new": {nil, record(0, b), id, 0, false},
	} {
		if got := After(c.before, c.now, c.id, a); got != c.want || Uses(c.before, c.now) != c.uses {
			t.Errorf("%s: %v, uses %t", what, got, Uses(c.before, c.now))
		}
	}
}

// TestDeadline: it stays as it was set first, and a deadline that is taken away does not end the connection.
func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		var d Deadline
		began, ended := time.Now(), time.Duration(0)
		set := func(after time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			d.Set(after, &mu, func() { ended = time.Since(began) })
		}
		set(2 * time.Second)
		time.Sleep(time.Second)
		set(0)
		time.Sleep(time.Hour)
		if ended != 0 {
			t.Errorf("ended after %v without a deadline", ended)
		}
		began = time.Now()
		set(2 * time.Second)
		time.Sleep(time.Second)
		set(time.Hour)
		time.Sleep(time.Hour)
		mu.Lock()
		defer mu.Unlock()
		if ended != 2*time.Second {
			t.Errorf("ended after %v, want 2s", ended)
		}
		d.Stop()
		d.Stop()
	})
}
