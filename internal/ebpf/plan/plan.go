// Package plan works out what socket hooks do for a Service: which of its frontends they translate, and for which clients. It is pure.
//
// Hooks take only connections that they can translate exactly as netfilter does: forwarded TCP without a new source
// address, source ranges and affinity. No share of them is refused. Hooks know the destination of a connection and the process that makes it, but
// not yet its source address. All other connections are in no plan and are left to netfilter.
package plan

import (
	"cmp"
	"iter"
	"maps"
	"math"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Clients are those who connect through a hook.
type Clients uint8

// The kinds of client. Programs use the same numbers.
const (
	Pods Clients = 1 << iota
	Node
)

// Settings are the inputs of all plans in addition to the records.
type Settings struct {
	// Detector distinguishes pods from other clients, if need be by the node's PodCIDRs.
	Detector state.LocalDetector
	PodCIDRs []netip.Prefix
	// Local are the addresses of the node's interfaces. A connection to one of them may be meant for a process of the
	// node.
	Local map[netip.Addr]bool
	// NodePorts are the addresses that serve NodePorts, sorted. No plan depends on them, but [Owned] does.
	NodePorts []netip.Addr
}

// Equal reports whether two settings are the same.
func (s *Settings) Equal(o *Settings) bool {
	return s == o || s.Detector.Equal(o.Detector) && slices.Equal(s.PodCIDRs, o.PodCIDRs) && maps.Equal(s.Local, o.Local) &&
		slices.Equal(s.NodePorts, o.NodePorts)
}

// byInterface reports whether pods are recognized by their interfaces on the node.
func (s *Settings) byInterface() bool {
	d := s.Detector
	return len(d.ClusterCIDRs) == 0 && !d.NodeCIDR && (d.BridgeInterface != "" || d.InterfacePrefix != "")
}

// detects reports whether pods are recognized by their addresses in a family.
func (s *Settings) detects(f state.Family) bool {
	if len(s.Detector.ClusterCIDRs) == 0 && s.Detector.NodeCIDR {
		return slices.ContainsFunc(s.PodCIDRs, func(p netip.Prefix) bool { return state.FamilyOf(p.Addr()) == f })
	}
	return s.Detector.Detects(f)
}

// Route leads from frontends of one port to the endpoints for connections from inside.
type Route struct {
	// Port is a port of the record; the route is for all frontends but cluster IPs if External is set, else for these.
	Port     *state.Port
	External bool
	Clients  Clients
	// Frontends has bit i for Port.Frontends[i].
	Frontends uint64
	slots     *slots
}

// maxFrontends and maxEndpoints are what one route can have. Records beyond these limits are left to netfilter.
const (
	maxFrontends = 64
	maxEndpoints = math.MaxUint16
)

// Append appends the routes of a record to list, in the order of [Route.Compare].
func Append(list []Route, s *state.Service, settings *Settings) []Route {
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol != state.TCP || p.Affinity > 0 || p.Balance != state.Random || p.DrainSeconds > 0 || p.Frontends[0].LastPort != 0 {
			continue // as ranges of ports are: netfilter serves them
		}
		for _, external := range []bool{false, true} {
			r := Route{Port: p, External: external}
			if r.Clients = clientsOf(r.traffic(), p.Family, settings); r.Clients == 0 || len(r.Endpoints()) > maxEndpoints || r.traffic().Inside.Refused > 0 {
				continue
			}
			var ok bool
			if r.slots, ok = slotsOf(&r.traffic().Inside); !ok {
				continue
			}
			if r.Frontends = frontendsOf(p, external, settings.Local); r.Frontends != 0 {
				list = append(list, r)
			}
		}
	}
	return list
}

// Owned appends to list the addresses out of settings.NodePorts at which a record has TCP frontends of its own. An
// example is a load balancer that uses the nodes' addresses. A frontend with an address goes before the NodePort with
// that number of another Service, also if the frontend is in no plan. So hooks must not serve NodePorts there.
func Owned(list []netip.Addr, s *state.Service, settings *Settings) []netip.Addr {
	if len(settings.NodePorts) == 0 {
		return list
	}
	for p, f := range s.Frontends() {
		if p.Protocol != state.TCP {
			continue
		}
		if _, serves := slices.BinarySearchFunc(settings.NodePorts, f.Addr, netip.Addr.Compare); serves && !slices.Contains(list, f.Addr) {
			list = append(list, f.Addr)
		}
	}
	return list
}

// clientsOf returns the clients of t whose connections netfilter would send to the endpoints for connections from inside, without
// changing the source address.
func clientsOf(t *state.Traffic, f state.Family, settings *Settings) (c Clients) {
	if t.Inside.Verdict != state.Forward {
		return 0
	}
	// A socket of the node has no source address yet. It gets the source address of the route to the endpoint, as if
	// it were masqueraded.
	c = Node
	switch {
	case settings.byInterface():
		// Whether a namespace is a pod's shows at its interface on the node only.
	case settings.detects(f):
		if t.Masquerade != state.MasqueradeAlways {
			c |= Pods
		}
	case t.Outside.Equal(&t.Inside) && (t.Masquerade == state.MasqueradeNever || t.Masquerade == state.MasqueradeNode):
		c |= Pods // clients from outside, as nobody can distinguish them
	}
	return c
}

func frontendsOf(p *state.Port, external bool, local map[netip.Addr]bool) (set uint64) {
	for i := range p.Frontends[:min(len(p.Frontends), maxFrontends)] {
		f := &p.Frontends[i]
		if (f.Kind != state.ClusterIP) == external && !f.Restricted && !local[f.Addr] {
			set |= 1 << i
		}
	}
	return set
}

func (r *Route) traffic() *state.Traffic {
	if r.External {
		return &r.Port.External
	}
	return &r.Port.Internal
}

// Endpoints are where connections through the route go. The slice is the record's.
func (r *Route) Endpoints() []state.Endpoint { return r.traffic().Inside.Endpoints }

// Within returns r with only the clients and endpoints that o also has, and reports whether r has endpoints that o
// does not have.
func (r *Route) Within(o *Route) (within Route, fewer bool) {
	within = *r
	within.Clients &= o.Clients
	var shared []state.Endpoint
	others := o.Endpoints()
	for _, e := range r.Endpoints() { // both are in the order of Endpoint.Compare
		for len(others) > 0 && others[0].Compare(e) < 0 {
			others = others[1:]
		}
		if len(others) > 0 && others[0].Compare(e) == 0 {
			shared = append(shared, e)
		}
	}
	if len(shared) < len(r.Endpoints()) {
		port := *r.Port
		within.Port = &port
		within.traffic().Inside.Endpoints = shared
		within.slots, _ = slotsOf(&within.traffic().Inside) // there are fewer than before
		return within, true
	}
	return within, false
}

// Compare orders the routes of a Service. Routes of two versions of its record that replace each other are equal.
func (r *Route) Compare(o *Route) int {
	return cmp.Or(r.Port.Compare(o.Port), cmp.Compare(rank(r.External), rank(o.External)))
}

func rank(external bool) int {
	if external {
		return 1
	}
	return 0
}

// Frontend is the address and port of a frontend in the maps of its family. NodePorts have no address.
type Frontend struct {
	Addr netip.Addr
	Port uint16
}

// All yields the frontends of a route with the numbers of their bits.
func (r *Route) All() iter.Seq2[int, Frontend] { return r.Beyond(nil) }

// Beyond yields the frontends of a route that another one does not have, nil for none at all.
func (r *Route) Beyond(o *Route) iter.Seq2[int, Frontend] {
	return func(yield func(int, Frontend) bool) {
		var others uint64
		if o != nil {
			others = o.Frontends
		}
		for mine := r.Frontends; mine != 0; mine &= mine - 1 {
			i := bits.TrailingZeros64(mine)
			f := &r.Port.Frontends[i]
			// Both are in the order of Frontend.Compare.
			var order = 1
			for others != 0 {
				if order = o.Port.Frontends[bits.TrailingZeros64(others)].Compare(*f); order >= 0 {
					break
				}
				others &= others - 1
			}
			if others != 0 && order == 0 {
				continue
			}
			if !yield(i, Frontend{f.Addr, f.Port}) {
				return
			}
		}
	}
}
