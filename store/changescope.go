package store

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/switchyard-net/switchyard/model"
)

// scope describes which nodes a change concerns. A nil scope is that of a change which concerns all of them.
type scope struct {
	// others reports whether it concerns a node that is not mentioned below.
	others bool
	// zones and nodes, sorted, are exceptions: for a node in one of zones the answer is the other one, and for one of nodes it is
	// the other one once more.
	zones, nodes []string
}

// concerns reports whether a change concerns the node of a name in a zone.
func (s *scope) concerns(name, zone string) bool {
	return s == nil || s.inZone(zone) != has(s.nodes, name)
}

// inZone reports whether the change concerns the nodes in a zone that are no exceptions.
func (s *scope) inZone(zone string) bool {
	return s.others != has(s.zones, zone)
}

func has(sorted []string, name string) bool {
	_, found := slices.BinarySearch(sorted, name)
	return found
}

// few reports whether the change concerns none but the nodes that it names.
func (s *scope) few() bool { return s != nil && !s.others && len(s.zones) == 0 }

// none reports whether the change concerns no node.
func (s *scope) none() bool { return s.few() && len(s.nodes) == 0 }

// maxCompared bounds how many nodes of one service are looked at one by one where there is no quicker way to know which of
// them a change concerns, and how many zones. Beyond, all of them count as concerned: all named nodes, or with too many zones, of
// which no cluster has that many, all nodes.
const maxCompared = 64

// compare compares the answers for a service before and after a change, one of them not nil at least, and returns which
// nodes the change concerns. nodes are all nodes. What is equal from a viewpoint stays the same record.
//
// There are three groups of nodes: those in no zone that counts, those in each zone that counts, and those that are named.
// Source ranges make no groups of their own: they decide only who else is a source of a load balancer's frontends, and if
// those are the same for the first group then they are the same for all.
func compare(former, next *answer, nodes map[string]*model.Node, limit int) *scope {
	if former == nil || next == nil {
		return nil
	}
	next.succeed(former)
	c := comparison{former, next, nodes, limit}
	s := &scope{others: c.differs("", nil)}
	zones := union(former.facts.Zones, next.facts.Zones)
	if len(zones) > limit {
		return nil
	}
	for _, zone := range zones {
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
	limit        int // see maxCompared
}

// differs reports whether the record of a node is another one.
func (c *comparison) differs(name string, node *model.Node) bool {
	from, to := c.former.view(name, node), c.next.view(name, node)
	return !sameRecord(c.former.at(from), c.next.at(to))
}

// nameNodes adds the nodes to s for which the answer is not that of their zone. A named node is one that the service's
// endpoints are on or hinted for.
//
// Without hints for nodes, connections go to the same endpoints from everywhere in a zone, or nowhere but to a node's own. So
// a change that concerns a zone concerns its named nodes, too, and one that does not concerns at most the nodes of the
// endpoints that changed. The others need not be looked at, which would cost a large service too much.
func (c *comparison) nameNodes(s *scope) {
	names := union(c.former.facts.Nodes, c.next.facts.Nodes)
	hints := c.former.facts.HintsForNodes || c.next.facts.HintsForNodes
	if !hints && c.onlyEndpointsChanged() {
		changed := nodesOfChanged(c.former.slices, c.next.slices)
		names = slices.DeleteFunc(slices.Clone(names), func(name string) bool { return !changed[name] })
	}
	for _, name := range names {
		node := c.nodes[name]
		zone := ""
		if node != nil {
			zone = node.Zone
		}
		concerned := s.inZone(zone)
		if concerned && !hints {
			continue
		}
		if (len(names) > c.limit || c.differs(name, node)) != concerned {
			s.nodes = append(s.nodes, name)
		}
	}
}

// onlyEndpointsChanged reports that the two answers are for the same service object. Frontends that were lost or won in between
// change the record for everybody.
func (c *comparison) onlyEndpointsChanged() bool {
	return c.former.object == c.next.object || reflect.DeepEqual(c.former.object, c.next.object)
}

// nodesOfChanged returns the nodes of all endpoints that are not the same in both lists of slices, and of those that have an
// address in common with them.
func nodesOfChanged(former, next []*model.EndpointSlice) map[string]bool {
	gone := make(map[string]*model.EndpointSlice)
	for _, s := range former {
		if !slices.Contains(next, s) {
			gone[s.Name] = s
		}
	}
	var changed []model.Endpoint
	for _, s := range next {
		if !slices.Contains(former, s) {
			changed = append(changed, changedEndpoints(gone[s.Name], s)...)
			delete(gone, s.Name)
		}
	}
	for _, s := range gone {
		changed = append(changed, s.Endpoints...)
	}
	addrs := make(map[netip.Addr]bool, len(changed))
	for i := range changed {
		addrs[changed[i].Addr] = true
	}
	nodes := make(map[string]bool)
	for _, s := range slices.Concat(former, next) {
		for i := range s.Endpoints {
			if addrs[s.Endpoints[i].Addr] {
				nodes[s.Endpoints[i].NodeName] = true
			}
		}
	}
	return nodes
}

// changedEndpoints returns the endpoints that are not the same in two versions of a slice. former may be nil.
func changedEndpoints(former, next *model.EndpointSlice) []model.Endpoint {
	if former == nil {
		return next.Endpoints
	}
	before := make(map[netip.Addr]*model.Endpoint, len(former.Endpoints))
	for i := range former.Endpoints {
		before[former.Endpoints[i].Addr] = &former.Endpoints[i]
	}
	if len(before) < len(former.Endpoints) || former.Family != next.Family || former.Headless != next.Headless ||
		former.HasProxyName != next.HasProxyName || former.ProxyName != next.ProxyName ||
		!slices.Equal(former.Ports, next.Ports) {
		return slices.Concat(former.Endpoints, next.Endpoints)
	}
	var changed []model.Endpoint
	for _, e := range next.Endpoints {
		if b := before[e.Addr]; b == nil || !sameEndpoint(b, &e) {
			changed = append(changed, e)
		}
		delete(before, e.Addr)
	}
	for _, e := range before {
		changed = append(changed, *e)
	}
	return changed
}

func sameEndpoint(a, b *model.Endpoint) bool {
	return a.Addr == b.Addr && a.NodeName == b.NodeName &&
		a.Ready == b.Ready && a.Serving == b.Serving && a.Terminating == b.Terminating &&
		slices.Equal(a.ZoneHints, b.ZoneHints) && slices.Equal(a.NodeHints, b.NodeHints)
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
