// Package diagnosis finds the problems of a Service. It is pure: it judges the results of the store and the brain, and,
// where they are known, pods and workloads. The lab, explain, get and the page all show its findings.
package diagnosis

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Severity is how bad a finding is.
type Severity string

// The severities.
const (
	// Fault: connections that the object asks for reach nothing.
	Fault Severity = "fault"
	// Warning: some connections reach nothing, or reach an endpoint that was hardly meant for them.
	Warning Severity = "warning"
	// Remark: connections work, or the rest of the cluster decides whether they do.
	Remark Severity = "remark"
)

// rank orders severities, the worst first.
func (s Severity) rank() int { return slices.Index([]Severity{Fault, Warning, Remark}, s) }

// Reason is a word for the kind of a finding. It is stable.
type Reason string

// The reasons. The reasons of a [store.Problem] are also reasons of findings.
const (
	// NoEndpoints: no EndpointSlice of the Service has an endpoint.
	NoEndpoints Reason = "NoEndpoints"
	// NoSuchPort: no EndpointSlice of the Service has an endpoint for the port.
	NoSuchPort Reason = "NoSuchPort"
	// OtherFamily: the endpoints have addresses of another IP family than the Service.
	OtherFamily Reason = "OtherFamily"
	// NamesOnly: the EndpointSlices have host names instead of addresses.
	NamesOnly Reason = "NamesOnly"
	// OtherProxy: the EndpointSlices are for another service proxy, or for none.
	OtherProxy Reason = "OtherProxy"
	// NotReady: no endpoint is ready.
	NotReady Reason = "NotReady"
	// ReadinessGate: pods wait for a condition that only a controller of the real cluster sets.
	ReadinessGate Reason = "ReadinessGate"
	// SpecialAddress: no endpoint has an address that an endpoint can have.
	SpecialAddress Reason = "SpecialAddress"
	// NoneUsable: each endpoint has its own reason.
	NoneUsable Reason = "NoneUsable"
	// NoLocalEndpoint: the policy is Local, and no endpoint is on this node.
	NoLocalEndpoint Reason = "NoLocalEndpoint"
	// PodsWithoutPort: only some of the selected pods have the port.
	PodsWithoutPort Reason = "PodsWithoutPort"
	// UndeclaredPort: no container of the selected pods declares the port.
	UndeclaredPort Reason = "UndeclaredPort"
	// NoHints: the Service asks for close endpoints, and its endpoints have no hints.
	NoHints Reason = "NoHints"
	// SourceRangesOfOneFamily: spec.loadBalancerSourceRanges has no range of a family that the load balancer has.
	SourceRangesOfOneFamily Reason = "SourceRangesOfOneFamily"
	// ClusterIPOfNode: a cluster IP is also an address of the node itself.
	ClusterIPOfNode Reason = "ClusterIPOfNode"
	// Degraded: the dataplane lacks a feature that the Service asks for.
	Degraded Reason = "Degraded"
	// MoreFindings: the Service has more findings than are listed.
	MoreFindings Reason = "MoreFindings"
	// AddressAsName: spec.externalName is an IP address.
	AddressAsName Reason = "AddressAsName"
)

// Object names an object of the cluster.
type Object struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
}

func (o Object) String() string {
	if o.Namespace == "" {
		return o.Kind + " " + o.Name
	}
	return o.Kind + " " + o.Namespace + "/" + o.Name
}

// Finding is one thing that is wrong with an object, or worth a remark. Its form as JSON is stable: fields may be added.
type Finding struct {
	Reason   Reason   `json:"reason"`
	Severity Severity `json:"severity"`
	// Object is the object at fault, and Field the path of the field, if there is one.
	Object Object `json:"object"`
	Field  string `json:"field,omitempty"`
	// Place is the file, line and column of the field. It is empty for objects that come from no file.
	Place string `json:"place,omitempty"`
	// Text describes the problem. All commands and the page show the same text.
	Text string `json:"text"`
	// Cause says more, as far as it is known there: a service proxy knows neither pods nor selectors.
	Cause string `json:"cause,omitempty"`
	// Remedy is what can be done about it.
	Remedy string `json:"remedy,omitempty"`
	// Holders are some of the Services that hold an address that the Service asks for, as NAMESPACE/NAME. They are in no sentence: others may hold it soon.
	Holders []string `json:"holders,omitempty"`
}

// Sentence is the text with its cause.
func (f *Finding) Sentence() string {
	if f.Cause == "" {
		return f.Text
	}
	return f.Text + ": " + f.Cause
}

// String is the sentence with its remedy.
func (f *Finding) String() string {
	if f.Remedy == "" {
		return f.Sentence()
	}
	return f.Sentence() + "; " + f.Remedy
}

// maxFindings is how many findings about a Service are listed. Tenants can give a Service thousands of ports, each with another fault.
const maxFindings = 32

// Service returns the findings about a Service that a store has explained on a node, the worst first, and not all if there are many. facts may be nil. local are the addresses of
// the node's interfaces, as far as they are known.
func Service(why *store.Explanation, node string, facts *Facts, local []netip.Addr) []Finding {
	if why.Object == nil {
		return nil
	}
	s := newSubject(why, facts)
	s.node = node
	s.endpoints()
	s.targets()
	s.hints()
	s.sourceRanges()
	s.nodeAddress(local)
	s.externalName()
	for i := range why.Problems {
		s.add(s.problem(&why.Problems[i]))
	}
	for i := range s.found {
		s.found[i].Place = facts.place(s.found[i].Object, s.found[i].Field)
	}
	order(s.found)
	if s.full() {
		s.found = append(s.found, Finding{Reason: MoreFindings, Severity: Remark, Object: s.about, Text: "the Service may have more findings, which are left out"})
	}
	return s.found
}

// order puts findings in order, the worst first. Those that are as bad keep their order.
func order(found []Finding) {
	slices.SortStableFunc(found, func(a, b Finding) int { return cmp.Compare(a.Severity.rank(), b.Severity.rank()) })
}

// Lacking returns the findings about a Service together with the one that it uses features which the dataplane lacks. They remain in order, the worst first.
func Lacking(found []Finding, name state.ServiceName, missing state.Features) []Finding {
	found = append([]Finding{{
		Reason: Degraded, Severity: Warning, Object: Object{"Service", name.Namespace, name.Name},
		Text:   fmt.Sprintf("the dataplane lacks %v, and serves the Service without", missing),
		Remedy: "choose another mode, or remove the annotations",
	}}, found...)
	order(found)
	return found
}

// Port returns why a port of a Service has no endpoint for new connections, nil if it has one.
func Port(why *store.Explanation, port *brain.PortReasons, facts *Facts) *Finding {
	s := newSubject(why, facts)
	f := s.port(port)
	if f != nil {
		f.Place = facts.place(f.Object, f.Field)
	}
	return f
}

// subject is a Service that is looked at.
type subject struct {
	why   *store.Explanation
	facts *Facts
	about Object
	node  string
	found []Finding
}

func newSubject(why *store.Explanation, facts *Facts) *subject {
	return &subject{why: why, facts: facts, about: Object{"Service", why.Object.Name.Namespace, why.Object.Name.Name}}
}

func (s *subject) name() state.ServiceName { return s.why.Object.Name }

// full reports whether there are as many findings as are listed.
func (s *subject) full() bool { return len(s.found) >= maxFindings }

// add adds a finding, unless there is one that says the same, or there are enough.
func (s *subject) add(f Finding) {
	if s.full() {
		return
	}
	if f.Object == (Object{}) {
		f.Object = s.about
	}
	same := func(o Finding) bool {
		return o.Reason == f.Reason && o.Text == f.Text && o.Cause == f.Cause && o.Field == f.Field
	}
	if !slices.ContainsFunc(s.found, same) {
		s.found = append(s.found, f)
	}
}

// problem is what the store reports.
func (s *subject) problem(p *store.Problem) Finding {
	f := Finding{Reason: Reason(p.Reason), Severity: problemSeverity(p.Reason), Object: s.about, Field: p.Field, Text: p.Field + ": " + p.Note, Remedy: p.Remedy}
	if p.Reason == store.AddressConflict || p.Reason == store.RangeConflict {
		f.Holders = s.holders()
	}
	return f
}

// maxHolders is the number of Services that a finding names as holders.
const maxHolders = 4

// holders names some of the Services that hold what the Service has lost.
func (s *subject) holders() (names []string) {
	for _, l := range s.why.Lost {
		if name := l.Holder.String(); l.Holder != s.name() && !slices.Contains(names, name) && len(names) < maxHolders {
			names = append(names, name)
		}
	}
	return names
}

func problemSeverity(r store.Reason) Severity {
	switch r {
	case store.ServiceTooLarge, store.NamespaceFull, store.NodeFull:
		return Fault
	}
	return Warning
}

// noRoom returns the problem of a Service that has more entries than there is room for.
func (s *subject) noRoom() *Finding {
	for i := range s.why.Problems {
		if f := s.problem(&s.why.Problems[i]); f.Severity == Fault {
			return &f
		}
	}
	return &Finding{Reason: Reason(store.ServiceTooLarge), Severity: Fault, Object: s.about,
		Text: "the Service has more endpoints and frontends than it may have", Remedy: "split the Service"}
}

// hints remarks on a Service that asks for close endpoints while nothing has made hints.
func (s *subject) hints() {
	wish, has := s.facts.service(s.name())
	if !has || wish.Prefers == "" {
		return
	}
	endpoints := 0
	for i := range s.why.Ports {
		p := &s.why.Ports[i]
		for j := range p.Endpoints {
			e := &p.Endpoints[j]
			if !e.Endpoint.Ready {
				continue
			}
			if endpoints++; len(e.Endpoint.ZoneHints)+len(e.Endpoint.NodeHints) > 0 {
				return
			}
		}
	}
	if endpoints > 0 {
		s.add(Finding{Reason: NoHints, Severity: Remark, Field: wish.PrefersField, Text: fmt.Sprintf("%s has no effect: no endpoint of the Service has hints", wish.Prefers),
			Remedy: "check that the nodes have zones (topology.kubernetes.io/zone) and that the EndpointSlice controller writes hints"})
	}
}

// sourceRanges warns of a family that the load balancer has and its source ranges have not: all its clients are dropped.
func (s *subject) sourceRanges() {
	o := s.why.Object
	if len(o.SourceRanges) == 0 || s.why.NotRouted != "" {
		return
	}
	for _, family := range []state.Family{state.IPv4, state.IPv6} {
		has := slices.ContainsFunc(o.LoadBalancerIPs, func(a netip.Addr) bool { return state.FamilyOf(a) == family })
		allows := slices.ContainsFunc(o.SourceRanges, func(p netip.Prefix) bool { return state.FamilyOf(p.Addr()) == family })
		if has && !allows {
			s.add(Finding{Reason: SourceRangesOfOneFamily, Severity: Warning, Field: "spec.loadBalancerSourceRanges",
				Text:   fmt.Sprintf("the load balancer drops all %v clients: spec.loadBalancerSourceRanges has no %v range", family, family),
				Remedy: fmt.Sprintf("add the %v ranges of the clients, or ::/0 or 0.0.0.0/0 for all of them", family)})
		}
	}
}

// nodeAddress remarks on a cluster IP that is also an address of the node.
func (s *subject) nodeAddress(local []netip.Addr) {
	for _, ip := range s.why.Object.ClusterIPs {
		if slices.Contains(local, ip) {
			s.add(Finding{Reason: ClusterIPOfNode, Severity: Remark, Field: "spec.clusterIP", Text: fmt.Sprintf("the cluster IP %v is also an address of this node", ip),
				Cause:  "a program such as a node-local DNS cache may answer there, and its connections do not pass the service proxy",
				Remedy: "look at the programs that listen on the address of this node: ss -lntup"})
		}
	}
}

// externalName warns of an alias for an address, which no DNS server resolves.
func (s *subject) externalName() {
	if s.why.NotRouted != brain.ExternalName {
		return
	}
	if _, err := netip.ParseAddr(s.why.Object.ExternalName); err == nil {
		s.add(Finding{Reason: AddressAsName, Severity: Fault, Field: "spec.externalName", Text: fmt.Sprintf("externalName %s is an IP address, and DNS takes it for a name", s.why.Object.ExternalName),
			Remedy: "use a host name, or a Service without a selector and an EndpointSlice with the address"})
	}
}
