package randcluster

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// An API server would admit everything: what is checked here is what it says no to.
func TestAdmissible(t *testing.T) {
	o := Options{Admissible: true, ServiceCIDRs: prefixes("10.96.0.0/24", "fd00:96::/112"), ExternalIPs: addrs("203.0.113.1", "203.0.113.9", "fd00:113::9")}
	for i := range 6 {
		o.ClusterIPs = append(o.ClusterIPs, netip.AddrFrom4([4]byte{10, 96, 0, byte(i + 1)}), netip.MustParseAddr(fmt.Sprintf("fd00:96::%d", i+1)))
	}
	for i := range uint16(24) {
		o.NodePorts = append(o.NodePorts, 30000+i)
	}
	types := map[model.ServiceType]int{}
	for seed := range uint64(50) {
		h := New(seed, o)
		for range 15 {
			h.Step()
			w := h.World()
			owners := map[any]string{} // of addresses and node ports
			for _, s := range w.Services {
				types[s.Type]++
				if problem := notAdmitted(s); problem != "" {
					t.Fatalf("seed %d: %s: %+v", seed, problem, *s)
				}
				for _, a := range slices.Concat(s.ClusterIPs, s.ExternalIPs, s.LoadBalancerIPs) {
					if owner, ok := owners[a]; ok && owner != s.Name.String() {
						t.Fatalf("seed %d: %v belongs to %s and to %v", seed, a, owner, s.Name)
					}
					owners[a] = s.Name.String()
				}
				for _, p := range s.Ports {
					if owner, ok := owners[p.NodePort]; ok && p.NodePort != 0 {
						t.Fatalf("seed %d: node port %d belongs to %s and to %v", seed, p.NodePort, owner, s.Name)
					}
					owners[p.NodePort] = s.Name.String()
				}
			}
			for _, s := range w.Slices {
				if len(unique(s.Ports, func(a, b model.EndpointPort) bool { return a.Name == b.Name })) < len(s.Ports) {
					t.Fatalf("seed %d: two ports with one name: %+v", seed, *s)
				}
				for _, ep := range s.Endpoints {
					if !ep.Addr.IsValid() || state.FamilyOf(ep.Addr) != s.Family {
						t.Fatalf("seed %d: an endpoint of another family: %+v", seed, *s)
					}
				}
			}
		}
	}
	if len(types) != 4 {
		t.Errorf("only these types came up: %v", types)
	}
}

// notAdmitted describes why an API server would not admit a service by itself.
func notAdmitted(s *model.Service) string {
	byNode := s.Type == model.TypeNodePort || s.Type == model.TypeLoadBalancer
	switch {
	case s.Type == model.TypeExternalName && (s.Headless || len(s.ClusterIPs) > 0):
		return "an ExternalName has no cluster IP"
	case s.Headless && (byNode || len(s.ClusterIPs) > 0):
		return "a headless service has no frontends"
	case s.Type != model.TypeExternalName && !s.Headless && len(s.ClusterIPs) == 0:
		return "no cluster IP"
	case len(s.Ports) == 0:
		return "no port"
	}
	for i, p := range s.Ports {
		switch {
		case p.Name == "" && len(s.Ports) > 1:
			return "one of several ports has no name"
		case s.Type == model.TypeNodePort && p.NodePort == 0:
			return "no node port"
		case !byNode && p.NodePort != 0:
			return "a node port"
		}
		for _, o := range s.Ports[:i] {
			if o.Name == p.Name || o.Port == p.Port && o.Protocol == p.Protocol {
				return "two ports are the same"
			}
		}
	}
	return ""
}
