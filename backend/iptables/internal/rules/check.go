package rules

import (
	"fmt"
	"slices"

	"github.com/switchyard-net/switchyard/state"
)

// maxSticky is how many endpoints of one Service may remember clients. Each needs a set, and the kernel has 65,534 sets
// for all its users.
const maxSticky = 4096

// Check returns what of a record no rule can be made for: values of a later version.
func Check(s *state.Service) error {
	sticky := 0
	for i := range s.Ports {
		p := &s.Ports[i]
		if !slices.Contains(keyProtocols, p.Protocol) {
			return fmt.Errorf("port %q has the unknown protocol %v", p.Name, p.Protocol)
		}
		if p.Family != state.IPv4 && p.Family != state.IPv6 {
			return fmt.Errorf("port %q has the unknown family %v", p.Name, p.Family)
		}
		for _, f := range p.Frontends {
			if f.Kind < state.ClusterIP || f.Kind > state.NodePort {
				return fmt.Errorf("port %q has a frontend of the unknown kind %v", p.Name, f.Kind)
			}
			if f.Kind != state.NodePort && state.FamilyOf(f.Addr) != p.Family {
				return fmt.Errorf("port %q has the frontend %v, which is not of family %v", p.Name, f.Addr, p.Family)
			}
		}
		if p.Affinity > 0 {
			sticky += len(stickyEndpoints(p))
		}
		for _, t := range []*state.Traffic{&p.Internal, &p.External} {
			if t.Masquerade > state.MasqueradeNode {
				return fmt.Errorf("port %q has the unknown masquerade rule %v", p.Name, t.Masquerade)
			}
			for _, r := range []*state.Route{&t.Inside, &t.Outside} {
				if r.Verdict > state.Drop || (r.Verdict == state.Forward) != (len(r.Endpoints) > 0) {
					return fmt.Errorf("port %q has a route with verdict %v and %d endpoints", p.Name, r.Verdict, len(r.Endpoints))
				}
			}
		}
	}
	if sticky > maxSticky {
		return fmt.Errorf("it has session affinity and %d endpoints in all ports and families, but iptables takes %d at most: "+
			"set sessionAffinity to None, or give it fewer ports or endpoints", sticky, maxSticky)
	}
	return nil
}
