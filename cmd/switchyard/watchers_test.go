package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

func TestWatchers(t *testing.T) {
	var log bytes.Buffer
	w := newWatchers(slog.New(slog.NewTextHandler(&log, nil)))
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
	expect("it is told again", "", "shop/web")
	w.status(b, failed)
	expect("elsewhere, too", "node=b", "node a", "node b: a client")
	w.status(a, server.Status{Applied: 2})
	expect("the first has got over it", "again", "node b")
	w.gone(b)
	expect("the second is gone", "")
	for i := range 100 {
		w.status(server.Client{ID: uint64(i) + 10, Node: fmt.Sprintf("n%03d", i)}, failed)
	}
	if got := w.problems(); len(got) != maxTold+1 || !strings.Contains(got[maxTold].Error(), "80 dataplanes more") {
		t.Errorf("with 100 failing dataplanes, problems are %q", got)
	}
}
