package state

import (
	"cmp"
	"iter"
	"net/netip"
	"slices"
)

// Changes are what a change of one Service does, for people. They belong to the caller.
type Changes struct {
	// Added and Removed are the addresses of endpoints in routes, sorted. An address that several ports have counts once, and an address
	// that one of them still has is not removed.
	Added, Removed []netip.Addr
	// Others name what else changed, in the order "ports", "frontends", "routes", "edge", "affinity", "balance", "ejection", "drain deadline", "health
	// check". "ports" means that a port was added or removed. "routes" and "edge" are there only if no address came or went: an endpoint has another port, or
	// connections are treated in another way.
	Others []string
}

// IsEmpty reports whether nothing changed.
func (c *Changes) IsEmpty() bool { return len(c.Added)+len(c.Removed)+len(c.Others) == 0 }

// ChangesOf returns what changed from one record of a Service to the next. Either record may be nil: the Service does not exist then, and
// Others is empty. The cost is linear in the size of the records.
func ChangesOf(before, after *Service) (c Changes) {
	const isBefore, isAfter = 1, 2
	var ports, frontends, routes, edge, affinity, balance, ejection, drain bool
	in := map[netip.Addr]byte{} // the addresses that some route has and its counterpart lacks, and which of the records have them
	for was, is := range merge(before.ports(), after.ports(), (*Port).Compare) {
		if was == nil || is == nil {
			ports = true
			was, is = orEmpty(was), orEmpty(is)
		} else {
			frontends = frontends || !equalLists(was.Frontends, is.Frontends, Frontend.Equal)
			edge = edge || !equal(was.Edge, is.Edge)
			affinity = affinity || was.Affinity != is.Affinity
			balance = balance || was.Balance != is.Balance
			ejection = ejection || was.Ejection != is.Ejection
			drain = drain || was.DrainSeconds != is.DrainSeconds
			routes = routes || !was.Internal.Equal(&is.Internal) || !was.External.Equal(&is.External) ||
				!equalLists(was.Lingering, is.Lingering, func(a, b Endpoint) bool { return a == b })
		}
		theirs := is.Routes()
		for i, r := range was.Routes() {
			for addr := range differing(r.Endpoints, theirs[i].Endpoints) {
				in[addr] = 0
			}
		}
	}
	if len(in) > 0 {
		before.mark(in, isBefore)
		after.mark(in, isAfter)
	}
	for addr, where := range in {
		switch where {
		case isBefore:
			c.Removed = append(c.Removed, addr)
		case isAfter:
			c.Added = append(c.Added, addr)
		}
	}
	slices.SortFunc(c.Added, netip.Addr.Compare)
	slices.SortFunc(c.Removed, netip.Addr.Compare)
	if before == nil || after == nil {
		return c
	}
	for _, o := range []struct {
		is   bool
		name string
	}{
		{ports, "ports"},
		{frontends, "frontends"},
		{routes && len(c.Added)+len(c.Removed) == 0, "routes"},
		{edge && len(c.Added)+len(c.Removed) == 0, "edge"},
		{affinity, "affinity"},
		{balance, "balance"},
		{ejection, "ejection"},
		{drain, "drain deadline"},
		{before.HealthCheck != after.HealthCheck, "health check"},
	} {
		if o.is {
			c.Others = append(c.Others, o.name)
		}
	}
	return c
}

// merge yields the items of two sorted lists in their order. Of each pair, an item is nil if its list lacks it.
func merge[E any](a, b []E, compare func(a, b *E) int) iter.Seq2[*E, *E] {
	return func(yield func(a, b *E) bool) {
		for len(a) > 0 || len(b) > 0 {
			var was, is *E
			c := 0
			if len(a) > 0 && len(b) > 0 {
				c = compare(&a[0], &b[0])
			}
			if len(a) > 0 && c <= 0 {
				was, a = &a[0], a[1:]
			}
			if len(b) > 0 && c >= 0 {
				is, b = &b[0], b[1:]
			}
			if !yield(was, is) {
				return
			}
		}
	}
}

// differing yields the addresses of endpoints that one of two sorted lists lacks.
func differing(a, b []Endpoint) iter.Seq[netip.Addr] {
	return func(yield func(netip.Addr) bool) {
		if sameList(a, b) {
			return
		}
		for was, is := range merge(a, b, func(a, b *Endpoint) int { return a.Compare(*b) }) {
			if was != nil && is != nil {
				continue
			}
			if !yield(cmp.Or(was, is).Addr.Addr()) {
				return
			}
		}
	}
}

// mark sets a bit of each address of in that a route of the record has.
func (s *Service) mark(in map[netip.Addr]byte, bit byte) {
	for i := range s.ports() {
		var last []Endpoint
		for _, r := range s.Ports[i].Routes() {
			if sameList(r.Endpoints, last) {
				continue // as most Services treat all clients alike
			}
			last = r.Endpoints
			if len(in) < len(r.Endpoints)/16 { // as nearly always in a large route: then a search is faster
				for addr, where := range in {
					_, found := slices.BinarySearchFunc(r.Endpoints, addr, func(e Endpoint, a netip.Addr) int { return e.Addr.Addr().Compare(a) })
					if found {
						in[addr] = where | bit
					}
				}
				continue
			}
			for _, e := range r.Endpoints {
				if where, ok := in[e.Addr.Addr()]; ok {
					in[e.Addr.Addr()] = where | bit
				}
			}
		}
	}
}

// ports returns the ports of a record, none if it is nil.
func (s *Service) ports() []Port {
	if s == nil {
		return nil
	}
	return s.Ports
}

func orEmpty(p *Port) *Port {
	if p == nil {
		return &Port{}
	}
	return p
}

// sameList reports whether two lists share their memory, as versions of a record do where nothing changed.
func sameList[E any](a, b []E) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func equalLists[E any](a, b []E, equal func(E, E) bool) bool {
	return sameList(a, b) || slices.EqualFunc(a, b, equal)
}
