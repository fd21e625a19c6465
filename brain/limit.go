package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// MaxEntries is how many entries a record may have. An endpoint of a port in a family is an entry, and so are a frontend and each
// source that it admits; a port itself counts as five.
//
// A record travels in one piece, in a message of localnet.v1 that clients take up to a size of 64 MiB. An entry takes 38 bytes at
// most, which is an IPv6 endpoint on this node in all four routes of its port: so a record takes less than 61 MB. It is enough for
// 300 ports with 5,000 endpoints each, and Services near it are beyond what dataplanes were made for.
const MaxEntries = 1_600_000

// portEntries is what a port counts for its name, its verdicts, and the beginnings of its lists.
const portEntries = 5

// Excess is what a service has beyond [MaxEntries]. It is the same from every node. The zero Excess is that of a service which
// has nothing.
type Excess struct {
	// Entries are what the whole service would take. Endpoints that several slices have count several times.
	Entries int64
	// Refused is the number of ports, those of two families counted twice, to which connections are refused because there is no
	// room for their endpoints. Unrouted are those without room even for their frontends.
	Refused, Unrouted int
	// Port is the first unrouted port, or the first refused one if there is none.
	Port model.ServicePort
}

// ExcessOf returns what [Compute] leaves out of the record of a service, because the record would be too large.
//
// First all ports get their frontends, in the order of the spec and IPv4 before IPv6, then they get their endpoints in that order,
// all of them or none, as long as there is room. So nobody is sent to fewer endpoints than there are, and a frontend
// falls to another service only if there is no room even for frontends.
func ExcessOf(cfg *Config, svc *model.Service, slices []*model.EndpointSlice) Excess {
	if !handles(cfg, svc) || surelyFits(svc, slices) {
		return Excess{}
	}
	b := budget{room: MaxEntries}
	from := newSupply(slices, len(svc.Ports))
	for _, p := range frame(svc, Families{}, &b) {
		b.endpoints(&p, from.of(nil, &p))
	}
	if b.excess.Refused+b.excess.Unrouted == 0 {
		return Excess{}
	}
	return b.excess
}

// surelyFits is a quick look that finds most services small.
func surelyFits(svc *model.Service, slices []*model.EndpointSlice) bool {
	sources := len(svc.SourceRanges) + 1
	frontends := len(svc.ClusterIPs) + len(svc.ExternalIPs) + len(svc.LoadBalancerIPs)*(1+sources) + 1
	n := int64(len(svc.Ports)) * 2 * int64(portEntries+frontends)
	for _, s := range slices {
		if s != nil {
			n += int64(len(s.Ports)) * int64(len(s.Endpoints))
		}
	}
	return n <= MaxEntries
}

// budget counts the entries of a record.
type budget struct {
	room   int64
	excess Excess
}

// takes says whether n entries have room, and if so takes it.
func (b *budget) takes(n int64) bool {
	b.excess.Entries += n
	if n > b.room {
		return false
	}
	b.room -= n
	return true
}

// frontends says whether a port has room with frontends that take n entries.
func (b *budget) frontends(port *model.ServicePort, n int64) bool {
	if b.takes(portEntries + n) {
		return true
	}
	b.excess.note(*port)
	b.excess.Unrouted++
	return false
}

// endpoints says whether the endpoints of p, which are to come from parts, have room. It counts what the slices say, which nodes
// see alike, not what is left of it here.
func (b *budget) endpoints(p *state.Port, parts []part) bool {
	var n int64
	for _, part := range parts {
		n += int64(len(part.slice.Endpoints))
	}
	if b.takes(n) {
		return true
	}
	b.excess.note(model.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: p.Frontends[0].Port})
	b.excess.Refused++
	return false
}

func (e *Excess) note(port model.ServicePort) {
	if e.Refused+e.Unrouted == 0 {
		e.Port = port
	}
}
