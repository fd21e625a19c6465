package brain

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Edge is which connections from outside nodes hand over to each other. The zero value hands none over.
//
// Kubernetes has no such rule. With it, endpoints of a Service with externalTrafficPolicy Cluster see the client's address, as with Local, although
// packets may come in at any node.
type Edge struct {
	// Enabled turns the edge on.
	Enabled bool
	// Annotated takes only services with the annotation switchyard.net/edge: "true". Otherwise, all services are taken but those with "false".
	Annotated bool
	// Kinds are the kinds of frontends whose connections are handed over. None stands for load balancer IPs and externalIPs. Cluster IPs do not count.
	Kinds state.FrontendKinds
}

// except returns the kinds of frontends for clients outside whose connections are not handed over.
func (e *Edge) except() state.FrontendKinds {
	kinds := e.Kinds
	if kinds == 0 {
		kinds = state.KindsOf(state.ExternalIP, state.LoadBalancer)
	}
	return state.KindsOf(state.ExternalIP, state.LoadBalancer, state.NodePort) &^ kinds
}

// edgeVersion is the version of the form in which nodes hand packets over.
const edgeVersion = "v1"

// EdgePort returns the UDP port at which a Node takes packets that others hand over, 0 if it takes no part. want completes the sentence "the annotation
// must be ...". It is empty if the annotation is absent or valid. A Node with a version that is not known takes no part, and so does one with a bad value.
func EdgePort(node *model.Node) (port uint16, want string) {
	if node.Edge == "" {
		return 0, ""
	}
	version, text, _ := strings.Cut(node.Edge, ",")
	n, ok := parsePort(text)
	if version != edgeVersion || !ok {
		return 0, `"v1," and a UDP port, such as "v1,7635"`
	}
	return n, ""
}

// PeerOf returns a Node as the edge of other nodes sees it. A Node without addresses takes no part. Of more than [model.MostOfNode] addresses and PodCIDRs,
// the first ones count.
func PeerOf(node *model.Node) state.Peer {
	p := state.Peer{ID: state.PeerID(node.Name), Name: node.Name}
	for _, a := range node.Addresses[:min(len(node.Addresses), model.MostOfNode)] {
		if familyOf(a) != 0 {
			p.Addresses = append(p.Addresses, a)
		}
	}
	for _, c := range node.PodCIDRs[:min(len(node.PodCIDRs), model.MostOfNode)] {
		if c.IsValid() && familyOf(c.Addr()) != 0 {
			p.PodCIDRs = append(p.PodCIDRs, c.Masked())
		}
	}
	p.PodCIDRs = sortedPrefixes(p.PodCIDRs)
	if len(p.Addresses) > 0 {
		p.Port, _ = EdgePort(node)
	}
	return p
}

// EdgeReason is a word for why nodes do not hand connections from outside to a port over to each other. It is empty if they do.
type EdgeReason string

// The reasons.
const (
	// EdgeDisabled: the configuration does not turn the edge on.
	EdgeDisabled EdgeReason = "EdgeDisabled"
	// EdgeOptedOut: the annotation switchyard.net/edge of the Service is "false".
	EdgeOptedOut EdgeReason = "EdgeOptedOut"
	// EdgeNotAsked: only Services with the annotation switchyard.net/edge: "true" are taken, and this one has it not.
	EdgeNotAsked EdgeReason = "EdgeNotAsked"
	// EdgeNoFrontend: the port has no frontend of a kind that is taken.
	EdgeNoFrontend EdgeReason = "EdgeNoFrontend"
	// EdgePolicyLocal: externalTrafficPolicy is Local, which keeps the client's address without an edge.
	EdgePolicyLocal EdgeReason = "EdgePolicyLocal"
	// EdgeProtocol: the port is of another protocol than TCP and UDP.
	EdgeProtocol EdgeReason = "EdgeProtocol"
	// EdgeRange: the port is a range of ports.
	EdgeRange EdgeReason = "EdgeRange"
	// EdgeAffinity: clients stay with their endpoint (sessionAffinity).
	EdgeAffinity EdgeReason = "EdgeAffinity"
	// EdgeBalance: endpoints are not drawn at random.
	EdgeBalance EdgeReason = "EdgeBalance"
	// EdgeEjection: silent endpoints get no new connections.
	EdgeEjection EdgeReason = "EdgeEjection"
	// EdgeDeadline: connections to endpoints that go have a deadline.
	EdgeDeadline EdgeReason = "EdgeDeadline"
	// EdgeNoEndpoints: no endpoint gets connections from outside.
	EdgeNoEndpoints EdgeReason = "EdgeNoEndpoints"
	// EdgeNoNode: an endpoint that gets connections from outside is on no known node.
	EdgeNoNode EdgeReason = "EdgeNoNode"
	// EdgeNodeApart: an endpoint that gets connections from outside is on a node that does not take part.
	EdgeNodeApart EdgeReason = "EdgeNodeApart"
	// EdgeTooLarge: the endpoints of the Service are on more nodes than a record has room for.
	EdgeTooLarge EdgeReason = "EdgeTooLarge"
)

// maxShares is how many shares a record may have. They take less than a MiB of its message (see [MaxEntries]).
const maxShares = 65536

// edges sets the edges of the ports of a service.
type edges struct {
	rule  *Edge
	asked option // by the service
	left  int    // of maxShares
}

func newEdges(cfg *Config, s *Settings) edges { return edges{&cfg.Edge, s.Edge, maxShares} }

// set sets the edge of p, whose other fields are set, and returns the reason and the node that have connections not be handed over. The external
// policy chooses among eps, which come from parts, and sh multiplies their weights.
func (e *edges) set(p *state.Port, here location, parts []part, eps candidates, sh shares, by choice) (why EdgeReason, node string) {
	if !e.rule.Enabled {
		return EdgeDisabled, ""
	}
	if why = e.refuses(p, by); why != "" {
		return why, ""
	}
	to := routeTo(by.localTo, state.Drop)
	if by.local.mask == 0 { // no policy of the service has needed it
		local, _ := eps.local(sh)
		to = routeTo(local, state.Drop)
	}
	if to.Equal(&p.External.Outside) {
		to = p.External.Outside // one list for both
	}
	p.Edge = &state.Edge{Local: to, Except: e.rule.except()}
	p.Edge.Shares, why, node = sharesOf(p.External.Outside.Endpoints, here, parts, e.left)
	e.left -= len(p.Edge.Shares)
	return why, node
}

// refuses returns why a port has no edge, empty if it has one. It has one only if nodes can do exactly what they do without.
func (e *edges) refuses(p *state.Port, by choice) EdgeReason {
	edge := state.Edge{Except: e.rule.except()}
	switch {
	case e.asked == no:
		return EdgeOptedOut
	case e.asked == asConfigured && e.rule.Annotated:
		return EdgeNotAsked
	case !edge.TakesOneOf(p.Frontends):
		return EdgeNoFrontend
	case by.external != PolicyCluster:
		return EdgePolicyLocal
	case p.Protocol != state.TCP && p.Protocol != state.UDP:
		return EdgeProtocol
	case p.Frontends[0].LastPort != 0:
		return EdgeRange
	case p.Affinity > 0:
		return EdgeAffinity
	case p.Balance != state.Random:
		return EdgeBalance
	case p.Ejection:
		return EdgeEjection
	case p.DrainSeconds > 0:
		return EdgeDeadline
	}
	return ""
}

// placed is an endpoint of a route, as a slice has it.
type placed struct {
	*model.Endpoint
	weight weight
}

// sharesOf returns the share of each node in a route to endpoints that come from parts. There are none if the node of an endpoint cannot serve its share,
// or if there are more than most. Then it returns why, and the first such node.
func sharesOf(to []state.Endpoint, here location, parts []part, most int) (shares []state.EdgeShare, why EdgeReason, node string) {
	if len(to) == 0 {
		return nil, EdgeNoEndpoints, ""
	}
	all := place(to, here, parts)
	shares = make([]state.EdgeShare, 0, len(to))
	for i, e := range all {
		switch {
		case e.NodeName == "":
			return nil, EdgeNoNode, ""
		case e.NodeApart:
			return nil, EdgeNodeApart, e.NodeName
		}
		shares = append(shares, state.EdgeShare{Node: state.PeerID(e.NodeName), Weight: uint32(max(1, to[i].Weight))})
	}
	slices.SortFunc(shares, state.EdgeShare.Compare)
	n := 0
	for _, s := range shares[1:] {
		if s.Node != shares[n].Node {
			n++
			shares[n] = s
			continue
		}
		shares[n].Weight = uint32(min(uint64(shares[n].Weight)+uint64(s.Weight), math.MaxUint32))
	}
	if n++; n > most {
		return nil, EdgeTooLarge, ""
	}
	return slices.Clip(slices.Clone(shares[:n])), "", ""
}

// place returns the endpoints of a route as slices have them. Of several with one address and port, it is the one that [candidate.compare] prefers, by
// what all nodes see alike.
func place(to []state.Endpoint, here location, parts []part) []placed {
	all := make([]placed, len(to))
	weighted := isWeighted(parts)
	for _, part := range parts {
		now, at := placed{weight: part.among(weighted)}, 0
		for i := range part.slice.Endpoints {
			now.Endpoint = &part.slice.Endpoints[i]
			addr := netip.AddrPortFrom(now.Addr, part.port)
			found := at < len(to) && to[at].Addr == addr // as in most slices, which are in order
			if !found {
				at, found = slices.BinarySearchFunc(to, addr, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
			}
			if !found {
				continue
			}
			if all[at].Endpoint == nil || now.compare(all[at], here) < 0 {
				all[at] = now
			}
			at++
		}
	}
	return all
}

func (p placed) compare(o placed, here location) int {
	return cmp.Or(cmp.Compare(here.traitsOf(o.Endpoint)&^local, here.traitsOf(p.Endpoint)&^local), cmp.Compare(o.weight, p.weight), cmp.Compare(p.NodeName, o.NodeName))
}
