package randcluster

import (
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// sliceParts are the parts of an endpoint slice that can be drawn again on their own.
var sliceParts = []func(*History, *model.EndpointSlice){
	(*History).drawOwner,
	(*History).drawFamily,
	(*History).drawSlicePorts,
	(*History).drawEndpoints,
	(*History).drawHints,
}

// newSlice draws a whole slice. Its name may be taken: then it replaces that slice.
func (h *History) newSlice() *model.EndpointSlice {
	s := &model.EndpointSlice{Namespace: pick(h, namespaces), Name: pick(h, sliceNames)}
	h.drawOwner(s)
	h.drawFamily(s)
	h.drawHints(s)
	if h.opts.Annotations {
		h.drawWeight(s)
	}
	h.adopt(s)
	return s
}

// tweakSlice draws one part of a slice again, or moves it to another service.
func (h *History) tweakSlice() {
	all := kind[*model.EndpointSlice](h)
	if len(all) == 0 {
		return
	}
	s := cloneSlice(pick(h, all))
	parts := sliceParts
	if h.opts.Annotations {
		parts = append(slices.Clone(parts), (*History).drawWeight, (*History).drawWeight)
	}
	pick(h, parts)(h, s)
	h.adopt(s)
	h.put(s)
}

// drawOwner draws the labels.
func (h *History) drawOwner(s *model.EndpointSlice) {
	s.Service = pick(h, serviceNames)
	if h.chance(0.04) {
		s.Service = ""
	}
	s.Headless = h.chance(0.04)
	s.ProxyName, s.HasProxyName = h.opts.ServiceProxyName, h.opts.ServiceProxyName != ""
	if h.chance(0.04) {
		s.ProxyName, s.HasProxyName = pick(h, []string{"", "other"}), true
	}
}

// drawFamily draws the address type, rarely FQDN, and with it ports and endpoints.
func (h *History) drawFamily(s *model.EndpointSlice) {
	s.Family = pick(h, families)
	if h.chance(0.03) {
		s.Family = 0
	}
	h.drawSlicePorts(s)
}

// drawSlicePorts draws ports, no two with both name and protocol in common, and endpoints that have them.
func (h *History) drawSlicePorts(s *model.EndpointSlice) {
	s.Ports = nil
	for _, p := range h.portIDs() {
		port := model.EndpointPort{Name: p.Name, Protocol: p.Protocol, Port: pick(h, h.opts.Endpoints).Addr.Port()}
		taken := slices.ContainsFunc(s.Ports, func(o model.EndpointPort) bool {
			return o.Name == p.Name && o.Protocol == p.Protocol
		})
		if !taken && h.chance(0.7) {
			s.Ports = append(s.Ports, port)
		}
	}
	h.drawEndpoints(s)
}

// drawEndpoints draws up to four endpoints. Rarely, one comes twice, does not belong into the slice, or has an address that no pod can
// have.
func (h *History) drawEndpoints(s *model.EndpointSlice) {
	s.Endpoints = nil
	for _, p := range some(h, h.rng.IntN(5), h.candidates(s)) {
		s.Endpoints = append(s.Endpoints, h.newEndpoint(p))
	}
	if len(s.Endpoints) > 0 && h.chance(0.05) {
		twin := s.Endpoints[0]
		h.drawConditions(&twin)
		s.Endpoints = append(s.Endpoints, twin)
	}
	if h.chance(0.02) {
		s.Endpoints = append(s.Endpoints, h.newEndpoint(pick(h, h.pods)), h.newEndpoint(pod{}))
	}
	if h.chance(0.05) {
		special := addrs("0.0.0.0", "127.0.0.1", "169.254.169.254", "239.1.1.1", "255.255.255.255", "::", "::1", "fe80::1", "ff0e::1")
		s.Endpoints = append(s.Endpoints, h.newEndpoint(pod{addr: pick(h, special), node: h.opts.NodeName}))
	}
}

// podNames names pods by their addresses. Endpoints without an address have none.
func podNames(endpoints []model.Endpoint) model.PodNames {
	names := make([]string, len(endpoints))
	for i := range endpoints {
		if addr := endpoints[i].Addr; addr.IsValid() {
			names[i] = "pod-" + strings.NewReplacer(".", "-", ":", "-").Replace(addr.String())
		}
	}
	return model.PackPods("", names)
}

// candidates are the pods of a slice's family that have all of its ports.
func (h *History) candidates(s *model.EndpointSlice) []pod {
	var fit []pod
	for _, p := range h.pods {
		missing := slices.ContainsFunc(s.Ports, func(sp model.EndpointPort) bool {
			return !slices.Contains(p.ports, sp.Port)
		})
		if state.FamilyOf(p.addr) == s.Family && !missing {
			fit = append(fit, p)
		}
	}
	return fit
}

// newEndpoint draws an endpoint's conditions. Rarely it does not say on which node it is.
func (h *History) newEndpoint(p pod) model.Endpoint {
	ep := model.Endpoint{Addr: p.addr, NodeName: p.node}
	if h.chance(0.04) {
		ep.NodeName = ""
	}
	if h.opts.Annotations && h.chance(0.95) {
		ep.Zone = zones[slices.IndexFunc(h.opts.Nodes, func(n Node) bool { return n.Name == p.node })&1]
	}
	h.drawConditions(&ep)
	return ep
}

// drawConditions draws one of the states that a pod can be in.
func (h *History) drawConditions(ep *model.Endpoint) {
	switch dice := h.rng.IntN(20); {
	case dice < 10: // in service
		ep.Ready, ep.Serving, ep.Terminating = true, true, false
	case dice < 13: // starting or failing
		ep.Ready, ep.Serving, ep.Terminating = false, false, false
	case dice < 17: // draining
		ep.Ready, ep.Serving, ep.Terminating = false, true, true
	case dice < 18: // shut down
		ep.Ready, ep.Serving, ep.Terminating = false, false, true
	case dice < 19: // draining, with publishNotReadyAddresses
		ep.Ready, ep.Serving, ep.Terminating = true, true, true
	default: // serving without being ready is not enough
		ep.Ready, ep.Serving, ep.Terminating = false, true, false
	}
}

// drawWeight draws the weight of a slice, none half of the time.
func (h *History) drawWeight(s *model.EndpointSlice) {
	s.Weight = ""
	if h.chance(0.5) {
		s.Weight = pick(h, []string{"0", "1", "3", "003", "80", "65535", "65536", "70%"})
	}
}

// zones are the zones of nodes and hints.
var zones = []string{"east", "west"}

// drawHints draws hints of both kinds for all endpoints of a slice, or for some of them, or none.
func (h *History) drawHints(s *model.EndpointSlice) {
	forNodes := pick(h, []float64{0, 0, 1, 1, 0.7})
	forZones := pick(h, []float64{0, 0, 1, 1, 0.7})
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		ep.NodeHints, ep.ZoneHints = nil, nil
		if h.chance(forNodes) {
			for _, n := range some(h, 1+h.rng.IntN(2), h.opts.Nodes) {
				ep.NodeHints = append(ep.NodeHints, n.Name)
			}
		}
		if h.chance(forZones) {
			ep.ZoneHints = some(h, 1+h.rng.IntN(2), zones)
		}
	}
}

// flipEndpoint gives an endpoint new conditions, in one slice or in all slices of the namespace that list it.
func (h *History) flipEndpoint() {
	all := kind[*model.EndpointSlice](h)
	all = slices.DeleteFunc(all, func(s *model.EndpointSlice) bool { return len(s.Endpoints) == 0 })
	if len(all) == 0 {
		return
	}
	one := pick(h, all)
	ep := pick(h, one.Endpoints)
	h.drawConditions(&ep)
	if h.chance(0.5) {
		c := cloneSlice(one)
		replaceEndpoint(c, ep)
		h.adopt(c)
		h.put(c)
		return
	}
	for _, s := range all {
		if s.Namespace == one.Namespace {
			c := cloneSlice(s)
			replaceEndpoint(c, ep)
			h.put(c)
		}
	}
}

// replaceEndpoint replaces all endpoints of s that have ep's address by ep.
func replaceEndpoint(s *model.EndpointSlice, ep model.Endpoint) {
	for i := range s.Endpoints {
		if s.Endpoints[i].Addr == ep.Addr {
			s.Endpoints[i] = cloneEndpoint(ep)
		}
	}
}

// moveEndpoint moves an endpoint from one slice to another of the same namespace and family. One time in three it
// also stays in the old slice.
func (h *History) moveEndpoint() {
	all := kind[*model.EndpointSlice](h)
	if len(all) < 2 {
		return
	}
	pair := some(h, 2, all)
	from, to := cloneSlice(pair[0]), cloneSlice(pair[1])
	if from.Namespace != to.Namespace || from.Family != to.Family || len(from.Endpoints) == 0 {
		return
	}
	i := h.rng.IntN(len(from.Endpoints))
	addr := from.Endpoints[i].Addr
	if !slices.ContainsFunc(h.candidates(to), func(p pod) bool { return p.addr == addr }) {
		return
	}
	to.Endpoints = append(to.Endpoints, from.Endpoints[i])
	if h.chance(0.67) {
		from.Endpoints = slices.Delete(from.Endpoints, i, i+1)
		h.put(from)
	}
	h.adopt(to)
	h.put(to)
}

// adopt makes a slice agree with the other copies of its endpoints in the slice and in the namespace. Of two copies of an endpoint, the one
// that is not terminating counts. If both agree in that, no specification says which one counts, so adopt makes them equal.
func (h *History) adopt(s *model.EndpointSlice) {
	others := slices.DeleteFunc(kind[*model.EndpointSlice](h), func(o *model.EndpointSlice) bool {
		return o.Namespace != s.Namespace || o.Name == s.Name
	})
	for i := range s.Endpoints {
		ep := &s.Endpoints[i]
		same := func(o model.Endpoint) bool { return o.Addr == ep.Addr && o.Terminating == ep.Terminating }
		for _, o := range others {
			if j := slices.IndexFunc(o.Endpoints, same); j >= 0 {
				*ep = cloneEndpoint(o.Endpoints[j])
			}
		}
		if j := slices.IndexFunc(s.Endpoints[:i], same); j >= 0 {
			*ep = cloneEndpoint(s.Endpoints[j])
		}
	}
}

func cloneSlice(s *model.EndpointSlice) *model.EndpointSlice {
	c := *s
	c.Ports = slices.Clone(s.Ports)
	c.Endpoints = slices.Clone(s.Endpoints)
	for i := range c.Endpoints {
		c.Endpoints[i] = cloneEndpoint(c.Endpoints[i])
	}
	return &c
}

func cloneEndpoint(ep model.Endpoint) model.Endpoint {
	ep.ZoneHints, ep.NodeHints = slices.Clone(ep.ZoneHints), slices.Clone(ep.NodeHints)
	return ep
}
