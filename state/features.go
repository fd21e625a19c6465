package state

import (
	"math/bits"
	"slices"
	"strings"
)

// Features are parts of records that not every consumer knows. A record that uses a feature can be converted for a consumer without it:
// [Service.For].
type Features uint8

// The features. Their numbers and names do not change.
const (
	// Weights are [Endpoint.Weight] and [Route.Refused].
	Weights Features = 1 << iota
	// Balances is [Port.Balance].
	Balances
	// Ranges is [Frontend.LastPort].
	Ranges
	// Ping is [Frontend.Ping].
	Ping
	// Ejection is [Port.Ejection].
	Ejection
	// DrainDeadline is [Port.DrainSeconds].
	DrainDeadline
	// EdgeShares are [Port.Edge] and [Node.Peers].
	EdgeShares

	// AllFeatures are the features of this version.
	AllFeatures Features = 1<<iota - 1
)

var featureNames = [...]string{"weights", "balance", "ranges", "ping", "ejection", "drain-deadline", "edge"}

// String returns the names of the features, with commas in between, or "none".
func (f Features) String() string {
	var names []string
	for one := range f.Each {
		names = append(names, one.name())
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ",")
}

func (f Features) name() string {
	if i := f.Index(); i < len(featureNames) {
		return featureNames[i]
	}
	return "unknown"
}

// Index returns the number of the lowest feature in f, from 0 on. It must not be called for no features.
func (f Features) Index() int { return bits.TrailingZeros8(uint8(f)) }

// Each yields the features in f one by one, in order.
func (f Features) Each(yield func(one Features) bool) {
	for ; f != 0; f &= f - 1 {
		if !yield(f & -f) {
			return
		}
	}
}

// Features returns the features that the record uses.
func (s *Service) Features() (uses Features) {
	set := func(on bool, feature Features) {
		if on {
			uses |= feature
		}
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		set(p.Balance != Random, Balances)
		set(p.Ejection, Ejection)
		set(p.DrainSeconds != 0, DrainDeadline)
		set(p.Edge != nil, EdgeShares)
		set(p.Edge != nil && p.Edge.Local.Weighted(), Weights)
		for _, r := range p.Routes() {
			set(r.Weighted(), Weights)
		}
		for j := range p.Frontends {
			set(p.Frontends[j].LastPort != 0, Ranges)
			set(p.Frontends[j].Ping, Ping)
		}
	}
	return uses
}

// For returns the record for a consumer that knows the accepted features only, and the features that were removed. It is s itself if none
// is missing. It shares memory with s where it can.
//
// Without Weights, endpoints share connections evenly, and none are rejected. Without Balances, they are drawn at random. Without Ranges, a
// range is not served: such a consumer would serve its first port. Without Ping, addresses do not answer. Without Ejection and DrainDeadline,
// silent endpoints and old connections stay. Without EdgeShares, no connection is handed over to another node.
func (s *Service) For(accepted Features) (converted *Service, missing Features) {
	if accepted&AllFeatures == AllFeatures {
		return s, 0
	}
	missing = s.Features() &^ accepted
	if missing == 0 {
		return s, 0
	}
	if missing&Ranges != 0 {
		s = s.dropFrontends(func(_ *Port, f *Frontend) bool { return f.LastPort != 0 })
	}
	converted = s.WithPorts(slices.Clone(s.Ports))
	for i := range converted.Ports {
		converted.Ports[i].drop(missing)
	}
	return converted, missing
}

// drop takes features other than Ranges out of a port, whose own lists stay as they are.
func (p *Port) drop(missing Features) {
	if missing&Balances != 0 {
		p.Balance = Random
	}
	if missing&Ejection != 0 {
		p.Ejection = false
	}
	if missing&DrainDeadline != 0 {
		p.DrainSeconds = 0
	}
	if missing&EdgeShares != 0 {
		p.Edge = nil
	}
	if missing&Ping != 0 && slices.ContainsFunc(p.Frontends, func(f Frontend) bool { return f.Ping }) {
		p.Frontends = slices.Clone(p.Frontends)
		for i := range p.Frontends {
			p.Frontends[i].Ping = false
		}
	}
	if missing&Weights != 0 {
		p.dropWeights()
	}
}

// dropWeights makes all routes even. Routes that share their endpoints still do. The shares of nodes stay: other nodes have the same.
func (p *Port) dropWeights() {
	if p.Edge != nil && p.Edge.Local.Weighted() {
		even := *p.Edge
		even.Local.Endpoints = unweighted(slices.Clone(even.Local.Endpoints))
		p.Edge = &even
	}
	routes := p.Routes()
	var had [len(routes)][]Endpoint
	for i, r := range routes {
		had[i] = r.Endpoints
		if !r.Weighted() {
			continue
		}
		r.Refused = 0
		first := slices.IndexFunc(had[:i], func(list []Endpoint) bool { return sameList(list, had[i]) })
		if first >= 0 {
			r.Endpoints = routes[first].Endpoints
		} else {
			r.Endpoints = unweighted(slices.Clone(r.Endpoints))
		}
	}
}

// unweighted takes the weights out of a list.
func unweighted(list []Endpoint) []Endpoint {
	for i := range list {
		list[i].Weight = 0
	}
	return list
}

// For returns the update for a consumer that knows the accepted features only. It is u itself if no record changes.
func (u *Update) For(accepted Features) *Update {
	if accepted&AllFeatures == AllFeatures {
		return u
	}
	u = u.Convert(func(s *Service) *Service {
		converted, _ := s.For(accepted)
		return converted
	})
	node := u.Node.For(accepted)
	if node == u.Node {
		return u
	}
	v := *u
	v.Node = node
	return &v
}

// For returns the node for a consumer that knows the accepted features only. It is n itself if nothing changes. It shares memory with n.
func (n *Node) For(accepted Features) *Node {
	if accepted&EdgeShares != 0 || n == nil || len(n.Peers) == 0 {
		return n
	}
	without := *n
	without.Peers = nil
	return &without
}

// Convert returns the update with each record replaced by its conversion. It is u itself if all records stay.
func (u *Update) Convert(convert func(*Service) *Service) *Update {
	changed, refused := converted(u.Changed, convert), converted(u.Refused, convert)
	if sameList(changed, u.Changed) && sameList(refused, u.Refused) {
		return u
	}
	v := *u
	v.Changed, v.Refused = changed, refused
	return &v
}

// converted returns the converted records of a list. It is the list itself if all records stay.
func converted(list []*Service, convert func(*Service) *Service) []*Service {
	result := list
	for i, s := range list {
		to := convert(s)
		if to == s {
			continue
		}
		if sameList(result, list) {
			result = slices.Clone(list)
		}
		result[i] = to
	}
	return result
}
