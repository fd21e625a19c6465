package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// watchers knows which dataplanes that follow the API cannot program something. It is for those who look after the server: the
// node's own log may be far away.
type watchers struct {
	log *slog.Logger

	mu      sync.Mutex
	failing map[uint64]failing // by client
}

type failing struct {
	client server.Client
	status server.Status
}

// maxTold is how many services or dataplanes are named at once.
const maxTold = 20

func newWatchers(log *slog.Logger) *watchers {
	return &watchers{log: log, failing: make(map[uint64]failing)}
}

// status takes down what a client says.
func (w *watchers) status(c server.Client, s server.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	was, failed := w.failing[c.ID]
	switch {
	case s.FailedTotal > 0:
		w.failing[c.ID] = failing{c, s}
		if !maps.Equal(was.status.Failed, s.Failed) {
			w.log.Warn("a dataplane cannot program all services", "node", c.Node, "client", c.Name, "services", s.FailedTotal, "failed", told(s.Failed))
		}
	case failed:
		delete(w.failing, c.ID)
		w.log.Info("a dataplane can program all services again", "node", c.Node, "client", c.Name)
	}
}

// gone forgets a client.
func (w *watchers) gone(c server.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.failing, c.ID)
}

// problems are what dataplanes cannot program now.
func (w *watchers) problems() (problems []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	byNode := func(a, b failing) int {
		return cmp.Or(cmp.Compare(a.client.Node, b.client.Node), cmp.Compare(a.client.ID, b.client.ID))
	}
	for i, f := range slices.SortedFunc(maps.Values(w.failing), byNode) {
		if i == maxTold {
			return append(problems, fmt.Errorf("and %d dataplanes more", len(w.failing)-maxTold))
		}
		problems = append(problems, fmt.Errorf("node %s: %s cannot program %d services: %s", f.client.Node, cmp.Or(f.client.Name, "a client"), f.status.FailedTotal, told(f.status.Failed)))
	}
	return problems
}

// told lists services with reasons.
func told(failed map[state.ServiceName]string) string {
	var list []string
	for _, name := range slices.SortedFunc(maps.Keys(failed), state.ServiceName.Compare) {
		if len(list) == maxTold {
			list = append(list, "...")
			break
		}
		list = append(list, name.String()+": "+failed[name])
	}
	return strings.Join(list, "; ")
}
