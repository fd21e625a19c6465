package brain

import (
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// MaxEntries limits the entries of one service, regardless of [Config.MaxEntries]. Entries measure the cost of a
// service on a node. Each endpoint behind a frontend is one entry, and each source that a frontend admits is one. A
// frontend counts as five, a range of ports at an address as 35, and a port of a family as five more. Endpoints of a port with weights count as two
// each. A frontend that answers echo requests counts as one more, and each of its sources as two.
//
// A record travels in one message of switchyard.localnet.v1, and clients accept messages of up to 64 MiB. An entry
// takes at most 41 bytes: an IPv6 endpoint on this node in all routes and the edge of a port with one frontend. So a record
// takes less than 66 MB. Its shares, which do not count as entries, take less than a MB.
const MaxEntries = 1_600_000

const (
	// portEntries is the cost of a port for its name, its verdicts, and the beginnings of its lists.
	portEntries = 5
	// frontendEntries is the cost of a frontend. A frontend takes five times the memory of an endpoint behind it. Its
	// holder is looked up in the store and in the dataplane (docs/adr/0034-budgets-in-bytes.md).
	frontendEntries = 5
)

// maxEntries is how many entries a service may have.
func (c *Config) maxEntries() int64 {
	if c.MaxEntries <= 0 {
		return MaxEntries
	}
	return min(c.MaxEntries, MaxEntries)
}

// Size says how much of a service is routed, and how much is left out because there is no room. All nodes compute the
// same Size. The zero Size means that the service is not routed at all.
type Size struct {
	// Entries is the cost of the service's record. Endpoints that several slices have count several times.
	Entries int64
	// Wanted is the cost of the whole service, or at least a number above the service's limit. It equals Entries if the
	// whole service has room.
	Wanted int64
	// Refused is the number of ports that refuse connections because there is no room for their endpoints. A port in
	// two families counts twice. Unrouted counts the ports without room even for their frontends.
	Refused, Unrouted int
	// Frontends are those that the whole service would take. They are more than [Config.MaxFrontends] only if ports are unrouted for that.
	Frontends int64
	// Port is the first unrouted port, or the first refused one if there is none.
	Port model.ServicePort
}

// Fits reports whether the whole service has room.
func (s *Size) Fits() bool { return s.Refused+s.Unrouted == 0 }

// SizeOf returns how much of a service [Compute] puts into its record, given [Config.MaxEntries].
//
// First all ports get their frontends, in the order of the spec and IPv4 before IPv6. Then ports get their endpoints in
// that order, all of them or none, while there is room. So each routed port has all of its endpoints, and another
// service gets a frontend only if there is no room even for frontends.
func SizeOf(cfg *Config, svc *model.Service, slices []*model.EndpointSlice) Size {
	if skips(cfg, svc) != "" {
		return Size{}
	}
	b := newBudget(cfg)
	// Constants keep these off the heap, as in compute.
	frontends, claims, parts := make([]state.Frontend, 0, 4), make([]claim, 0, 8), make([]part, 0, 4)
	settings := SettingsOf(cfg, svc)
	claims, _ = claimsOf(claims, frontends, cfg, svc, &settings, Families{}, &b, nil)
	b.weighted = settings.multiplies()
	from := newSupply(cfg, slices, len(svc.Ports))
	for i := range claims {
		c := &claims[i]
		parts = from.forClaim(parts[:0], c)
		b.endpoints(c, parts)
	}
	return b.size
}

// budget counts the entries of a record.
type budget struct {
	max          int64
	maxFrontends int64 // 0: no bound of their own
	routed       int64 // frontends
	weighted     bool  // all endpoints may have weights, whatever slices give them
	size         Size
}

func newBudget(cfg *Config) budget {
	return budget{max: cfg.maxEntries(), maxFrontends: cfg.MaxFrontends}
}

// takes reports whether n entries have room, and if so takes it.
func (b *budget) takes(n int64) bool {
	b.size.Wanted += n
	if n > b.max-b.size.Entries {
		return false
	}
	b.size.Entries += n
	return true
}

// frontends reports whether a port has room with so many frontends, which take n entries.
func (b *budget) frontends(port *model.ServicePort, frontends, n int64) bool {
	b.size.Frontends += frontends
	if b.maxFrontends > 0 && b.routed+frontends > b.maxFrontends {
		b.size.Wanted += portEntries + n
	} else if b.takes(portEntries + n) {
		b.routed += frontends
		return true
	}
	b.size.note(port)
	b.size.Unrouted++
	return false
}

// endpoints reports whether the endpoints of a port have room. The endpoints come from parts. It counts all endpoints
// of the slices, which all nodes see alike, not only the endpoints that this node uses. It counts them once for each
// frontend, because some dataplanes look up connections by address and port.
func (b *budget) endpoints(c *claim, parts []part) bool {
	var n int64
	for _, part := range parts {
		n += int64(len(part.slice.Endpoints))
	}
	if b.weighted || isWeighted(parts) {
		n *= 2
	}
	if b.takes(n * int64(c.frontends)) {
		return true
	}
	b.size.note(c.port)
	b.size.Refused++
	return false
}

func (s *Size) note(port *model.ServicePort) {
	if s.Fits() {
		s.Port = *port
	}
}

// claim is a port of a service in one family, with the frontends that it gets.
type claim struct {
	port        *model.ServicePort
	last        uint16 // the last port of a range, which port only stands for, else 0
	family      state.Family
	hasVIPs     bool // all addresses of the service in the family, unless an earlier port has the number
	hasNodePort bool
	frontends   int // the number of them
}
