// Package plan decides what IPVS serves for a Service, and what its own nftables table holds for that: pure, without a kernel.
//
// IPVS knows a virtual server as an address, a protocol, a port and the real servers behind it, the same for every client. So it gets the
// frontends whose record is as plain as that, and the dataplane below it gets the record without them.
package plan

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// Key identifies a virtual server.
type Key struct {
	Protocol state.Protocol
	Addr     netip.AddrPort
}

// Family returns the family of the server's address.
func (k Key) Family() state.Family { return state.FamilyOf(k.Addr.Addr()) }

func (k Key) String() string { return k.Addr.String() + "/" + k.Protocol.String() }

// Compare orders by address, port and protocol.
func (k Key) Compare(o Key) int {
	return cmp.Or(k.Addr.Compare(o.Addr), cmp.Compare(k.Protocol, o.Protocol))
}

// Server is a virtual server as it is to be.
type Server struct {
	Key
	// Counts is set if endpoints with fewer connections get more of the new ones.
	Counts bool
	// Masquerade is the rule for its connections.
	Masquerade state.Masquerade
	// Ping means that the node answers echo requests to the address. Everybody may ask, because everybody may connect.
	Ping bool
	// Endpoints share new connections. They are in order, as in a [state.Route], and must not be modified.
	Endpoints []state.Endpoint
	// Lingering are endpoints that keep the flows which they have, in order.
	Lingering []state.Endpoint
}

// Has reports whether an endpoint shares new connections.
func (s *Server) Has(a netip.AddrPort) bool { return has(s.Endpoints, a) }

// Keeps reports whether an endpoint keeps the flows that it has.
func (s *Server) Keeps(a netip.AddrPort) bool { return has(s.Endpoints, a) || has(s.Lingering, a) }

func has(endpoints []state.Endpoint, a netip.AddrPort) bool {
	_, found := slices.BinarySearchFunc(endpoints, a, func(e state.Endpoint, a netip.AddrPort) int { return e.Addr.Compare(a) })
	return found
}

// Equal reports whether two servers are the same in every field.
func (s *Server) Equal(o *Server) bool {
	return s.Key == o.Key && s.Counts == o.Counts && s.Masquerade == o.Masquerade && s.Ping == o.Ping &&
		slices.Equal(s.Endpoints, o.Endpoints) && slices.Equal(s.Lingering, o.Lingering)
}

// Settings are what the division depends on in addition to the record.
type Settings struct {
	// Excluded are addresses whose virtual servers are others'.
	Excluded []netip.Prefix
	// Local are the addresses of this machine, sorted. IPVS does not get them, because other listeners on them must keep working.
	Local []netip.Addr
	// Retired is set if IPVS is to serve nothing.
	Retired bool
	// Connections is set if the base needs all endpoints of a TCP port, including frontends that IPVS serves. Otherwise the base would reset
	// connections to the endpoints that it does not know. Among these are the endpoints of a port that has lost its deadline, and goes to IPVS.
	Connections bool
	// Weights is set if the scheduler shares connections by the weights of real servers. Otherwise frontends with different weights are left to the base.
	Weights bool
	// Counts is set if there is a scheduler for frontends whose connections are to be counted. Otherwise they are left to the base.
	Counts bool
}

// Equal reports whether two settings divide every record alike.
func (o *Settings) Equal(p *Settings) bool {
	return slices.Equal(o.Excluded, p.Excluded) && slices.Equal(o.Local, p.Local) && o.Connections == p.Connections &&
		o.Retired == p.Retired && o.Weights == p.Weights && o.Counts == p.Counts
}

// Serves reports whether a virtual server of ours may have an address.
func (o *Settings) Serves(addr netip.Addr) bool {
	if _, local := slices.BinarySearchFunc(o.Local, addr, netip.Addr.Compare); local {
		return false
	}
	return !o.Retired && !o.Excludes(addr)
}

// Excludes reports whether virtual servers at an address are others'.
func (o *Settings) Excludes(addr netip.Addr) bool {
	return slices.ContainsFunc(o.Excluded, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// Division is a record in two parts.
type Division struct {
	// Record is the whole.
	Record *state.Service
	// Base is what the dataplane below serves: the record itself if IPVS serves nothing of it.
	Base *state.Service
	// Servers are what IPVS serves, in order.
	Servers []Server
}

// Divide divides a record. Frontends for which refused returns true are left to the base.
func (o *Settings) Divide(s *state.Service, refused func(Key) bool) *Division {
	d := &Division{Record: s, Base: s}
	var ports []state.Port
	for i := range s.Ports {
		p := &s.Ports[i]
		left := p.Frontends
		for j := range p.Frontends {
			f := &p.Frontends[j]
			k := Key{p.Protocol, netip.AddrPortFrom(f.Addr, f.Port)}
			t, ok := o.plain(p, f)
			if !ok || !o.Serves(f.Addr) || refused(k) {
				if len(left) < len(p.Frontends) {
					left = append(left, *f)
				}
				continue
			}
			if len(left) == len(p.Frontends) {
				left = slices.Clone(p.Frontends[:j])
			}
			d.Servers = append(d.Servers, Server{
				Key: k, Counts: p.Balance == state.LeastConnections, Masquerade: t.Masquerade, Ping: f.Ping, Endpoints: t.Inside.Endpoints, Lingering: lingering(p, t),
			})
		}
		if len(left) == len(p.Frontends) {
			ports = append(ports, *p)
			continue
		}
		if len(left) > 0 || o.Connections && p.Protocol == state.TCP {
			q := *p
			q.Frontends = left
			ports = append(ports, q)
		}
	}
	if len(d.Servers) > 0 {
		d.Base = s.WithPorts(ports)
	}
	slices.SortFunc(d.Servers, func(a, b Server) int { return a.Compare(b.Key) })
	return d
}

// plain returns what happens to connections to a frontend, if IPVS can say it: the same for all clients.
func (o *Settings) plain(p *state.Port, f *state.Frontend) (*state.Traffic, bool) {
	t := p.Traffic(f.Kind)
	// A virtual server remembers clients for itself only, while their connections last. The affinity of a port covers all its frontends, and
	// ends some time after the last connection began. Hashes make the base's choice on all nodes. The base keeps deadlines in the kernel.
	return t, f.Kind != state.NodePort && !f.Restricted && p.Affinity == 0 && p.DrainSeconds == 0 &&
		t.Inside.Verdict == state.Forward && t.Inside.Equal(&t.Outside) && o.draws(p.Balance, &t.Inside)
}

// draws reports whether a scheduler can choose among the endpoints of a route. No scheduler refuses a share of connections.
func (o *Settings) draws(by state.Balance, r *state.Route) bool {
	switch by {
	case state.Random:
		return r.Even() || o.Weights && r.Refused == 0
	case state.LeastConnections:
		return o.Counts && r.Refused == 0
	}
	return false
}

// lingering returns the endpoints of a port that are not in a route of it, but may have flows.
func lingering(p *state.Port, t *state.Traffic) []state.Endpoint {
	if p.Protocol != state.UDP {
		return p.Lingering
	}
	// A flow stays valid as long as its endpoint serves the port by any route.
	all := slices.Clone(p.Lingering)
	for _, r := range p.Routes() {
		if len(r.Endpoints) > 0 && &r.Endpoints[0] != &t.Inside.Endpoints[0] {
			all = append(all, r.Endpoints...)
		}
	}
	all = slices.DeleteFunc(all, func(e state.Endpoint) bool { return has(t.Inside.Endpoints, e.Addr) })
	slices.SortFunc(all, state.Endpoint.Compare)
	return slices.CompactFunc(all, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
}

// Serving returns the endpoints of a record that may answer flows to the frontend of a server, in order. It returns nil if the record lacks
// the frontend.
func Serving(s *state.Service, k Key) []state.Endpoint {
	if s == nil {
		return nil
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		if p.Protocol != k.Protocol || !slices.ContainsFunc(p.Frontends, func(f state.Frontend) bool {
			return f.Kind != state.NodePort && netip.AddrPortFrom(f.Addr, f.Port) == k.Addr
		}) {
			continue
		}
		lists := p.Serving()
		all := slices.Concat(lists[:]...)
		slices.SortFunc(all, state.Endpoint.Compare)
		return slices.CompactFunc(all, func(a, b state.Endpoint) bool { return a.Addr == b.Addr })
	}
	return nil
}

// Served returns a division's record with those frontends alone that IPVS serves, or that it serves by another division of the service. It
// returns nil for none.
func Served(d, other *Division) *state.Service {
	if d == nil {
		return nil
	}
	mine := map[Key]bool{}
	for _, of := range []*Division{d, other} {
		if of != nil {
			for i := range of.Servers {
				mine[of.Servers[i].Key] = true
			}
		}
	}
	s := &state.Service{Name: d.Record.Name}
	for i := range d.Record.Ports {
		p := d.Record.Ports[i]
		p.Frontends = slices.DeleteFunc(slices.Clone(p.Frontends), func(f state.Frontend) bool {
			return f.Kind == state.NodePort || !mine[Key{p.Protocol, netip.AddrPortFrom(f.Addr, f.Port)}]
		})
		if len(p.Frontends) > 0 {
			s.Ports = append(s.Ports, p)
		}
	}
	return s
}

// EachUDP calls each with the frontends of a record that virtual servers of UDP could have.
func EachUDP(s *state.Service, each func(Key)) {
	for p, f := range s.Frontends() {
		if p.Protocol == state.UDP && f.Kind != state.NodePort {
			each(Key{state.UDP, netip.AddrPortFrom(f.Addr, f.Port)})
		}
	}
}
