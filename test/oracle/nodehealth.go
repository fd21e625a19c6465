package oracle

import (
	"time"

	"github.com/switchyard-net/switchyard/model"
)

// NodeHealth is the rule by which endpoints on an unready node come last. The zero value has no such endpoints.
type NodeHealth struct {
	// Percent is how many of all nodes may not be ready for the rule to hold. 0 turns it off.
	Percent int
	// After is how long a node has not to be ready, unless it shuts down, at the time Now.
	After time.Duration
	Now   time.Time
}

// comesLast reports whether the endpoints on a node come last.
func (w *World) comesLast(node string) bool {
	r := w.NodeHealth
	if r.Percent == 0 {
		return false
	}
	unready, last := 0, false
	for _, n := range w.Nodes {
		if n.Health == model.NodeReady {
			continue
		}
		unready++
		if n.Name == node {
			last = n.Health == model.NodeShuttingDown || !n.HealthSince.Add(r.After).After(r.Now)
		}
	}
	share := float64(unready) / float64(max(len(w.Nodes), 1))
	return last && 100*share <= float64(r.Percent)
}

// firstOnes are endpoints without those that come last, or all of them if they all do.
func (w *World) firstOnes(eps []endpoint) []endpoint {
	first := filter(eps, func(ep endpoint) bool { return !w.comesLast(ep.NodeName) })
	if len(first) == 0 {
		return eps
	}
	return first
}
