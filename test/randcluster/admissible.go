package randcluster

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// admissible takes out of an object what an API server would not admit, or would not let another object have as well. Of
// ClusterIPs and NodePorts each service has its own share, so that it keeps what cannot be changed.
func (h *History) admissible(obj model.Object) {
	switch o := obj.(type) {
	case *model.Service:
		h.admissibleService(o)
	case *model.EndpointSlice:
		o.Ports = unique(o.Ports, func(a, b model.EndpointPort) bool { return a.Name == b.Name })
		o.Endpoints = slices.DeleteFunc(o.Endpoints, func(ep model.Endpoint) bool {
			return !ep.Addr.IsValid() || state.FamilyOf(ep.Addr) != o.Family || model.Special(ep.Addr) != ""
		})
	}
}

func (h *History) admissibleService(s *model.Service) {
	index := slices.Index(namespaces, s.Name.Namespace)*len(serviceNames) + slices.Index(serviceNames, s.Name.Name)
	switch s.Type {
	case model.TypeExternalName:
		s.Headless, s.ClusterIPs, s.ExternalIPs = false, nil, nil
	case model.TypeNodePort, model.TypeLoadBalancer:
		s.Headless = false
	}
	h.admissiblePorts(s, index)
	wanted := s.ClusterIPs
	s.ClusterIPs = nil
	if s.Type != model.TypeExternalName && !s.Headless {
		if len(wanted) == 0 {
			wanted = h.opts.ClusterIPs[:1]
		}
		for _, addr := range wanted {
			pool := ofFamily(h.opts.ClusterIPs, state.FamilyOf(addr))
			s.ClusterIPs = append(s.ClusterIPs, pool[index%len(pool)])
		}
	}
	s.ExternalIPs = slices.DeleteFunc(s.ExternalIPs, func(a netip.Addr) bool { return h.taken(s, a) || model.Special(a) != "" })
	s.LoadBalancerIPs = slices.DeleteFunc(s.LoadBalancerIPs, func(a netip.Addr) bool { return h.taken(s, a) })
	if s.HealthCheckNodePort != 0 {
		s.HealthCheckNodePort = 32000 + uint16(index)
	}
}

// admissiblePorts leaves at least one port. Names are unique, and only a single port may be without; node ports are the
// service's own.
func (h *History) admissiblePorts(s *model.Service, index int) {
	if len(s.Ports) > 1 {
		s.Ports = slices.DeleteFunc(s.Ports, func(p model.ServicePort) bool { return p.Name == "" })
	}
	s.Ports = unique(s.Ports, func(a, b model.ServicePort) bool {
		return a.Name == b.Name || a.Port == b.Port && a.Protocol == b.Protocol
	})
	if len(s.Ports) == 0 {
		p := h.portIDs()[0]
		s.Ports = append(s.Ports, model.ServicePort{Name: p.Name, Protocol: p.Protocol, Port: h.opts.Ports[0]})
	}
	with := s.Type == model.TypeNodePort || s.Type == model.TypeLoadBalancer && s.Ports[0].NodePort != 0
	for i := range s.Ports {
		s.Ports[i].NodePort = 0
		if with {
			s.Ports[i].NodePort = h.opts.NodePorts[(index*len(h.portIDs())+i)%len(h.opts.NodePorts)]
		}
	}
}

// taken reports whether another service also has an address of s. The API server admits that, but no specification says which service gets
// the connections.
func (h *History) taken(s *model.Service, addr netip.Addr) bool {
	return slices.ContainsFunc(kind[*model.Service](h), func(o *model.Service) bool {
		return o.Name != s.Name && slices.Contains(slices.Concat(o.ClusterIPs, o.ExternalIPs, o.LoadBalancerIPs), addr)
	})
}

// unique leaves out items that equal an earlier one.
func unique[T any](list []T, same func(a, b T) bool) []T {
	var kept []T
	for _, item := range list {
		if !slices.ContainsFunc(kept, func(k T) bool { return same(k, item) }) {
			kept = append(kept, item)
		}
	}
	return kept
}
