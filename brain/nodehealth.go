package brain

import (
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// NodeHealth is the rule by which the endpoints on an unready Node come last. The zero value has no such endpoints.
//
// Kubernetes has no such rule: pods on a Node that shuts down stay ready until their probes fail (kubernetes#116965).
type NodeHealth struct {
	// Enabled turns the rule on.
	Enabled bool
	// NotReadyAfter is how long the condition Ready of a Node has not to be True. A Node that shuts down is unready at once.
	NotReadyAfter time.Duration
	// IgnoreAbove is a share of all Nodes in percent. While more of them are not Ready, no endpoint comes last: the control plane is more
	// likely to be broken than the Nodes. The node lifecycle controller stops its evictions for the same reason (--unhealthy-zone-threshold).
	IgnoreAbove int
}

// Ignores reports whether so many Nodes, of all Nodes, are not Ready that the rule does not apply.
func (r *NodeHealth) Ignores(notReady, nodes int) bool {
	return int64(notReady)*100 > int64(nodes)*int64(r.IgnoreAbove)
}

// LastFrom returns when the endpoints of a Node begin to come last, if its health stays: it is since some time. The Node is not ready.
func (r *NodeHealth) LastFrom(health model.NodeHealth, since time.Time) time.Time {
	if health == model.NodeShuttingDown {
		return since
	}
	return since.Add(r.NotReadyAfter)
}

// preferring narrows a selection to the endpoints on Nodes that are not unready, if it has any.
func (c candidates) preferring(s selection) selection {
	up := selection{s.mask | nodeUp, s.want | nodeUp}
	if slices.ContainsFunc(c, func(e candidate) bool { return up.misses(e.is) == 0 }) {
		return up
	}
	return s
}

// ready selects the ready endpoints that hints choose among.
func (c candidates) ready() selection { return c.preferring(selection{ready, ready}) }

// terminating returns the endpoints that serve while they terminate.
func (c candidates) terminating() ([]state.Endpoint, selection) {
	rest := c.preferring(selection{serving | lasting, serving})
	return c.having(rest, shares{}), rest
}
