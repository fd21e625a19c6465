package brain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Refusal is an externalIP of a service that is not routed.
type Refusal struct {
	Addr netip.Addr
	// Why completes the sentence "externalIP ADDR ...".
	Why string
	// Remedy tells the owner of the service or the operator how to fix it.
	Remedy string
}

// Holder describes the holder of an address. The zero value means that the holder is unknown.
type Holder struct {
	// Is completes the sentence "externalIP ADDR is ...", as in "the address of a node".
	Is string
	// Interface means that nothing else is known of the address than that an interface of this node has it.
	Interface bool
	// Ports are the TCP ports at which this node, or others, reach the API server there.
	Ports []uint16
}

// AdmitExternalIPs returns svc without the externalIPs that must not be routed, and the refused externalIPs. If none is
// refused, it returns svc itself. It never modifies svc. holder returns the holder of an address; it may be nil.
//
// With [Config.IgnoreExternalIPs] all externalIPs are refused, as in kube-proxy's BaseServicePortInfo.ExternalIPs.
// Otherwise these rules apply. Anyone who may write a Service can name any address as an externalIP, and so take the
// connections to it (CVE-2020-8554). Therefore AdmitExternalIPs refuses addresses that [model.Special] names, addresses
// outside [Config.ExternalIPs], and addresses of holders. Otherwise a Service could take the connections to the
// kubelet, to ssh or to the API server. [Config.NodeExternalIPs] allows addresses of holders, except for services with
// a port of the API server: nodes could not learn that such a service is gone.
//
// [Compute] applies all rules except the rule about holders, which would give a service a different record on each
// node.
func AdmitExternalIPs(cfg *Config, svc *model.Service, holder func(netip.Addr) Holder) (*model.Service, []Refusal) {
	if skips(cfg, svc) != "" {
		return svc, nil
	}
	var refusals []Refusal
	left := slices.DeleteFunc(slices.Clone(svc.ExternalIPs), func(ip netip.Addr) bool {
		r, refused := cfg.refuses(svc, ip, holder)
		if refused {
			refusals = append(refusals, r)
		}
		return refused
	})
	if refusals == nil {
		return svc, nil
	}
	admitted := *svc
	admitted.ExternalIPs = left
	return &admitted, refusals
}

// refuses reports whether an externalIP must not be routed.
func (c *Config) refuses(svc *model.Service, ip netip.Addr, holder func(netip.Addr) Holder) (r Refusal, refused bool) {
	if c.IgnoreExternalIPs {
		return Refusal{ip, "is ignored because feature gate AllowServiceExternalIPs is false",
			"use a Service of type LoadBalancer, or have the operator set the feature gate to true"}, true
	}
	if kind := model.Special(ip); kind != "" {
		return Refusal{ip, "is " + kind, "choose an address of hosts outside the cluster"}, true
	}
	if !c.allowsExternalIP(ip) {
		return Refusal{ip, "is not in the ranges that the operator allows", "choose an address in one of them, or have the operator add a range"}, true
	}
	if holder == nil {
		return Refusal{}, false
	}
	h := holder(ip)
	if port, takes := takesPort(svc, h.Ports); takes {
		return Refusal{ip, fmt.Sprintf("is %s, which listens on TCP port %d", h.Is, port), "use another address or port"}, true
	}
	if h.Is != "" && !c.NodeExternalIPs {
		return Refusal{ip, "is " + h.Is, "use a NodePort, or have the operator allow addresses of nodes"}, true
	}
	return Refusal{}, false
}

// takesPort returns the first of some TCP ports that a service also has.
func takesPort(svc *model.Service, ports []uint16) (port uint16, takes bool) {
	for _, port := range ports {
		if slices.ContainsFunc(svc.Ports, func(p model.ServicePort) bool { return p.Protocol == state.TCP && p.Port == port }) {
			return port, true
		}
	}
	return 0, false
}

func (c *Config) allowsExternalIP(ip netip.Addr) bool {
	return len(c.ExternalIPs) == 0 || slices.ContainsFunc(c.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// routesExternalIP reports whether an externalIP is routed by the rules that are the same from every node.
func (c *Config) routesExternalIP(ip netip.Addr) bool {
	return !c.IgnoreExternalIPs && model.Special(ip) == "" && c.allowsExternalIP(ip)
}
