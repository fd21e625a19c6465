package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Viewpoint has all properties of a node that matter to one service: nodes with the same viewpoint have equal records
// of the service. The zero Viewpoint is the viewpoint of a node that does not matter to the service. Most nodes do not
// matter to most services.
type Viewpoint struct {
	// Node is the node's name if an endpoint is on it or hinted for it.
	Node string
	// Zone is the node's zone if endpoints are hinted for it, or are in it and the service has zone weights.
	Zone string
	// Admitted are the families in which the service's source ranges contain an address of the node.
	Admitted Families
}

// Compute is [Compute] for all nodes that see svc from v. The NodeName of cfg does not count.
func (v Viewpoint) Compute(cfg *Config, svc *model.Service, slices []*model.EndpointSlice) *state.Service {
	return compute(cfg, location{node: v.Node, zone: v.Zone}, v.Admitted, svc, slices, nil)
}

// Facts are what makes a difference between nodes for one service.
type Facts struct {
	// Nodes are the sorted names of the nodes that endpoints are on or hinted for. Zones are the sorted names of the
	// zones that endpoints are hinted for or, with zone weights, are in.
	Nodes, Zones []string
	// HintsForNodes reports whether there are hints for nodes.
	HintsForNodes bool

	guarded *model.Service // the service if it has source ranges that count, else nil
}

// Guarded reports whether source ranges make a difference between nodes, by their addresses.
func (f *Facts) Guarded() bool { return f.guarded != nil }

// FactsOf returns the facts about nodes that count for svc and its slices. Neither may be modified while the facts are
// in use.
//
// Endpoints that are neither ready nor serving get no connections. Whether such an endpoint displaces another one with
// the same address does not depend on the node. Only the hints of ready endpoints count.
func FactsOf(cfg *Config, svc *model.Service, from []*model.EndpointSlice) *Facts {
	f := &Facts{}
	if svc == nil {
		return f
	}
	if svc.Type == model.TypeLoadBalancer && len(svc.SourceRanges) > 0 && len(svc.LoadBalancerIPs) > 0 {
		f.guarded = svc
	}
	weighs := SettingsOf(cfg, svc).ZoneWeights != ZoneWeights{}
	for _, s := range from {
		if !HandlesSlice(cfg, s) || !hasFamily(svc, s.Family) {
			continue
		}
		for i := range s.Endpoints {
			ep := &s.Endpoints[i]
			if ep.NodeName != "" && (ep.Ready || ep.Serving) {
				f.Nodes = append(f.Nodes, ep.NodeName)
			}
			if ep.Ready {
				f.Nodes = append(f.Nodes, ep.NodeHints...)
				if weighs {
					f.Zones = append(f.Zones, ep.Zone)
				} else {
					f.Zones = append(f.Zones, ep.ZoneHints...)
				}
				f.HintsForNodes = f.HintsForNodes || len(ep.NodeHints) > 0
			}
		}
	}
	f.Nodes, f.Zones = distinct(f.Nodes), distinct(f.Zones)
	return f
}

// distinct sorts names, without duplicates, and returns them in a slice of exact size.
func distinct(names []string) []string {
	slices.Sort(names)
	return slices.Clip(slices.Clone(slices.Compact(names)))
}

// View returns the viewpoint of the node of a name. node is its object, nil if there is none.
func (f *Facts) View(name string, node *model.Node) Viewpoint {
	var v Viewpoint
	if len(f.Nodes) > 0 && has(f.Nodes, name) {
		v.Node = name
	}
	if node == nil {
		return v
	}
	if len(f.Zones) > 0 && has(f.Zones, node.Zone) {
		v.Zone = node.Zone
	}
	if f.guarded != nil {
		v.Admitted = admitted(f.guarded, node)
	}
	return v
}

func has(sorted []string, name string) bool {
	_, found := slices.BinarySearch(sorted, name)
	return found
}

// admitted are the families whose load balancer IPs take the node's own addresses for allowed clients.
func admitted(svc *model.Service, node *model.Node) Families {
	if node == nil || len(svc.SourceRanges) == 0 {
		return Families{}
	}
	return Families{IPv4: admits(svc, node, state.IPv4), IPv6: admits(svc, node, state.IPv6)}
}

// admits reports whether a source range of family contains an address of the node.
func admits(svc *model.Service, node *model.Node, family state.Family) bool {
	// Each address is compared with each range, unless that could be many times many.
	const few = 8
	if len(node.Addresses) > few {
		return admitsOneOfMany(svc, node, family)
	}
	for _, r := range svc.SourceRanges {
		if r.IsValid() && familyOf(r.Addr()) == family && slices.ContainsFunc(node.Addresses, r.Contains) {
			return true
		}
	}
	return false
}

// admitsOneOfMany is admits for a node with many addresses: it takes as long as there are ranges and addresses, not their product.
func admitsOneOfMany(svc *model.Service, node *model.Node, family state.Family) bool {
	ranges := make(map[netip.Prefix]struct{}, len(svc.SourceRanges))
	var lengths []int
	var known [129]bool
	for _, r := range svc.SourceRanges {
		if !r.IsValid() || familyOf(r.Addr()) != family {
			continue
		}
		ranges[r.Masked()] = struct{}{}
		if !known[r.Bits()] {
			known[r.Bits()] = true
			lengths = append(lengths, r.Bits())
		}
	}
	return slices.ContainsFunc(node.Addresses, func(a netip.Addr) bool {
		return a.Zone() == "" && slices.ContainsFunc(lengths, func(n int) bool {
			p, err := a.Prefix(n)
			_, ok := ranges[p]
			return err == nil && ok
		})
	})
}
