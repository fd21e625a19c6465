package store

import (
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
)

// scope says which nodes a change concerns. A nil scope is that of a change which concerns all of them.
type scope struct {
	// others says whether it concerns a node of which nothing is said below.
	others bool
	// zones and nodes are exceptions: for a node in one of zones the answer is the other one, and for one of nodes it is the
	// other one once more.
	zones, nodes []string
}

// concerns says whether a change concerns the node of a name in a zone.
func (s *scope) concerns(name, zone string) bool {
	return s == nil || s.inZone(zone) != slices.Contains(s.nodes, name)
}

// inZone says whether the change concerns the nodes in a zone that are no exceptions.
func (s *scope) inZone(zone string) bool {
	return s.others != slices.Contains(s.zones, zone)
}

// few says that the change concerns none but the nodes that it names.
func (s *scope) few() bool { return s != nil && !s.others && len(s.zones) == 0 }

// none says that the change concerns no node.
func (s *scope) none() bool { return s.few() && len(s.nodes) == 0 }

// replace compares the answers for a service before and after a change, of which at least one is not nil, and returns which
// nodes the change concerns. nodes are all nodes. What is equal from some viewpoint is taken over into the new answer.
//
// There are three groups of nodes: those in no zone that counts, those in each zone that counts, and those that are named.
// Source ranges make no groups of their own: they decide only who else is a source of a load balancer's frontends, and if
// those are the same for the first group then they are the same for all.
func replace(former, next *answer, nodes map[string]*model.Node) *scope {
	if former == nil || next == nil {
		return nil
	}
	c := comparison{former, next, nodes}
	s := &scope{others: c.differs("", nil)}
	for _, zone := range union(former.facts.Zones, next.facts.Zones) {
		if zone != "" && c.differs("", &model.Node{Zone: zone}) != s.others {
			s.zones = append(s.zones, zone)
		}
	}
	c.nameNodes(s)
	if s.others && len(s.zones) == 0 && len(s.nodes) == 0 {
		return nil
	}
	return s
}

// comparison compares two answers.
type comparison struct {
	former, next *answer
	nodes        map[string]*model.Node
}

// differs says whether the record of a node is another one.
func (c *comparison) differs(name string, node *model.Node) bool {
	from, to := c.former.view(name, node), c.next.view(name, node)
	before, after := c.former.at(from), c.next.at(to)
	if !sameRecord(before, after) {
		return true
	}
	switch {
	case before == after:
	case to == brain.Viewpoint{}:
		c.next.common = before
	default:
		c.next.keep(to, before)
	}
	return false
}

// nameNodes adds the nodes to s for which the answer is not that of their zone. A named node is one that the service's
// endpoints are on or hinted for.
//
// Where connections go to the same endpoints from everywhere in a zone, or nowhere but to a node's own, a change that
// concerns a zone concerns its named nodes, too. So it need not be computed for each of them. Only hints for nodes can make
// a named node the only one that is not concerned.
func (c *comparison) nameNodes(s *scope) {
	hints := c.former.facts.HintsForNodes || c.next.facts.HintsForNodes
	for _, name := range union(c.former.facts.Nodes, c.next.facts.Nodes) {
		node := c.nodes[name]
		zone := ""
		if node != nil {
			zone = node.Zone
		}
		if concerned := s.inZone(zone); !concerned || hints {
			if c.differs(name, node) != concerned {
				s.nodes = append(s.nodes, name)
			}
		}
	}
}

// union merges two sorted lists without duplicates.
func union(a, b []string) []string {
	if slices.Equal(a, b) {
		return a
	}
	merged := slices.Concat(a, b)
	slices.Sort(merged)
	return slices.Compact(merged)
}
