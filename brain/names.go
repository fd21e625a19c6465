package brain

import (
	"cmp"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// MaxNames is how many entries the names of one service can have at most. Entries are each port, cluster IP and endpoint; the service
// itself counts as six. An entry takes 100 bytes at most in a message of switchyard.localnet.v1, which clients take up to a size of 64 MiB.
const MaxNames = 500_000

// serviceEntries is the cost of a service's name, namespace and external name, which have up to 253, 63 and 253 bytes.
const serviceEntries = 6

// NamesEntries returns the number of entries for the names of a service. It counts the contents of the slices: an
// endpoint in several slices counts several times. Endpoints that are not ready count, so that readiness does not
// change the room of other services.
func NamesEntries(svc *model.Service, from []*model.EndpointSlice) int64 {
	switch {
	case svc == nil:
		return 0
	case svc.Type == model.TypeExternalName:
		return serviceEntries
	case !svc.Headless:
		return int64(serviceEntries + len(svc.ClusterIPs) + len(svc.Ports))
	}
	n := serviceEntries
	for _, s := range from {
		if s != nil {
			n += len(s.Ports) + len(s.Endpoints)
		}
	}
	return int64(n)
}

// Names returns the names and addresses that DNS needs for svc, nil if svc is nil. from are its EndpointSlices, in any
// order. A service that has opted out of the service proxy still has names. Of a headless service, only ready endpoints
// count (kubernetes/dns, specification.md). With publishNotReadyAddresses, the slices mark all endpoints as ready. The
// arguments are not modified.
//
// There is room for a number of entries, as [NamesEntries] counts them. If a service has more, its last ports or the
// endpoints of its last slices, by name, have no names. If there is no room at all for a service, Names returns nil.
func Names(svc *model.Service, from []*model.EndpointSlice, room int64) *state.Names {
	entries := NamesEntries(svc, from)
	left := int(min(room, entries)) - serviceEntries
	switch {
	case svc == nil || left < 0:
		return nil
	case svc.Type == model.TypeExternalName:
		return &state.Names{Name: svc.Name, ExternalName: svc.ExternalName}
	case !svc.Headless:
		n := &state.Names{Name: svc.Name, ClusterIPs: slices.Clip(svc.ClusterIPs[:min(len(svc.ClusterIPs), left)])}
		for _, p := range svc.Ports[:min(len(svc.Ports), left-len(n.ClusterIPs))] {
			n.Ports = append(n.Ports, state.NamedPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		n.Ports = sortedPorts(n.Ports)
		return n
	}
	n := &state.Names{Name: svc.Name}
	if entries > room {
		from = inOrder(from)
	}
	for _, s := range from {
		if s == nil {
			continue
		}
		if left -= len(s.Ports); left <= 0 {
			break
		}
		endpoints := s.Endpoints[:min(len(s.Endpoints), left)]
		left -= len(endpoints)
		if g := group(s, endpoints); len(g.Endpoints) > 0 {
			n.Endpoints = append(n.Endpoints, g)
		}
	}
	n.Endpoints = merged(n.Endpoints)
	return n
}

// inOrder returns slices by name, in which they arrive in no order.
func inOrder(from []*model.EndpointSlice) []*model.EndpointSlice {
	from = slices.DeleteFunc(slices.Clone(from), func(s *model.EndpointSlice) bool { return s == nil })
	slices.SortFunc(from, func(a, b *model.EndpointSlice) int { return cmp.Compare(a.Name, b.Name) })
	return from
}

func sortedPorts(ports []state.NamedPort) []state.NamedPort {
	slices.SortFunc(ports, state.NamedPort.Compare)
	return slices.Compact(ports)
}

// group returns the ready ones of the first endpoints of a slice.
func group(s *model.EndpointSlice, first []model.Endpoint) (g state.EndpointGroup) {
	for i := range first {
		e := &first[i]
		if !e.Ready || !e.Addr.IsValid() {
			continue
		}
		named := state.NamedEndpoint{Addr: e.Addr}
		if i < len(s.Hostnames) {
			named.Hostname = s.Hostnames[i]
		}
		g.Endpoints = append(g.Endpoints, named)
	}
	for _, p := range s.Ports {
		g.Ports = append(g.Ports, state.NamedPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
	}
	g.Ports = sortedPorts(g.Ports)
	return g
}

// merged joins groups with the same ports, and orders all.
func merged(groups []state.EndpointGroup) []state.EndpointGroup {
	slices.SortFunc(groups, func(a, b state.EndpointGroup) int {
		return slices.CompareFunc(a.Ports, b.Ports, state.NamedPort.Compare)
	})
	var out []state.EndpointGroup
	for _, g := range groups {
		if last := len(out) - 1; last >= 0 && slices.Equal(out[last].Ports, g.Ports) {
			out[last].Endpoints = append(out[last].Endpoints, g.Endpoints...)
		} else {
			out = append(out, g)
		}
	}
	for i := range out {
		slices.SortFunc(out[i].Endpoints, state.NamedEndpoint.Compare)
		out[i].Endpoints = slices.Compact(out[i].Endpoints)
	}
	return out
}
