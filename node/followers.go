package node

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/switchyard-net/switchyard/server"
	"github.com/switchyard-net/switchyard/state"
)

// followers records the nodes on which dataplanes that follow the API cannot program something. It is for the operators
// of the server: the node's own log may be far away.
//
// It keeps one status for each node, and logs few of its changes. A node takes at most a few KiB here and in the log,
// even if its dataplanes report a lot. If several dataplanes of a node fail, the status is the one that was reported
// last.
type followers struct {
	log *slog.Logger

	mu    sync.Mutex // guards all below
	nodes map[string]*nodeStatus
	swept time.Time // when nodes was last looked through for those to forget
}

// nodeStatus is how a node is doing whose dataplanes have failed.
type nodeStatus struct {
	client server.Client // that has reported
	status server.Status // FailedTotal is 0 if all is well again
	// Lines of the log in the minute since began, and those left out.
	began           time.Time
	logged, leftOut int
}

const (
	// maxListed is how many services or dataplanes are named at once.
	maxListed = 20
	// maxLines is how many lines of the log a node gets in each linePeriod.
	maxLines, linePeriod = 4, time.Minute
)

func newFollowers(log *slog.Logger) *followers {
	return &followers{log: log, nodes: make(map[string]*nodeStatus)}
}

// status notes what a client reports.
func (w *followers) status(c server.Client, s server.Status) {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.nodes[c.Node]
	if s.FailedTotal == 0 {
		if n != nil && n.client.ID == c.ID && n.status.FailedTotal > 0 {
			n.status = server.Status{}
			n.log(w.log.Info, "a dataplane can program all services again", "node", c.Node, "client", c.Name)
		}
		return
	}
	if n == nil {
		w.sweep()
		n = &nodeStatus{}
		w.nodes[c.Node] = n
	}
	changed := n.status.FailedTotal == 0 || !maps.Equal(n.status.Failed, s.Failed)
	n.client, n.status = c, s
	if changed {
		n.log(w.log.Warn, "a dataplane cannot program all services", "node", c.Node, "client", c.Name, "services", s.FailedTotal, "failed", listed(s.Failed))
	}
}

// log logs a line, unless the node has had enough.
func (n *nodeStatus) log(log func(string, ...any), message string, attributes ...any) {
	if now := time.Now(); now.Sub(n.began) >= linePeriod {
		n.began, n.logged = now, 0
	}
	if n.logged == maxLines {
		n.leftOut++
		return
	}
	n.logged++
	if n.leftOut > 0 {
		attributes = append(attributes, "leftOutOfThisNode", n.leftOut)
		n.leftOut = 0
	}
	log(message, attributes...)
}

// gone forgets what a client has reported.
func (w *followers) gone(c server.Client) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if n := w.nodes[c.Node]; n != nil && n.client.ID == c.ID {
		n.status = server.Status{}
	}
}

// sweep forgets nodes that are well, but for those that may not log yet: a node that comes back must not log more by that. The mutex is
// held.
func (w *followers) sweep() {
	now := time.Now()
	if now.Sub(w.swept) < linePeriod {
		return
	}
	w.swept = now
	maps.DeleteFunc(w.nodes, func(_ string, n *nodeStatus) bool {
		return n.status.FailedTotal == 0 && now.Sub(n.began) >= linePeriod
	})
}

// problems are what dataplanes cannot program now.
func (w *followers) problems() (problems []error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	more := 0
	for _, node := range slices.Sorted(maps.Keys(w.nodes)) {
		n := w.nodes[node]
		switch {
		case n.status.FailedTotal == 0:
		case len(problems) == maxListed:
			more++
		default:
			problems = append(problems, fmt.Errorf("node %s: %s cannot program %d services: %s", node, cmp.Or(n.client.Name, "a client"), n.status.FailedTotal, listed(n.status.Failed)))
		}
	}
	if more > 0 {
		problems = append(problems, fmt.Errorf("and %d nodes more", more))
	}
	return problems
}

// listed lists services with reasons.
func listed(failed map[state.ServiceName]string) string {
	var list []string
	for _, name := range slices.SortedFunc(maps.Keys(failed), state.ServiceName.Compare) {
		if len(list) == maxListed {
			list = append(list, "...")
			break
		}
		list = append(list, name.String()+": "+failed[name])
	}
	return strings.Join(list, "; ")
}
