package diagnosis

import (
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
)

// endpoints adds a finding for each port that has no endpoint for new connections. A port that has some in one family only is worth a warning.
func (s *subject) endpoints() {
	type key struct {
		name     string
		protocol state.Protocol
	}
	served := map[key]bool{}
	for i := range s.why.Ports {
		if p := &s.why.Ports[i]; usable(p) {
			served[key{p.Name, p.Protocol}] = true
		}
	}
	for i := range s.why.Ports {
		if s.full() {
			return
		}
		p := &s.why.Ports[i]
		f := s.port(p)
		if f == nil {
			s.somePods(p)
			s.noneHere(p)
			continue
		}
		if f.Severity == Fault && served[key{p.Name, p.Protocol}] {
			f.Severity = Warning
		}
		s.add(*f)
	}
	s.headless()
}

// usable reports whether a port has an endpoint that gets new connections on some node.
func usable(p *brain.PortReasons) bool {
	localOnly := p.Internal == brain.PolicyLocal && p.External == brain.PolicyUnused
	return slices.ContainsFunc(p.Endpoints, func(e brain.EndpointReasons) bool {
		switch {
		case e.Unusable != "" || p.NoRoom:
			return false
		case localOnly:
			return !slices.ContainsFunc(e.Local, func(r brain.Reason) bool { return r != brain.OtherNode })
		}
		return len(e.Cluster) == 0
	})
}

// port returns why a port has no endpoint for new connections, nil if it has one.
func (s *subject) port(p *brain.PortReasons) *Finding {
	if usable(p) {
		return nil
	}
	if p.NoRoom {
		return s.noRoom()
	}
	if len(p.Endpoints) == 0 {
		return s.noEndpoint(p)
	}
	all := func(of ...brain.Reason) bool {
		return !slices.ContainsFunc(p.Endpoints, func(e brain.EndpointReasons) bool {
			out := append([]brain.Reason{e.Unusable}, slices.Concat(e.Cluster, e.Local)...)
			return !slices.ContainsFunc(out, func(r brain.Reason) bool { return slices.Contains(of, r) })
		})
	}
	switch {
	case all(brain.NotReady, brain.NotServing, brain.Terminating):
		return s.notReady(p)
	case all(brain.Special):
		return s.finding(SpecialAddress, "", "no endpoint of the Service has an address that endpoints can have", s.sliceNames(p),
			"give the EndpointSlice addresses of hosts: no loopback, link-local, multicast or broadcast address")
	}
	return s.finding(NoneUsable, "", "no endpoint of the Service can get connections", "each endpoint has its own reason", "")
}

func (s *subject) finding(r Reason, field, text, cause, remedy string) *Finding {
	return &Finding{Reason: r, Severity: Fault, Object: s.about, Field: field, Text: text, Cause: cause, Remedy: remedy}
}

// sliceNames names the slices of endpoints that cannot be used.
func (s *subject) sliceNames(p *brain.PortReasons) string {
	var names []string
	for i := range p.Endpoints {
		names = append(names, p.Endpoints[i].Slice.Name)
	}
	slices.Sort(names)
	return Plural("EndpointSlice", slices.Compact(names))
}

// noEndpoint is why no slice has an endpoint for a port.
func (s *subject) noEndpoint(p *brain.PortReasons) *Finding {
	var with []brain.SliceReasons // slices that have endpoints
	for _, r := range p.Slices {
		if len(r.Slice.Endpoints) > 0 || r.Slice.Family == 0 {
			with = append(with, r)
		}
	}
	slices.SortFunc(with, func(a, b brain.SliceReasons) int { return strings.Compare(a.Slice.Name, b.Slice.Name) })
	all := func(is func(r *brain.SliceReasons) bool) bool {
		return !slices.ContainsFunc(with, func(r brain.SliceReasons) bool { return !is(&r) })
	}
	switch {
	case len(with) == 0:
		return s.nothing(len(p.Slices))
	case all(func(r *brain.SliceReasons) bool { return r.Slice.Family == 0 }):
		return s.finding(NamesOnly, "", "the Service has no endpoints", s.slice(with)+" has addressType FQDN, and no service proxy takes host names",
			"write the addresses in an EndpointSlice of addressType IPv4 or IPv6, or use a Service of type ExternalName")
	case all(func(r *brain.SliceReasons) bool { return r.Reason == brain.OtherFamily }):
		return s.finding(OtherFamily, "spec.ipFamilies", fmt.Sprintf("the Service has no %v endpoints", p.Family), fmt.Sprintf("%s is %v", s.slice(with), with[0].Slice.Family),
			"give the Service the family of its endpoints (spec.ipFamilies), or give the endpoints addresses of both families")
	case all(func(r *brain.SliceReasons) bool { return r.Reason == brain.Headless || r.Reason == brain.OtherProxy }):
		label := "service.kubernetes.io/service-proxy-name"
		if with[0].Reason == brain.Headless {
			label = "service.kubernetes.io/headless"
		}
		return s.finding(OtherProxy, "", "the Service has no endpoints for this service proxy", fmt.Sprintf("the label %s of %s decides that", label, s.slice(with)),
			"give the EndpointSlice and the Service the same labels")
	}
	return s.noSuchPort(p, with)
}

// slice names the first of some slices, or the Endpoints that it is a copy of.
func (s *subject) slice(list []brain.SliceReasons) string {
	if e := s.facts.endpoints(s.name()); e != nil && !s.selects() {
		return "Endpoints " + e.Name
	}
	return "EndpointSlice " + list[0].Slice.Name
}

// selects reports whether the Service is known to have a selector.
func (s *subject) selects() bool {
	f, _ := s.facts.service(s.name())
	return len(f.Selector) > 0
}

// noSuchPort is why slices with endpoints have none for a port.
func (s *subject) noSuchPort(p *brain.PortReasons, with []brain.SliceReasons) *Finding {
	f := s.finding(NoSuchPort, "", fmt.Sprintf("%s of the Service has no endpoints", s.portName(p)), "", "")
	t := s.target(p)
	if t != nil && t.named() && s.selects() && !slices.ContainsFunc(s.pods(), func(pod *Pod) bool { return pod.has(t, p.Protocol) }) {
		f.Field = t.Field
		f.Cause, f.Remedy = s.noNamedPort(t, p.Protocol)
		return f
	}
	for i := range with {
		if with[i].Reason == brain.NoSuchPort {
			with = with[i:]
			break
		}
	}
	var has []string
	for _, port := range with[0].Slice.Ports {
		has = append(has, nameOf(port.Name, port.Protocol))
	}
	f.Remedy = "give the ports of the Service and of " + s.slice(with) + " the same name and protocol"
	if f.Cause = s.slice(with) + " has " + Some(has); len(has) == 0 {
		f.Cause, f.Remedy = s.slice(with)+" has no port", "add the port to "+s.slice(with)
	}
	return f
}

// nameOf names a port of a slice.
func nameOf(name string, protocol state.Protocol) string {
	if name == "" {
		return fmt.Sprintf("an unnamed %v port", protocol)
	}
	return fmt.Sprintf("port %s/%v", name, protocol)
}

// portName names a port of the Service.
func (s *subject) portName(p *brain.PortReasons) string {
	for _, o := range s.why.Object.Ports {
		if o.Name == p.Name && o.Protocol == p.Protocol {
			if p.Name == "" {
				return fmt.Sprintf("port %d/%v", o.Port, o.Protocol)
			}
			return fmt.Sprintf("port %s (%d/%v)", p.Name, o.Port, o.Protocol)
		}
	}
	return "port " + p.Name
}

// notReady returns the finding that no endpoint of a port is ready or serving.
func (s *subject) notReady(p *brain.PortReasons) *Finding {
	n := len(p.Endpoints)
	f := s.finding(NotReady, "", "no endpoint of the Service is ready", fmt.Sprintf("%s not ready", allOf(n)), "look at why the pods are not ready: kubectl describe pod")
	terminates := 0
	for i := range p.Endpoints {
		if p.Endpoints[i].Endpoint.Terminating {
			terminates++
		}
	}
	if terminates > 0 {
		f.Cause = fmt.Sprintf("%s or not ready", strings.Replace(allOf(n), "is", "is terminating", 1))
		if n > 1 {
			f.Cause = fmt.Sprintf("all %d are terminating or not ready", n)
		}
		f.Remedy = "look at why there are no new pods: kubectl get pods, kubectl get events"
		return f
	}
	first := &p.Endpoints[0]
	if pod := s.facts.At(first.Addr.Addr(), first.Endpoint.NodeName); pod != nil {
		switch {
		case pod.Gate != "":
			f.Reason, f.Severity, f.Remedy = ReadinessGate, Remark, "check that the cluster runs the controller of the readiness gate"
			f.Cause = fmt.Sprintf("pod %s waits for the readiness gate %s", pod.Ref(), pod.Gate)
		case pod.NotReady != "":
			f.Cause += fmt.Sprintf("; pod %s: %s", pod.Ref(), pod.NotReady)
		}
		return f
	}
	switch e := s.facts.endpoints(s.name()); {
	case e != nil && !s.selects():
		f.Cause, f.Remedy = "Endpoints "+e.Name+" has only notReadyAddresses", "move the addresses that serve to subsets.addresses"
	case s.facts.known(s.name()) && !s.selects():
		f.Cause, f.Remedy = fmt.Sprintf("%s not ready in EndpointSlice %s", allOf(n), first.Slice.Name), "set conditions.ready to true for the endpoints that serve"
	}
	return f
}

// allOf begins a sentence about all of n endpoints.
func allOf(n int) string {
	if n == 1 {
		return "the only one is"
	}
	return fmt.Sprintf("all %d are", n)
}

// noneHere remarks on a cluster IP whose policy is Local while all endpoints are elsewhere.
func (s *subject) noneHere(p *brain.PortReasons) {
	known := func(f Finding) bool { return f.Reason == NoLocalEndpoint }
	if p.Internal == brain.PolicyLocal && !slices.ContainsFunc(s.found, known) && !slices.ContainsFunc(p.Endpoints, func(e brain.EndpointReasons) bool { return e.In(brain.PolicyLocal) }) {
		s.add(NoneHere(p, false, s.node))
	}
}

// NoneHere is why policy Local finds no endpoint on a node: externalTrafficPolicy for external clients, else internalTrafficPolicy.
func NoneHere(p *brain.PortReasons, external bool, node string) Finding {
	policy := "internalTrafficPolicy"
	f := Finding{Reason: NoLocalEndpoint, Severity: Remark, Remedy: "run a pod of the Service on each node (a DaemonSet), or set spec.internalTrafficPolicy to Cluster"}
	if external {
		policy = "externalTrafficPolicy"
		f.Remedy = "connect to a node that has an endpoint (load balancers find them by the health check node port); or set spec.externalTrafficPolicy to Cluster, which hides the client's address"
	}
	f.Field = "spec." + policy
	var nodes []string
	unready := 0
	for i := range p.Endpoints {
		e := &p.Endpoints[i]
		switch {
		case e.Unusable != "":
		case slices.Contains(e.Local, brain.OtherNode) && len(e.Local) == 1 && e.Endpoint.NodeName != "":
			nodes = append(nodes, e.Endpoint.NodeName)
		case !slices.Contains(e.Local, brain.OtherNode):
			unready++
		}
	}
	slices.Sort(nodes)
	nodes = slices.Compact(nodes)
	f.Text = fmt.Sprintf("%s is Local, and no endpoint of the Service is on this node, %s", policy, node)
	if unready > 0 {
		f.Text = fmt.Sprintf("%s is Local, and no endpoint on this node, %s, is ready", policy, node)
	}
	if len(nodes) > 0 {
		f.Cause = "the Service has endpoints on " + Plural("node", nodes)
	}
	return f
}
