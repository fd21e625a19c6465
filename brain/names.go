package brain

import (
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// maxNamed is how many ports and endpoints the names of one service may have. At less than 100 bytes each they fit into a message of
// the node-local API; see [MaxEntries].
const maxNamed = 500_000

// Names returns what DNS needs to know about svc, nil if svc is nil. from are its EndpointSlices, in any order. What has opted out of
// the service proxy has names nevertheless. Of a headless service, only ready endpoints count (kubernetes/dns, specification.md); with
// publishNotReadyAddresses, all of them are ready already in their slices. The arguments are not modified.
//
// Of a service with more ports and endpoints than fit, the last ones have no names.
func Names(svc *model.Service, from []*model.EndpointSlice) *state.Names {
	switch {
	case svc == nil:
		return nil
	case svc.Type == model.TypeExternalName:
		return &state.Names{Name: svc.Name, ExternalName: svc.ExternalName}
	case !svc.Headless:
		n := &state.Names{Name: svc.Name, ClusterIPs: slices.Clip(svc.ClusterIPs)}
		for _, p := range svc.Ports {
			n.Ports = append(n.Ports, state.NamedPort{Name: p.Name, Protocol: p.Protocol, Port: p.Port})
		}
		n.Ports = sortedPorts(n.Ports)
		return n
	}
	n := &state.Names{Name: svc.Name}
	for _, s := range from {
		if g := group(s); len(g.Endpoints) > 0 {
			n.Endpoints = append(n.Endpoints, g)
		}
	}
	n.Endpoints = bounded(merged(n.Endpoints))
	return n
}

func sortedPorts(ports []state.NamedPort) []state.NamedPort {
	slices.SortFunc(ports, state.NamedPort.Compare)
	return slices.Compact(ports)
}

// group returns the ready endpoints of a slice.
func group(s *model.EndpointSlice) (g state.EndpointGroup) {
	if s == nil {
		return g
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
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

// bounded cuts off what is too much.
func bounded(groups []state.EndpointGroup) []state.EndpointGroup {
	room := maxNamed
	for i := range groups {
		g := &groups[i]
		if room -= len(g.Ports); room <= 0 {
			return groups[:i]
		}
		g.Endpoints = g.Endpoints[:min(len(g.Endpoints), room)]
		room -= len(g.Endpoints)
	}
	return groups
}
