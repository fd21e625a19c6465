package protoconv

import (
	"cmp"
	"math"
	"net/netip"
	"slices"
	"time"

	localnetv1 "github.com/switchyard-net/switchyard/client/localnet/v1"
	"github.com/switchyard-net/switchyard/state"
)

// Service returns the message of a record. It shares no memory with the record.
func Service(s *state.Service) *localnetv1.ServiceEndpoints {
	var ranges sourceRanges
	m := &localnetv1.ServiceEndpoints{
		Namespace: text(s.Name.Namespace),
		Name:      text(s.Name.Name),
		Ports:     messages(s.Ports, ranges.fillPort),
	}
	m.SourceRanges = ranges.lists
	if h := s.HealthCheck; h != (state.HealthCheck{}) {
		m.HealthCheck = &localnetv1.HealthCheck{Port: uint32(h.Port), LocalIpv4: uint32(h.LocalIPv4), LocalIpv6: uint32(h.LocalIPv6)}
	}
	return m
}

func (r *sourceRanges) fillPort(p *state.Port, m *localnetv1.Port) {
	all := endpointsOf(p)
	m.Name = text(p.Name)
	m.Protocol = localnetv1.Protocol(p.Protocol)
	m.Family = localnetv1.Family(p.Family)
	m.Frontends = messages(p.Frontends, r.fillFrontend)
	m.Endpoints = messages(all, fillEndpoint)
	m.Internal = traffic(&p.Internal, all)
	m.External = traffic(&p.External, all)
	m.AffinitySeconds = seconds(p.Affinity)
	m.Lingering = indices(lingering(p), all)
	m.Balance = localnetv1.Balance(p.Balance)
	m.Ejection = p.Ejection
	m.DrainSeconds = p.DrainSeconds
	m.Edge = edge(p.Edge, all)
}

// lingering returns the lingering endpoints that a message contains: the endpoints of UDP ports, and of ports with a deadline. Clients consider
// others a fault.
func lingering(p *state.Port) []state.Endpoint {
	if p.Protocol != state.UDP && p.DrainSeconds == 0 {
		return nil
	}
	return p.Lingering
}

// seconds returns a timeout in whole seconds. Kubernetes' longest is a day.
func seconds(d time.Duration) uint32 {
	return uint32(min(max(d/time.Second, 0), math.MaxUint32))
}

// sourceRanges are the lists of a service, in the order in which its frontends name them first. The zero value is ready.
type sourceRanges struct {
	lists   []*localnetv1.SourceRanges
	indices map[listKey]uint32
}

// listKey identifies a list by its memory, because the brain shares one list between all ports of a service. Equal
// lists elsewhere in memory are repeated, which is valid.
type listKey struct {
	first *netip.Prefix
	len   int
}

// index returns where a list is, which must not be empty.
func (r *sourceRanges) index(list []netip.Prefix) uint32 {
	key := listKey{&list[0], len(list)}
	i, known := r.indices[key]
	if !known {
		if r.indices == nil {
			r.indices = make(map[listKey]uint32)
		}
		i = uint32(len(r.lists))
		r.indices[key] = i
		r.lists = append(r.lists, &localnetv1.SourceRanges{Ranges: messages(list, fillPrefix)})
	}
	return i
}

func (r *sourceRanges) fillFrontend(f *state.Frontend, m *localnetv1.Frontend) {
	m.Kind = localnetv1.FrontendKind(f.Kind)
	m.Address = bytesOf(f.Addr)
	m.Port = uint32(f.Port)
	m.LastPort = uint32(f.LastPort)
	m.Ping = f.Ping
	m.Restricted = f.Restricted
	if len(f.Sources) > 0 {
		m.SourceRanges = new(r.index(f.Sources))
	}
}

func fillEndpoint(e *state.Endpoint, m *localnetv1.Endpoint) {
	m.Address = bytesOf(e.Addr.Addr())
	m.Port = uint32(e.Addr.Port())
	m.Local = e.Local
}

func fillPrefix(p *netip.Prefix, m *localnetv1.Prefix) {
	m.Address = p.Addr().AsSlice()
	m.Length = uint32(max(p.Bits(), 0))
}

// traffic returns nil if there is no frontend to which t applies.
func traffic(t *state.Traffic, all []state.Endpoint) *localnetv1.Traffic {
	if t.Equal(&state.Traffic{}) {
		return nil
	}
	return &localnetv1.Traffic{
		Inside:     route(&t.Inside, all),
		Outside:    route(&t.Outside, all),
		Masquerade: localnetv1.Masquerade(t.Masquerade) + localnetv1.Masquerade_MASQUERADE_NEVER,
	}
}

func route(r *state.Route, all []state.Endpoint) *localnetv1.Route {
	return &localnetv1.Route{Verdict: localnetv1.Verdict(r.Verdict), Endpoints: indices(r.Endpoints, all), Weights: weights(r), RefusedWeight: r.Refused}
}

func weights(r *state.Route) []uint32 {
	if !slices.ContainsFunc(r.Endpoints, func(e state.Endpoint) bool { return e.Weight != 0 }) {
		return nil
	}
	list := make([]uint32, len(r.Endpoints))
	for i, e := range r.Endpoints {
		list[i] = uint32(e.Weight)
	}
	return list
}

// indices returns where in all each of some is.
func indices(some, all []state.Endpoint) []uint32 {
	if len(some) == 0 {
		return nil
	}
	list := make([]uint32, len(some))
	for i, e := range some {
		at := i
		if !same(some, all) {
			at, _ = slices.BinarySearchFunc(all, e, compareWhole)
		}
		list[i] = uint32(at)
	}
	return list
}

// endpointsOf returns the endpoints that occur in a port, in order, each once, whatever its weights are. It may be one of the port's own lists.
func endpointsOf(p *state.Port) []state.Endpoint {
	var all []state.Endpoint
	merged := false
	lists := p.Serving()
	lists[len(lists)-1] = lingering(p)
	for _, list := range lists {
		switch {
		case len(list) == 0 || same(list, all):
		case all == nil:
			all = list
		default:
			all = append(slices.Clip(all), list...)
			merged = true
		}
	}
	if !merged && slices.IsSortedFunc(all, compareWhole) && !hasTwins(all) {
		return all
	}
	if !merged {
		all = slices.Clone(all)
	}
	slices.SortFunc(all, compareWhole)
	return slices.CompactFunc(all, func(a, b state.Endpoint) bool { return compareWhole(a, b) == 0 })
}

func hasTwins(sorted []state.Endpoint) bool {
	for i := 1; i < len(sorted); i++ {
		if compareWhole(sorted[i-1], sorted[i]) == 0 {
			return true
		}
	}
	return false
}

// same reports whether two lists share their memory, as equal routes from the brain do.
func same(a, b []state.Endpoint) bool {
	return len(a) == len(b) && len(a) > 0 && &a[0] == &b[0]
}

// compareWhole distinguishes endpoints that differ in any field but the weight, which is the route's.
func compareWhole(a, b state.Endpoint) int {
	if c := a.Compare(b); c != 0 || a.Local == b.Local {
		return c
	}
	return cmp.Compare(bit(a.Local), bit(b.Local))
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}
