package store

import (
	"maps"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
)

// maxNodeBytes bounds the names of the Nodes whose health counts. It has room for 20,000 names of 253 bytes, or for 100,000 usual ones.
const maxNodeBytes = 8 << 20

// nodeCost is what a Node counts in addition to its name.
const nodeCost = 64

// nodeHealth knows which Nodes are not ready. It judges by [brain.NodeHealth] on which Nodes
// endpoints come last.
type nodeHealth struct {
	rule brain.NodeHealth
	// known are the Nodes, which take so many bytes. Nodes beyond maxNodeBytes are in rejected, by number, and count as if there were none.
	known    map[string]struct{}
	bytes    int
	rejected int
	notReady map[string]NodeCondition
	// last are the Nodes whose endpoints come last.
	last    map[string]struct{}
	ignored bool // by the rule's IgnoreAbove
	// changed reports that the rule or a Node has changed since the last judgment. Otherwise, the judgment stays until next, if that is not zero.
	changed bool
	next    time.Time
}

// NodeCondition is the health of a Node that is not ready.
type NodeCondition struct {
	Health model.NodeHealth
	// Since is when it ceased to be ready: as its object has it, but not later than the store learned of it.
	Since time.Time
}

func newNodeHealth() nodeHealth {
	return nodeHealth{known: make(map[string]struct{}), notReady: make(map[string]NodeCondition)}
}

// set notes the health of a Node, nil if it is gone.
func (h *nodeHealth) set(name string, node *model.Node, now time.Time) {
	_, known := h.known[name]
	switch cost := len(name) + nodeCost; {
	case node == nil && known:
		delete(h.known, name)
		h.bytes -= cost
		h.changed = true
	case node == nil:
		return
	case !known && h.bytes+cost > maxNodeBytes:
		h.rejected++
		h.changed = true
		return
	case !known:
		h.known[name] = struct{}{}
		h.bytes += cost
		h.changed = true
	}
	was, before := h.notReady[name]
	if node == nil || node.Health == model.NodeReady {
		delete(h.notReady, name)
		h.changed = h.changed || before
		return
	}
	is := NodeCondition{node.Health, node.HealthSince}
	if is.Since.IsZero() || is.Since.After(now) {
		is.Since = now
	}
	if before { // which has not ended
		if was.Since.Before(is.Since) {
			is.Since = was.Since
		}
		if was.Health == model.NodeShuttingDown && is.Health == model.NodeSilent {
			is.Health = was.Health // the machine is off now
		}
	}
	if is != was {
		h.notReady[name] = is
		h.changed = true
	}
}

// isDue reports whether another judgment may come out.
func (h *nodeHealth) isDue(now time.Time) bool {
	return h.changed || !h.next.IsZero() && !now.Before(h.next)
}

// judge judges all Nodes. It returns the Nodes whose endpoints begin to come last, and those whose endpoints no longer do.
func (h *nodeHealth) judge(now time.Time) (begun, ended []string) {
	h.changed, h.next = false, time.Time{}
	h.ignored = h.rule.Enabled && h.rule.Ignores(len(h.notReady), len(h.known))
	last := make(map[string]struct{})
	if h.rule.Enabled && !h.ignored {
		for name, c := range h.notReady {
			from := h.rule.LastFrom(c.Health, c.Since)
			if !from.After(now) {
				last[name] = struct{}{}
			} else if h.next.IsZero() || from.Before(h.next) {
				h.next = from
			}
		}
	}
	begun, ended = missing(last, h.last), missing(h.last, last)
	h.last = last
	return begun, ended
}

// missing returns the names of a that b has not, in order.
func missing(a, b map[string]struct{}) []string {
	return slices.Sorted(func(yield func(string) bool) {
		for name := range a {
			if _, ok := b[name]; !ok && !yield(name) {
				return
			}
		}
	})
}

// unreadyOf returns the Nodes with endpoints of some slices that come last, nil if there are none.
func (h *nodeHealth) unreadyOf(list []*model.EndpointSlice) (nodes map[string]NodeCondition) {
	for _, s := range list {
		for i := range s.Endpoints {
			if e := &s.Endpoints[i]; e.NodeUnready {
				if nodes == nil {
					nodes = make(map[string]NodeCondition)
				}
				nodes[e.NodeName] = h.notReady[e.NodeName]
			}
		}
	}
	return nodes
}

func (h *nodeHealth) isLast(node string) bool {
	if len(h.last) == 0 {
		return false
	}
	_, ok := h.last[node]
	return ok
}

// setHealthRule changes the rule by which endpoints come last.
func (o *objects) setHealthRule(rule brain.NodeHealth) {
	h := &o.health
	if rule == h.rule {
		return
	}
	h.rule, h.changed = rule, true
	o.place() // the places stay for the judgment that ends with the rule
}

// judgeNodes judges all Nodes, and marks the services with endpoints on Nodes whose judgment changes.
func (o *objects) judgeNodes(now time.Time) (begun, ended []string) {
	begun, ended = o.health.judge(now)
	o.markNodes(slices.Concat(begun, ended))
	if !o.health.rule.Enabled && !o.edge.on {
		o.places = nil
	}
	return begun, ended
}

// NodeHealth is what a store knows about the health of Nodes.
type NodeHealth struct {
	// Enabled reports whether it counts.
	Enabled bool
	// Nodes are all Nodes that are known, and NotReady those that are not ready.
	Nodes, NotReady int
	// Last are the names of the Nodes whose endpoints come last, in order.
	Last []string
	// Ignored reports that no endpoint comes last, because too many Nodes are not ready.
	Ignored bool
	// Rejected is how many times a Node was left out because the names of the others take 8 MiB.
	Rejected int
}

// NodeHealth returns the health of Nodes by the latest judgment. It does not wait for changes that are being taken in.
func (c *core) NodeHealth() NodeHealth { return *c.nodeHealth.Load() }

// judgeNodes judges who takes part in the edge, and on which Nodes endpoints come last. It has the latter repeated when a Node has been unready for long
// enough. The caller holds mu.
func (c *core) judgeNodes() {
	c.judgeEdge()
	now := time.Now()
	h := &c.objects.health
	if h.isDue(now) {
		wasIgnored := h.ignored
		begun, ended := c.objects.judgeNodes(now)
		c.noteJudgment(begun, ended, wasIgnored)
		c.stopJudging()
	}
	if c.judgment == nil && !h.next.IsZero() {
		c.judgment = time.AfterFunc(h.next.Sub(now), func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.judgment = nil
			c.publish()
		})
	}
}

// noteJudgment logs how a judgment differs from the one before, and keeps it for those who ask.
func (c *core) noteJudgment(begun, ended []string, wasIgnored bool) {
	h, was := &c.objects.health, c.nodeHealth.Load()
	is := &NodeHealth{Enabled: h.rule.Enabled, Nodes: len(h.known), NotReady: len(h.notReady), Last: was.Last, Ignored: h.ignored, Rejected: h.rejected}
	if len(begun)+len(ended) > 0 {
		is.Last = slices.Sorted(maps.Keys(h.last))
	}
	c.nodeHealth.Store(is)
	switch {
	case h.ignored && !wasIgnored:
		c.log.Warn("no endpoint comes last because of its node: too many nodes are not ready", "notReady", is.NotReady, "nodes", is.Nodes, "mostPercent", h.rule.IgnoreAbove)
	case wasIgnored && !h.ignored:
		c.log.Info("the health of nodes counts again", "notReady", is.NotReady, "nodes", is.Nodes)
	}
	if len(begun) > 0 {
		c.log.Info("endpoints of unready nodes come last", "nodes", someOf(begun), "count", len(begun))
	}
	if len(ended) > 0 {
		c.log.Info("endpoints of nodes no longer come last", "nodes", someOf(ended), "count", len(ended))
	}
	if is.Enabled && is.Rejected > 0 && was.Rejected == 0 {
		c.log.Warn("too many nodes: the health of further ones does not count", "nodes", is.Nodes)
	}
}

// stopJudging cancels the judgment that would be due next. The caller holds mu.
func (c *core) stopJudging() {
	if c.judgment != nil {
		c.judgment.Stop()
		c.judgment = nil
	}
}

// someOf returns the first few of some names.
func someOf(names []string) []string { return names[:min(len(names), 8)] }
