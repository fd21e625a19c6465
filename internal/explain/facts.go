package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// isHere reports whether an address is a pod's of this node.
func (v *view) isHere(addr netip.Addr) bool {
	p := v.facts.At(addr, v.node.Name)
	return p != nil && p.Node == v.node.Name
}

// proxyMode returns the Service whose load balancer has an address for itself, empty if there is none.
func (v *view) proxyMode(addr netip.Addr) string {
	if v.facts == nil {
		return ""
	}
	for name, s := range v.facts.Services {
		if slices.Contains(s.ProxyModeIPs, addr) {
			return name.String()
		}
	}
	return ""
}

// targetOf returns the port of a Service that leads to a port number of its pods.
func (v *view) targetOf(name state.ServiceName, target uint16) string {
	if v.facts == nil {
		return ""
	}
	for _, t := range v.facts.Services[name].Targets {
		if t.Target == fmt.Sprint(target) {
			return fmt.Sprint(t.Port)
		}
	}
	return ""
}

// balancers are the addresses and names of a Service's load balancers to which nodes take no connections.
func (v *view) balancers(name state.ServiceName) []string {
	if v.facts == nil {
		return nil
	}
	s := v.facts.Services[name]
	return append(texts(s.ProxyModeIPs), s.Hostnames...)
}
