package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// health computes the answer of a service's healthCheckNodePort. Only services of type LoadBalancer with
// externalTrafficPolicy Local have one (pkg/api/v1/service, NeedsHealthCheck). It counts the distinct addresses of
// ready endpoints on this node, over all ports of the record (pkg/proxy, EndpointsMap.LocalReadyEndpoints).
type health struct {
	port  uint16 // 0 if the service has none
	addrs []netip.Addr
}

func newHealth(svc *model.Service) health {
	if svc.Type != model.TypeLoadBalancer || !svc.ExternalLocal {
		return health{}
	}
	return health{port: svc.HealthCheckNodePort}
}

// count adds the endpoints of a port.
func (h *health) count(eps candidates) {
	if h.port == 0 {
		return
	}
	for _, e := range eps {
		if e.is&(ready|local) == ready|local {
			h.addrs = append(h.addrs, e.addr.Addr())
		}
	}
}

func (h *health) check() state.HealthCheck {
	slices.SortFunc(h.addrs, netip.Addr.Compare)
	hc := state.HealthCheck{Port: h.port}
	for _, ip := range slices.Compact(h.addrs) {
		if ip.Is4() {
			hc.LocalIPv4++
		} else {
			hc.LocalIPv6++
		}
	}
	return hc
}
