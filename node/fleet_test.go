package node

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// only returns the row of the only node.
func (f *fleet) only(t *testing.T) *ui.Node {
	t.Helper()
	rows := f.rows(0)
	if len(rows) != 1 {
		t.Fatalf("there are %d nodes, want one", len(rows))
	}
	return rows[0]
}

// TestFleet: a node comes, gets updates, is slow, cannot program a Service, and goes.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFleet(), server.Client{ID: 1, Name: "nftables", Node: "a", Address: "192.0.2.1:5"}
		f.opened(c)
		f.sent(c, 4)
		time.Sleep(2 * time.Second)
		if n := f.only(t); n.Clients != 1 || n.Revision != 4 || n.Applied != 0 || time.Since(n.PendingSince) != 2*time.Second || !n.Reported.IsZero() {
			t.Errorf("after its first update it is %+v", n)
		}
		f.status(c, server.Status{Applied: 4})
		if n := f.only(t); n.Applied != 4 || !n.PendingSince.IsZero() || n.Took == nil || *n.Took != 2 {
			t.Errorf("after it has reported it is %+v", n)
		}
		seen := f.only(t).Version
		if rows := f.rows(seen); len(rows) > 0 {
			t.Errorf("nothing has changed, and there are %+v", rows)
		}

		f.sent(c, 5)
		time.Sleep(time.Minute)
		f.sent(c, 9)
		time.Sleep(time.Minute)
		if n := f.only(t); time.Since(n.PendingSince) != 2*time.Minute || n.Version <= seen {
			t.Errorf("with two updates it is %+v", n)
		}
		f.status(c, server.Status{Applied: 5, FailedTotal: 5, Failed: map[state.ServiceName]string{
			{Namespace: "shop", Name: "d"}: "no room", {Namespace: "shop", Name: "a"}: "no room", {Namespace: "shop", Name: "c"}: "", {Namespace: "shop", Name: "b"}: "",
		}})
		n := f.only(t)
		if time.Since(n.PendingSince) != time.Minute || n.Failed != 5 || len(n.Failures) != maxFailures || n.Failures[0] != (ui.Failure{Service: "shop/a", Reason: "no room"}) || !n.FailedSince.Equal(time.Now()) {
			t.Errorf("with the first of them it is %+v", n)
		}
		began := time.Now()
		time.Sleep(time.Second)
		f.status(c, server.Status{Applied: 9, FailedTotal: 1})
		if n := f.only(t); !n.FailedSince.Equal(began) || !n.PendingSince.IsZero() {
			t.Errorf("with both it is %+v", n)
		}
		if f.newest() != 9 {
			t.Errorf("the newest revision is %d, want 9", f.newest())
		}

		second := server.Client{ID: 2, Name: "other", Node: "a"}
		f.opened(second)
		f.gone(c)
		if n := f.only(t); n.Clients != 1 || !n.Gone.IsZero() {
			t.Errorf("with its second client it is %+v", n)
		}
		f.gone(second)
		if n := f.only(t); n.Clients != 0 || n.Gone.IsZero() || n.Failed != 0 || f.newest() != 0 {
			t.Errorf("without clients it is %+v", n)
		}
		f.opened(c)
		if n := f.only(t); n.Applied != 0 || !n.Gone.IsZero() || !n.Since.Equal(time.Now()) {
			t.Errorf("when it comes back it is %+v", n)
		}
		f.gone(c)
		time.Sleep(leftPeriod)
		if rows := f.rows(0); len(rows) > 0 || f.left != 0 {
			t.Errorf("a node that left long ago is there: %+v", rows)
		}
	})
}

// TestFleetIsBounded: clients with ever new names fill no memory.
func TestFleetIsBounded(t *testing.T) {
	f := newFleet()
	for i := range 2 * maxLeft {
		c := server.Client{ID: uint64(i), Node: fmt.Sprint("node-", i)}
		f.opened(c)
		f.gone(c)
		f.gone(c)
	}
	if n := len(f.rows(0)); n != maxLeft || f.left != maxLeft {
		t.Errorf("%d nodes are remembered, %d as having left, want %d", n, f.left, maxLeft)
	}
	f.status(server.Client{Node: "never seen"}, server.Status{Applied: 1})
	if n := len(f.rows(0)); n != maxLeft {
		t.Errorf("a report makes a node: there are %d", n)
	}
}
