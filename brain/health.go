package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// healthCheck returns what the healthCheckNodePort of svc must answer. Only services of type LoadBalancer with
// externalTrafficPolicy Local have one (pkg/api/v1/service, NeedsHealthCheck). It counts the distinct addresses of ready
// endpoints on this node, over all ports of the record (pkg/proxy, EndpointsMap.LocalReadyEndpoints).
func healthCheck(here location, svc *model.Service, ports []state.Port, from []*model.EndpointSlice) state.HealthCheck {
	if svc.Type != model.TypeLoadBalancer || !svc.ExternalLocal || svc.HealthCheckNodePort == 0 {
		return state.HealthCheck{}
	}
	var addrs []netip.Addr
	for i := range ports {
		for _, e := range join(nil, here, ports[i].Name, ports[i].Protocol, ports[i].Family, from) {
			if e.is&(ready|local) == ready|local {
				addrs = append(addrs, e.addr.Addr())
			}
		}
	}
	slices.SortFunc(addrs, netip.Addr.Compare)
	addrs = slices.Compact(addrs)
	hc := state.HealthCheck{Port: svc.HealthCheckNodePort}
	for _, ip := range addrs {
		if ip.Is4() {
			hc.LocalIPv4++
		} else {
			hc.LocalIPv6++
		}
	}
	return hc
}
