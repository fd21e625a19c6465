package store

import (
	"net/netip"
	"reflect"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
)

// scope describes which nodes a change concerns. A nil scope means all nodes.
type scope struct {
	// others reports whether it concerns a node that is not mentioned below.
	others bool
	// zones and nodes, sorted, are exceptions. The answer is inverted for a node in one of zones, and inverted again
	// for one of nodes.
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

// maxCompared limits how many nodes, and how many zones, of one service are compared one by one where no shortcut
// applies. Above the limit, all named nodes count as concerned. With too many zones, which no cluster has, all nodes
// count.
const maxCompared = 64

// compare compares the answers for a service before and after a change, and returns which nodes the change concerns. At
// least one answer is not nil. nodes are all nodes. A record that is equal from a viewpoint stays the same record.
//
// There are three groups of nodes: nodes in no zone that counts, nodes in each zone that counts, and named nodes.
// Source ranges need no groups. They decide only who else is a source of a load balancer's frontends. If the sources
// are the same for the first group, they are the same for all groups.
func compare(previous, next *answer, nodes map[string]*model.Node, limit int) *scope {
	if previous == nil || next == nil {
		return nil
	}
	next.succeed(previous)
	c := comparison{previous, next, nodes, limit}
	s := &scope{others: c.differs("", nil)}
	zones := union(previous.facts.Zones, next.facts.Zones)
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
	previous, next *answer
	nodes          map[string]*model.Node
	limit          int // see maxCompared
}

// differs reports whether the record of a node is another one.
func (c *comparison) differs(name string, node *model.Node) bool {
	from, to := c.previous.view(name, node), c.next.view(name, node)
	return !sameRecord(c.previous.at(from), c.next.at(to))
}

// nameNodes adds the nodes to s whose answer differs from the answer of their zone. A named node is a node that the
// service's endpoints are on or hinted for.
//
// Without hints for nodes, connections go to the same endpoints from everywhere in a zone, or only to a node's own
// endpoints. So a change that concerns a zone also concerns its named nodes. Any other change concerns at most the
// nodes of the changed endpoints. Only these nodes are compared: comparing all nodes would cost too much for a large
// service.
func (c *comparison) nameNodes(s *scope) {
	names := union(c.previous.facts.Nodes, c.next.facts.Nodes)
	hints := c.previous.facts.HintsForNodes || c.next.facts.HintsForNodes
	if !hints && c.onlyEndpointsChanged() {
		changed := nodesOfChanged(c.previous.slices, c.next.slices, aged(c.previous.brain.Young, c.next.brain.Young))
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
	return c.previous.object == c.next.object || reflect.DeepEqual(c.previous.object, c.next.object)
}

// nodesOfChanged returns the nodes of all endpoints that differ between two lists of slices, and of endpoints with the addresses
// aged. It includes the nodes of all endpoints that share an address with one of these.
func nodesOfChanged(previous, next []*model.EndpointSlice, aged []netip.Addr) map[string]bool {
	gone := make(map[string]*model.EndpointSlice)
	for _, s := range previous {
		if !slices.Contains(next, s) {
			gone[s.Name] = s
		}
	}
	var changed []model.Endpoint
	for _, s := range next {
		if !slices.Contains(previous, s) {
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
	for _, addr := range aged {
		addrs[addr] = true
	}
	nodes := make(map[string]bool)
	for _, s := range slices.Concat(previous, next) {
		for i := range s.Endpoints {
			if addrs[s.Endpoints[i].Addr] {
				nodes[s.Endpoints[i].NodeName] = true
			}
		}
	}
	return nodes
}

// aged returns the addresses of endpoints that have become older, or are new or no longer so.
func aged(previous, next []brain.Young) (addrs []netip.Addr) {
	before := make(map[brain.Young]bool, len(previous))
	for _, y := range previous {
		before[y] = true
	}
	for _, y := range next {
		if !before[y] {
			addrs = append(addrs, y.Addr)
		}
		delete(before, y)
	}
	for y := range before {
		addrs = append(addrs, y.Addr)
	}
	return addrs
}

// changedEndpoints returns the endpoints that differ between two versions of a slice. The old version may be nil.
func changedEndpoints(previous, next *model.EndpointSlice) []model.Endpoint {
	if previous == nil {
		return next.Endpoints
	}
	before := make(map[netip.Addr]*model.Endpoint, len(previous.Endpoints))
	for i := range previous.Endpoints {
		before[previous.Endpoints[i].Addr] = &previous.Endpoints[i]
	}
	if len(before) < len(previous.Endpoints) || previous.Family != next.Family || previous.Headless != next.Headless ||
		previous.HasProxyName != next.HasProxyName || previous.ProxyName != next.ProxyName ||
		!slices.Equal(previous.Ports, next.Ports) || previous.Weight != next.Weight || previous.CiliumWeight != next.CiliumWeight {
		return slices.Concat(previous.Endpoints, next.Endpoints)
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
	return a.Addr == b.Addr && a.NodeName == b.NodeName && a.Zone == b.Zone && a.NodeUnready == b.NodeUnready && a.NodeApart == b.NodeApart &&
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
