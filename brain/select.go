package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// skips returns why this instance does not route svc, empty if it does. It skips headless (clusterIP: None) and
// ExternalName Services. The label service.kubernetes.io/service-proxy-name must name this instance, or be absent if
// this instance has no name. That a service without cluster IPs is not routed follows from [hasFamily].
// (pkg/proxy/util, ShouldSkipService; pkg/proxy, the label selector of the Service informer.)
func skips(cfg *Config, svc *model.Service) Reason {
	switch {
	case svc == nil:
		return NoService
	case svc.Headless:
		return Headless
	case svc.Type == model.TypeExternalName:
		return ExternalName
	case cfg.ServiceProxyName == "" && svc.HasProxyName: // any value opts out, also the empty one
		return OtherProxy
	case cfg.ServiceProxyName != "" && svc.ProxyName != cfg.ServiceProxyName:
		return OtherProxy
	}
	return ""
}

// HandlesSlice reports whether this instance routes to the endpoints of s. It does not route to slices of headless
// services.
//
// Without a service proxy name, the instance ignores the label service.kubernetes.io/service-proxy-name of a slice, as
// in kube-proxy (cmd/kube-proxy/app/server.go, the selectors of the informers). The label of the service decides. With
// a name, slices must also have it, so that the instance need not watch the slices of all other services. The
// EndpointSlice controller copies the labels of a service to its slices.
func HandlesSlice(cfg *Config, s *model.EndpointSlice) bool {
	return s != nil && skipsSlice(cfg, s) == ""
}

// skipsSlice returns why this instance does not route to the endpoints of s, empty if it does.
func skipsSlice(cfg *Config, s *model.EndpointSlice) Reason {
	switch {
	case s.Headless:
		return Headless
	case cfg.ServiceProxyName != "" && s.ProxyName != cfg.ServiceProxyName:
		return OtherProxy
	}
	return ""
}

// hasFamily reports whether svc is routed in family: it has a cluster IP of it. ExternalIPs and load balancer IPs of another
// family are not routed, because Kubernetes never translates between families (pkg/proxy/util, GetClusterIPByFamily).
func hasFamily(svc *model.Service, family state.Family) bool {
	return slices.ContainsFunc(svc.ClusterIPs, func(ip netip.Addr) bool { return familyOf(ip) == family })
}

// familyOf is [state.FamilyOf], but also returns 0 for IPv4-mapped addresses and addresses with a zone. No record may
// hold such addresses, and sources never deliver them.
func familyOf(ip netip.Addr) state.Family {
	if ip.Is4In6() || ip.Zone() != "" {
		return 0
	}
	return state.FamilyOf(ip)
}

// usablePorts returns the ports that can be routed: those with a number and a known protocol. Of several ports of one name
// and protocol, which no API server admits, it is the first, because name and protocol are a port's identity.
func usablePorts(ports []model.ServicePort, why *Explanation) []model.ServicePort {
	var names seen[portKey]
	for i := range ports {
		if unusable(&ports[i], &names) != "" {
			return filterPorts(ports, why)
		}
	}
	return ports
}

// filterPorts is usablePorts for the rare service that has an unusable one. It makes a new slice.
func filterPorts(ports []model.ServicePort, why *Explanation) []model.ServicePort {
	kept := make([]model.ServicePort, 0, len(ports))
	var names seen[portKey]
	for i := range ports {
		if reason := unusable(&ports[i], &names); reason != "" {
			why.unroutedPort(&ports[i], 0, reason)
		} else {
			kept = append(kept, ports[i])
		}
	}
	return kept
}

// unusable returns why port cannot be routed next to earlier ports with the given names, empty if it can.
func unusable(port *model.ServicePort, names *seen[portKey]) Reason {
	switch port.Protocol {
	case state.TCP, state.UDP, state.SCTP:
	default:
		return Invalid
	}
	if port.Port == 0 {
		return Invalid
	}
	if !names.add(portKey{name: port.Name, protocol: port.Protocol}) {
		return Duplicate
	}
	return ""
}

// sortPorts puts the ports of a record in their order.
func sortPorts(ports []state.Port) {
	slices.SortFunc(ports, func(a, b state.Port) int { return a.Compare(&b) })
}
