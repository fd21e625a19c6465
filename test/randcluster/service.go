package randcluster

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// serviceParts are the parts of a service, each drawn on its own. Those that come up more often are listed twice.
var serviceParts = []func(*History, *model.Service){
	(*History).drawType,
	(*History).drawClusterIPs,
	(*History).drawExternalIPs,
	(*History).drawLoadBalancer,
	(*History).drawServicePorts,
	(*History).drawPolicies,
	(*History).drawPolicies,
	(*History).drawAffinity,
	(*History).drawProxyName,
}

// newService draws a whole service. Its name may be taken: then it replaces that service.
func (h *History) newService() *model.Service {
	s := &model.Service{Name: state.ServiceName{Namespace: pick(h, namespaces), Name: pick(h, serviceNames)}}
	for _, draw := range serviceParts {
		draw(h, s)
	}
	h.drawCreated(s)
	if h.opts.Annotations {
		h.drawAnnotations(s)
	}
	h.admit(s)
	return s
}

// drawCreated draws one of few times, so that services are often equally old, and rarely none.
func (h *History) drawCreated(s *model.Service) {
	if !h.chance(0.2) {
		s.Created = time.Date(2026, 1, 2, 3, 4, h.rng.IntN(3), 0, time.UTC)
	}
}

// tweakService draws one part of a service again.
func (h *History) tweakService() {
	all := kind[*model.Service](h)
	if len(all) == 0 {
		return
	}
	s := cloneService(pick(h, all))
	parts := serviceParts
	if h.opts.Annotations {
		parts = append(slices.Clone(parts), (*History).drawAnnotations, (*History).drawAnnotations)
	}
	pick(h, parts)(h, s)
	h.admit(s)
	h.put(s)
}

// admit takes out of a service what the API server would not let in for its type.
func (h *History) admit(s *model.Service) {
	if s.Type != model.TypeNodePort && s.Type != model.TypeLoadBalancer {
		for i := range s.Ports {
			s.Ports[i].NodePort = 0
		}
	}
	if s.Type != model.TypeLoadBalancer {
		s.LoadBalancerIPs, s.SourceRanges = nil, nil
	}
	s.HealthCheckNodePort = 0
	if s.Type == model.TypeLoadBalancer && s.ExternalLocal && !hasTwins(s.Ports) {
		s.HealthCheckNodePort = 32000 + uint16(len(s.Name.Name))
	}
}

// hasTwins reports whether two ports have number and protocol in common, so that one may hide the other completely. Whether a
// hidden port counts in a health check is nowhere laid down, as the API server admits no twins.
func hasTwins(ports []model.ServicePort) bool {
	for i, p := range ports {
		twin := func(o model.ServicePort) bool { return o.Port == p.Port && o.Protocol == p.Protocol }
		if slices.ContainsFunc(ports[:i], twin) {
			return true
		}
	}
	return false
}

func (h *History) drawType(s *model.Service) {
	s.Headless = h.chance(0.06)
	switch dice := h.rng.IntN(20); {
	case dice < 6:
		s.Type = model.TypeClusterIP
	case dice < 11:
		s.Type = model.TypeNodePort
		h.drawNodePorts(s)
	case dice < 19:
		s.Type = model.TypeLoadBalancer
		h.drawNodePorts(s)
		h.drawLoadBalancer(s)
	default:
		s.Type = model.TypeExternalName
	}
}

// drawClusterIPs draws one cluster IP, or one of each family in either order, or rarely none.
func (h *History) drawClusterIPs(s *model.Service) {
	s.ClusterIPs = nil
	want := some(h, 1+h.rng.IntN(2), families)
	if h.chance(0.03) {
		want = nil
	}
	for _, f := range want {
		if pool := ofFamily(h.opts.ClusterIPs, f); len(pool) > 0 {
			s.ClusterIPs = append(s.ClusterIPs, pick(h, pool))
		}
	}
}

func (h *History) drawExternalIPs(s *model.Service) {
	s.ExternalIPs = nil
	if h.chance(0.4) {
		s.ExternalIPs = some(h, 1+h.rng.IntN(2), h.opts.ExternalIPs)
	}
}

func (h *History) drawLoadBalancer(s *model.Service) {
	s.LoadBalancerIPs = some(h, h.rng.IntN(3), h.opts.LoadBalancerIPs)
	s.SourceRanges = nil
	if h.chance(0.5) {
		s.SourceRanges = some(h, 1+h.rng.IntN(3), h.opts.SourceRanges)
	}
}

// portIDs are what service ports and slice ports join by. There are few, so that they often do.
func (h *History) portIDs() []model.ServicePort {
	p := h.opts.Protocols
	return []model.ServicePort{
		{Name: "http", Protocol: p[0]},
		{Name: "dns", Protocol: p[0]},
		{Name: "dns", Protocol: p[1%len(p)]},
		{Name: "", Protocol: p[2%len(p)]},
	}
}

// drawServicePorts draws one to three ports, rarely none. Two may want the same port number, and then the same frontends.
func (h *History) drawServicePorts(s *model.Service) {
	want := 1 + h.rng.IntN(3)
	if h.chance(0.03) {
		want = 0
	}
	s.Ports = nil
	for _, p := range some(h, want, h.portIDs()) {
		p.Port = pick(h, h.opts.Ports)
		if !slices.ContainsFunc(s.Ports, sameID(p)) {
			s.Ports = append(s.Ports, p)
		}
	}
	h.drawNodePorts(s)
}

// sameID says of a service port whether it has name and protocol in common with p.
func sameID(p model.ServicePort) func(model.ServicePort) bool {
	return func(o model.ServicePort) bool { return o.Name == p.Name && o.Protocol == p.Protocol }
}

// drawNodePorts gives most ports a node port; a load balancer may do without.
func (h *History) drawNodePorts(s *model.Service) {
	without := s.Type == model.TypeLoadBalancer && h.chance(0.3)
	for i := range s.Ports {
		s.Ports[i].NodePort = 0
		if !without {
			s.Ports[i].NodePort = pick(h, h.opts.NodePorts)
		}
	}
}

func (h *History) drawPolicies(s *model.Service) {
	s.InternalLocal = h.chance(0.3)
	s.ExternalLocal = h.chance(0.5)
}

func (h *History) drawAffinity(s *model.Service) {
	s.Affinity = 0
	if h.chance(0.3) {
		// A minute is the shortest that does not pass between two packets on a slow machine.
		s.Affinity = pick(h, []time.Duration{time.Minute, 3 * time.Hour})
	}
}

// drawProxyName draws the label that leaves a service to another proxy. If this node's proxy has a name, most services
// carry it.
func (h *History) drawProxyName(s *model.Service) {
	s.ProxyName, s.HasProxyName = "", false
	if h.opts.ServiceProxyName != "" && h.chance(0.8) {
		s.ProxyName, s.HasProxyName = h.opts.ServiceProxyName, true
	} else if h.chance(0.1) {
		s.ProxyName, s.HasProxyName = pick(h, []string{"", "other"}), true
	}
}

// annotations are those that services may have, in order, each with values. Some values are bad. The first of each comes up more often.
var annotations = []struct {
	name   string
	values []string
}{
	{model.BalanceAnnotation, []string{"hash", "hash", "hash-connection", "hash-connection", "least-connections", "random", "Hash"}},
	{model.DrainAnnotation, []string{"30s", "30s", "1h", "24h", "0s", "90m", "1500ms", "25h", "-1s", "30"}},
	{model.EjectAnnotation, []string{"true", "true", "false", "yes"}},
	{model.PingAnnotation, []string{"true", "true", "false", "True"}},
	{model.ZoneWeightsAnnotation, []string{"same=4,other=1", "other=3,same=2", "same=65535,other=1", "same=1,other=0", "same=0,other=9", "same=2,other=2", "same=0,other=0", "same=1"}},
}

// ranges are values of the annotation about ranges of ports. Some are bad. The name http may be taken by a port.
var ranges = []string{"rtp=7000-7009/UDP", "rtp=7000-7009/UDP", "rtp=7000-7009", "http=7000-7009/TCP", "rtp=7009-7000/UDP", "rtp=07000-7009/UDP"}

// inRanges is a port in the ranges, and atEnds are their ends and the ports next to them.
var inRanges, atEnds = uint16(7004), []uint16{6999, 7000, 7009, 7010}

// drawAnnotations draws annotations, each of them none half of the time.
func (h *History) drawAnnotations(s *model.Service) {
	s.Annotations = nil
	for _, a := range annotations {
		if h.chance(0.5) {
			s.Annotations = append(s.Annotations, model.Annotation{Name: a.name, Value: pick(h, a.values)})
		}
	}
	if len(h.opts.SlowStarts) > 0 && h.chance(0.5) {
		s.Annotations = append(s.Annotations, model.Annotation{Name: model.SlowStartAnnotation, Value: pick(h, h.opts.SlowStarts)})
	}
	if h.opts.Edge && h.chance(0.5) {
		s.Annotations = append(s.Annotations, model.Annotation{Name: model.EdgeAnnotation, Value: pick(h, []string{"true", "true", "false", "yes"})})
	}
	if h.opts.Ranges && h.chance(0.5) {
		s.Annotations = append(s.Annotations, model.Annotation{Name: model.PortRangesAnnotation, Value: pick(h, ranges)})
	}
	slices.SortFunc(s.Annotations, func(a, b model.Annotation) int { return strings.Compare(a.Name, b.Name) })
}

func cloneService(s *model.Service) *model.Service {
	c := *s
	c.Annotations = slices.Clone(s.Annotations)
	c.ClusterIPs = slices.Clone(s.ClusterIPs)
	c.ExternalIPs = slices.Clone(s.ExternalIPs)
	c.LoadBalancerIPs = slices.Clone(s.LoadBalancerIPs)
	c.SourceRanges = slices.Clone(s.SourceRanges)
	c.Ports = slices.Clone(s.Ports)
	return &c
}

// ofFamily lists the addresses of a family.
func ofFamily(pool []netip.Addr, f state.Family) []netip.Addr {
	var list []netip.Addr
	for _, addr := range pool {
		if state.FamilyOf(addr) == f {
			list = append(list, addr)
		}
	}
	return list
}
