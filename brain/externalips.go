package brain

import (
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/model"
)

// Refusal is an externalIP of a service that is not routed.
type Refusal struct {
	Addr netip.Addr
	// Why completes the sentence "externalIP ADDR ...".
	Why string
	// Remedy is what the owner of the service or the operator can do about it.
	Remedy string
}

// AdmitExternalIPs returns svc without those externalIPs that must not be routed, and these. If there are none, it is svc itself,
// which is not modified in any case. isNode reports whether an address is known as that of a node; it may be nil.
//
// Anyone who may write a Service can name any address as an externalIP, and so take the connections to it (CVE-2020-8554). Refused are
// addresses that [model.Special] names, those outside [Config.ExternalIPs], and those of nodes: else a Service could take the
// connections to the kubelet, to ssh or to an API server in the node's network.
//
// [Compute] applies the first two of these rules by itself. It cannot apply the third: the record of a service would be another one on
// each node.
func AdmitExternalIPs(cfg *Config, svc *model.Service, isNode func(netip.Addr) bool) (*model.Service, []Refusal) {
	if skips(cfg, svc) != "" {
		return svc, nil
	}
	var refusals []Refusal
	for _, ip := range svc.ExternalIPs {
		if r, refused := cfg.refuses(ip, isNode); refused {
			refusals = append(refusals, r)
		}
	}
	if refusals == nil {
		return svc, nil
	}
	admitted := *svc
	admitted.ExternalIPs = slices.DeleteFunc(slices.Clone(svc.ExternalIPs), func(ip netip.Addr) bool {
		_, refused := cfg.refuses(ip, isNode)
		return refused
	})
	return &admitted, refusals
}

// refuses reports whether an externalIP must not be routed.
func (c *Config) refuses(ip netip.Addr, isNode func(netip.Addr) bool) (r Refusal, refused bool) {
	if kind := model.Special(ip); kind != "" {
		return Refusal{ip, "is " + kind, "choose an address of hosts outside the cluster"}, true
	}
	if !c.allowsExternalIP(ip) {
		return Refusal{ip, "is not in the ranges that the operator allows", "choose an address in one of them, or have the operator add a range"}, true
	}
	if !c.NodeExternalIPs && isNode != nil && isNode(ip) {
		return Refusal{ip, "is the address of a node", "use a NodePort, or have the operator allow addresses of nodes"}, true
	}
	return Refusal{}, false
}

func (c *Config) allowsExternalIP(ip netip.Addr) bool {
	return len(c.ExternalIPs) == 0 || slices.ContainsFunc(c.ExternalIPs, func(p netip.Prefix) bool { return p.Contains(ip) })
}

// routesExternalIP reports whether an externalIP is routed by the rules that are the same from every node.
func (c *Config) routesExternalIP(ip netip.Addr) bool {
	return model.Special(ip) == "" && c.allowsExternalIP(ip)
}
