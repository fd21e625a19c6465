package explain

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/internal/diagnosis"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// maxClaimants is how many of the Services that name an address are looked at: each costs a look at a whole Service.
const maxClaimants = 32

// whyStray fills in why no frontend takes a connection.
func (v *view) whyStray(a *Answer, c Connection) {
	dst := c.Dst.Addr()
	nodePort := uint16(0)
	if slices.Contains(v.local, dst) || slices.Contains(v.node.Addresses, dst) {
		nodePort = c.Dst.Port()
	}
	claimants := v.store.Claimants(dst, nodePort)
	if i := slices.IndexFunc(claimants, func(name state.ServiceName) bool { return name.String() == a.Service }); i > 0 {
		// The Service whose cluster IP refuses the connection goes first.
		claimants = slices.Concat(claimants[i:i+1], claimants[:i], claimants[i+1:])
	}
	for i, name := range claimants {
		if i == maxClaimants {
			a.Notes = append(a.Notes, fmt.Sprintf("of %d Services that name the address, these are the first %d", len(claimants), maxClaimants))
			break
		}
		because, remedy := v.whyNot(name, c)
		if because == "" {
			continue
		}
		if a.Because != "" {
			a.Notes = append(a.Notes, fmt.Sprintf("Service %v names the address, too: %s", name, because))
			continue
		}
		a.Service, a.Because, a.Remedy = name.String(), because, remedy
	}
	if a.Because != "" {
		return
	}
	pod := v.facts.At(dst, "").Ref()
	switch {
	case v.proxyMode(dst) != "":
		a.Because = fmt.Sprintf("the load balancer of Service %s has ipMode Proxy at %v: nodes take no connections to it, and it connects to them itself", v.proxyMode(dst), dst)
		a.Remedy = "look at the load balancer, and at the node port that it connects to"
	case a.Verdict == Dropped:
		a.Because = fmt.Sprintf("%v is in the range of cluster IPs, and no Service has it", dst)
		a.Remedy = "ask DNS again: the Service may have been deleted, or created again with another address"
	case pod != "":
		a.Because = fmt.Sprintf("%v is the address of pod %s: connections to it do not pass the service proxy", dst, pod)
	case slices.Contains(v.node.Addresses, dst):
		a.Because = fmt.Sprintf("no Service has node port %d/%v", c.Dst.Port(), c.Protocol)
	default:
		a.Because = fmt.Sprintf("no Service has the address %v", dst)
		if c.Class == Outside {
			a.Remedy = "look at what the name resolves to, and at status.loadBalancer and spec.externalIPs of the Service"
		}
	}
}

// whyNot returns why a Service that names an address does not take a connection to it.
func (v *view) whyNot(name state.ServiceName, c Connection) (because, remedy string) {
	why := v.why(name)
	o := why.Object
	if o == nil {
		return "", ""
	}
	if why.NotRouted != "" {
		return v.notRouted(name, why)
	}
	dst := c.Dst.Addr()
	for _, r := range why.Refusals {
		if r.Addr == dst {
			return fmt.Sprintf("the externalIP %v %s, and is not routed", r.Addr, r.Why), r.Remedy
		}
	}
	for _, u := range why.Addresses {
		if u.Addr == dst && u.Reason != brain.Duplicate {
			return addressText(&u, o)
		}
	}
	for _, l := range why.Lost {
		if l.Frontend.LastPort != 0 {
			if l.Frontend.Addr == dst && l.Frontend.Protocol == c.Protocol && l.Frontend.Has(c.Dst.Port()) {
				return v.rangeLost(name, &l)
			}
			continue
		}
		if l.Frontend.Addr == dst && l.Frontend.Port == c.Dst.Port() && l.Frontend.Protocol == c.Protocol {
			return fmt.Sprintf("Service %v has the same address and port, and goes first", l.Holder), "give one of the two Services another address or port"
		}
	}
	if !namesAddr(o, dst) {
		return v.nodePortNotServed(why, c)
	}
	for _, p := range o.Ports {
		if p.Port == c.Dst.Port() && p.Protocol != c.Protocol {
			return fmt.Sprintf("port %d of the Service is %v, not %v", p.Port, p.Protocol, c.Protocol), fmt.Sprintf("use %v, or add a port of %v to the Service", p.Protocol, c.Protocol)
		}
	}
	for _, p := range why.UnroutedPorts {
		if p.Port.Port == c.Dst.Port() {
			return portReasonText(&p), ""
		}
	}
	because = fmt.Sprintf("the Service has no port %d, only %s", c.Dst.Port(), diagnosis.Some(portTexts(o)))
	for _, p := range o.Ports {
		if p.NodePort == c.Dst.Port() {
			return because + fmt.Sprintf(": %d is its node port, which is served on addresses of nodes", p.NodePort), fmt.Sprintf("connect to port %d", p.Port)
		}
	}
	if target := v.targetOf(name, c.Dst.Port()); target != "" {
		return because + fmt.Sprintf(": %d is the port of its pods (targetPort)", c.Dst.Port()), "connect to port " + target
	}
	return because, "connect to a port of the Service, or add this one to spec.ports"
}

// rangeLost is why a range of ports of a Service is not routed.
func (v *view) rangeLost(name state.ServiceName, l *store.Loss) (because, remedy string) {
	if l.Holder == name {
		return fmt.Sprintf("the range %v is left out: a node has no room for more ranges, and older Services have them", l.Frontend),
			"delete ranges of other Services, or combine ranges that follow each other"
	}
	return fmt.Sprintf("the range %v overlaps one of Service %v, which goes first, so that the whole range is left out", l.Frontend, l.Holder),
		"give one of the two ranges other ports, or one of the Services another address"
}

func namesAddr(o *model.Service, addr netip.Addr) bool {
	return slices.Contains(o.ClusterIPs, addr) || slices.Contains(o.ExternalIPs, addr) || slices.Contains(o.LoadBalancerIPs, addr)
}

func portTexts(o *model.Service) []string {
	var texts []string
	for _, p := range o.Ports {
		texts = append(texts, fmt.Sprintf("%d/%v", p.Port, p.Protocol))
	}
	return texts
}

// nodePortNotServed is why a Service with the node port does not take a connection to it.
func (v *view) nodePortNotServed(why *store.Explanation, c Connection) (because, remedy string) {
	o := why.Object
	for _, p := range o.Ports {
		if p.NodePort != c.Dst.Port() || p.Protocol != c.Protocol && hasNodePort(o, c) {
			continue
		}
		addresses := state.NodePortAddresses{}
		if v.node.NodePorts != nil {
			addresses = *v.node.NodePorts
		}
		switch served := addresses.Select(v.local, v.node); {
		case p.Protocol != c.Protocol:
			return fmt.Sprintf("node port %d of the Service is %v, not %v", p.NodePort, p.Protocol, c.Protocol), fmt.Sprintf("use %v", p.Protocol)
		case !slices.Contains(served, c.Dst.Addr()):
			because = fmt.Sprintf("node port %d is not served on %v (nodePortAddresses: %v)", p.NodePort, c.Dst.Addr(), addresses)
			if len(served) > 0 {
				return because, fmt.Sprintf("connect to %s, or set --nodeport-addresses", join(served, " or "))
			}
			return because, "set --nodeport-addresses to a range with an address of this node"
		case !hasFamilyOf(o, c):
			return fmt.Sprintf("the Service has no %v cluster IP, so that its node port is not served in that family", state.FamilyOf(c.Dst.Addr())),
				"connect by the other IP family, or make the Service dual-stack (spec.ipFamilyPolicy)"
		case o.Type != model.TypeNodePort && o.Type != model.TypeLoadBalancer:
			return fmt.Sprintf("the Service has nodePort %d, but its type is not NodePort or LoadBalancer", p.NodePort), "set spec.type to NodePort"
		}
		for _, u := range why.UnroutedPorts {
			if u.Port == p && u.Reason == brain.NoRoom {
				return fmt.Sprintf("node port %d: %s", p.NodePort, portReasonText(&u)), "split the Service"
			}
		}
		for _, l := range why.Lost {
			if f := l.Frontend; !f.Addr.IsValid() && l.Kind != store.HealthCheckPort && f.Port == p.NodePort && f.Protocol == p.Protocol && f.Family == state.FamilyOf(c.Dst.Addr()) {
				return fmt.Sprintf("Service %v has the same node port, %d/%v, and goes first", l.Holder, p.NodePort, p.Protocol), "give one of the two Services another nodePort"
			}
		}
		return fmt.Sprintf("node port %d is not routed", p.NodePort), ""
	}
	if o.HealthCheckNodePort == c.Dst.Port() && c.Protocol == state.TCP && o.Type == model.TypeLoadBalancer && o.ExternalLocal {
		return fmt.Sprintf("port %d is the healthCheckNodePort of the Service: the proxy itself answers load balancers there", o.HealthCheckNodePort), ""
	}
	return "", ""
}

// hasNodePort reports whether a Service has the node port of a connection, with its protocol.
func hasNodePort(o *model.Service, c Connection) bool {
	return slices.ContainsFunc(o.Ports, func(p model.ServicePort) bool { return p.NodePort == c.Dst.Port() && p.Protocol == c.Protocol })
}

func hasFamilyOf(o *model.Service, c Connection) bool {
	for _, ip := range o.ClusterIPs {
		if state.FamilyOf(ip) == state.FamilyOf(c.Dst.Addr()) {
			return true
		}
	}
	return false
}

// notRouted is why a Service is not routed at all.
func (v *view) notRouted(name state.ServiceName, why *store.Explanation) (because, remedy string) {
	switch why.NotRouted {
	case brain.NoService:
		return fmt.Sprintf("there is no Service %v", name), ""
	case brain.Headless:
		return "the Service is headless (clusterIP: None): DNS answers with the addresses of its pods, and the service proxy has no part in it",
			"connect to a pod's address at the pod's own port, or give the Service a cluster IP (it must be created again)"
	case brain.ExternalName:
		return fmt.Sprintf("the Service is an alias in DNS (type ExternalName) for %s, and the service proxy has no part in it", why.Object.ExternalName),
			"look at what DNS says about " + why.Object.ExternalName
	case brain.OtherProxy:
		if !why.Object.HasProxyName {
			return "the Service has not the label service.kubernetes.io/service-proxy-name of this proxy, and is another service proxy's",
				"give it the label with the name that this proxy has (--service-proxy-name)"
		}
		return fmt.Sprintf("the label service.kubernetes.io/service-proxy-name=%s gives the Service to another service proxy", why.Object.ProxyName),
			"remove the label, or run the proxy that it names; for Switchyard, --service-proxy-name"
	case store.NamespaceOptedOut:
		return fmt.Sprintf("namespace %s has the label networking.k8s.io/kube-proxy=disabled, by which its Services are not routed", name.Namespace),
			"remove the label from the namespace"
	case brain.NoRoom:
		if p, ok := noRoom(why); ok {
			return p.Note, p.Remedy
		}
		return "there is no room for the Service", ""
	}
	switch {
	case len(why.Object.ClusterIPs) == 0:
		return "the Service has no cluster IP", "in a manifest that did not go through an API server, add spec.clusterIP"
	case len(why.UnroutedPorts) > 0:
		return portReasonText(&why.UnroutedPorts[0]), ""
	}
	return "the Service has no port", "add one to spec.ports"
}

// noRoom returns the problem of a Service that has more entries than there is room for.
func noRoom(why *store.Explanation) (p store.Problem, ok bool) {
	for _, p := range why.Problems {
		switch p.Reason {
		case store.ServiceTooLarge, store.NamespaceFull, store.NodeFull:
			return p, true
		}
	}
	return p, false
}

// addressText is why an address of a Service is no frontend.
func addressText(u *brain.UnroutedAddress, o *model.Service) (because, remedy string) {
	switch u.Reason {
	case brain.NoClusterIP:
		return fmt.Sprintf("the Service has no %v cluster IP, so that its %v address %v is not routed: nothing translates between families", state.FamilyOf(u.Addr), u.Kind, u.Addr),
			"make the Service dual-stack (spec.ipFamilyPolicy), or take an address of its family"
	case brain.NotLoadBalancer:
		return fmt.Sprintf("%v is in status.loadBalancer, but the type of the Service is not LoadBalancer", u.Addr), "set spec.type to LoadBalancer"
	case brain.NoRoom:
		return "the Service has more frontends and source ranges than it may have", "split the Service"
	}
	return fmt.Sprintf("%v is not routed (%s)", u.Addr, u.Reason), ""
}

func portReasonText(u *brain.UnroutedPort) string {
	port := fmt.Sprintf("port %d/%v", u.Port.Port, u.Port.Protocol)
	switch u.Reason {
	case brain.NoRoom:
		return port + " is not routed: the Service has more frontends and source ranges than it may have"
	case brain.NumberTaken:
		return port + " is not routed: an earlier port of the Service has the same number"
	case brain.Duplicate:
		return port + " is not routed: an earlier port of the Service has the same name"
	}
	return port + " is not valid"
}
