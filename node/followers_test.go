package node

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

func TestFollowers(t *testing.T) {
	var log bytes.Buffer
	w := newFollowers(slog.New(slog.NewTextHandler(&log, nil)))
	expect := func(when, logged string, problems ...string) {
		t.Helper()
		if lines := strings.Count(log.String(), "\n"); (logged == "") != (lines == 0) || lines > 1 || !strings.Contains(log.String(), logged) {
			t.Errorf("%s: the log says %q, want one line with %q", when, log.String(), logged)
		}
		log.Reset()
		got := fmt.Sprint(w.problems())
		for _, p := range problems {
			if !strings.Contains(got, p) {
				t.Errorf("%s: problems %s, want %q", when, got, p)
			}
		}
		if len(problems) != len(w.problems()) {
			t.Errorf("%s: %d problems, want %d", when, len(w.problems()), len(problems))
		}
	}
	a, b := server.Client{ID: 1, Name: "nftables", Node: "a"}, server.Client{ID: 2, Node: "b"}
	failed := server.Status{FailedTotal: 1, Failed: map[state.ServiceName]string{{Namespace: "shop", Name: "web"}: "no room"}}
	w.status(a, server.Status{Applied: 1})
	expect("all is well", "")
	w.status(a, failed)
	expect("a service fails", "shop/web: no room", "node a: nftables cannot program 1 services: shop/web: no room")
	w.status(a, failed)
	expect("it is reported again", "", "shop/web")
	w.status(b, failed)
	expect("elsewhere, too", "node=b", "node a", "node b: a client")
	w.status(a, server.Status{Applied: 2})
	expect("the first has got over it", "again", "node b")
	w.gone(b)
	expect("the second is gone", "")
	for i := range 100 {
		w.status(server.Client{ID: uint64(i) + 10, Node: fmt.Sprintf("n%03d", i)}, failed)
	}
	if got := w.problems(); len(got) != maxListed+1 || !strings.Contains(got[maxListed].Error(), "80 nodes more") {
		t.Errorf("with 100 failing dataplanes, problems are %q", got)
	}
}

// TestStatusFlood: a node that reports something else all the time, on any number of streams, fills neither log nor memory. The reports
// of other nodes still get through.
func TestStatusFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		w := newFollowers(slog.New(slog.NewTextHandler(&log, nil)))
		statusOf := func(i int) server.Status { // as large as package server lets them be
			failed := make(map[state.ServiceName]string)
			for n := range 10 {
				name := state.ServiceName{Namespace: strings.Repeat("x", 63), Name: fmt.Sprintf("%063d", n)}
				failed[name] = fmt.Sprintf("%0256d", i)
			}
			return server.Status{FailedTotal: 100, Failed: failed}
		}
		for minute := range 10 {
			for i := range 2000 {
				c := server.Client{ID: uint64(i % 50), Node: "evil"}
				w.status(c, statusOf(i))
				if i%7 == 0 {
					w.status(c, server.Status{})
				}
				if i%11 == 0 {
					w.gone(c)
				}
			}
			w.status(server.Client{ID: 1000, Node: "good"}, server.Status{FailedTotal: 1, Failed: map[state.ServiceName]string{{Name: "web"}: fmt.Sprint("minute ", minute)}})
			time.Sleep(time.Minute)
		}
		lines, good := strings.Count(log.String(), "node=evil"), strings.Count(log.String(), "node=good")
		if lines > 40 || log.Len() > 10*20<<10 || good != 10 {
			t.Errorf("in ten minutes, %d lines of one node and %d of another were logged, %d KiB in all", lines, good, log.Len()>>10)
		}
		if !strings.Contains(log.String(), "leftOutOfThisNode=2") {
			t.Error("the log does not say how many lines were left out")
		}
		if len(w.nodes) != 2 {
			t.Errorf("statuses of %d nodes are kept, want 2", len(w.nodes))
		}
		for i := range 100 { // nodes that come, fail and go
			c := server.Client{ID: uint64(i), Node: fmt.Sprint("node-", i)}
			w.status(c, statusOf(i))
			w.gone(c)
			time.Sleep(time.Minute)
		}
		if len(w.nodes) > 5 {
			t.Errorf("%d nodes are remembered after most have gone", len(w.nodes))
		}
	})
}
