package store

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// NamespaceOptedOut: the namespace of the Service has opted out of the service proxy, by its label. Package brain has
// the other reasons.
const NamespaceOptedOut brain.Reason = "NamespaceOptedOut"

// Explanation is why a Service is routed on this node as it is. It covers the brain's rules for one service and the
// store's rules among services.
type Explanation struct {
	// Explanation is the brain's. Its Record has all claims of the Service, without the claims that are refused for the
	// sake of other services.
	brain.Explanation
	// Object is the Service's, nil if there is none.
	Object *model.Service
	// LastKnown reports whether the endpoints are those that the Service had last, because it has none now: as for default/kubernetes.
	LastKnown bool
	// Refusals are the externalIPs that are not routed.
	Refusals []brain.Refusal
	// Lost are the frontends that other Services hold, and the health check node port, once for each family. That may be lost to a nodePort of the
	// Service itself.
	Lost []Loss
	// Problems are the published problems of the Service.
	Problems []Problem
	// NodeHealth is the health of Nodes, and UnreadyNodes are the Nodes with endpoints of the Service that come last, by name.
	NodeHealth   NodeHealth
	UnreadyNodes map[string]NodeCondition
	// Published is the record without the frontends that are lost, nil if nothing is left.
	Published *state.Service
}

// Loss is what another Service holds: a frontend, or a node port that is wanted for health checks, of kind [HealthCheckPort].
type Loss struct {
	Frontend state.FrontendKey
	Kind     state.FrontendKind
	Holder   state.ServiceName
}

// Explain returns why a Service is routed as it is. It is computed as the record is, from the objects that have been delivered so far.
func (s *Store) Explain(name state.ServiceName) *Explanation {
	e, node, in := s.toExplain(name)
	if in.brain == nil {
		return e
	}
	reason := e.NotRouted
	// Without the lock: a large Service takes long, and changes must not wait for it.
	e.Explanation = *brain.Explain(in.brain, node, in.object, in.slices)
	if reason != "" {
		e.NotRouted = reason
	}
	return e
}

// toExplain returns the inputs for the explanation of a Service. It adds the reason if the store, before the brain,
// decides that the Service is not routed. The inputs do not change afterwards. They are empty if the Service does not
// exist.
func (s *Store) toExplain(name state.ServiceName) (e *Explanation, node *model.Node, in inputs) {
	s.mu.Lock()
	defer s.mu.Unlock()
	svc := s.objects.servicesOf(name.Namespace)[name.Name]
	if svc == nil {
		return &Explanation{Explanation: brain.Explanation{NotRouted: brain.NoService}}, nil, in
	}
	in = s.granted(svc)
	in.brain, in.slices = new(*in.brain), slices.Clone(in.slices)
	e = &Explanation{
		Object: svc.object, Refusals: in.refusals, LastKnown: name == apiServerName && s.apiServer.inUse, Problems: s.problems.ofService(name),
		NodeHealth: s.NodeHealth(), UnreadyNodes: s.objects.health.unreadyOf(in.slices),
	}
	switch {
	case svc.object == nil || in.object != nil:
	case s.objects.disabled(name.Namespace):
		e.NotRouted = NamespaceOptedOut
	default:
		e.NotRouted = brain.NoRoom
	}
	record, lost := s.arbiter.award(svc, svc.computed)
	e.Published = record
	for _, l := range lost {
		e.Lost = append(e.Lost, Loss{l.claim, l.kind, l.holder.name})
	}
	return e, s.objects.nodes[s.brain.NodeName], in
}

// Claimants returns the Services, ordered by name, whose objects name an address, routed or not. If the node port is
// not 0, it also returns the Services that name the node port, including for health checks. It examines all Services.
func (s *Store) Claimants(addr netip.Addr, nodePort uint16) []state.ServiceName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []state.ServiceName
	for _, ns := range s.objects.namespaces {
		for _, svc := range ns.services {
			if o := svc.object; o != nil && (namesAddr(o, addr) || nodePort != 0 && hasNodePort(o, nodePort)) {
				names = append(names, svc.name)
			}
		}
	}
	slices.SortFunc(names, state.ServiceName.Compare)
	return names
}

// ServiceNames returns the names of all Services that have been delivered, in order.
func (s *Store) ServiceNames() []state.ServiceName {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []state.ServiceName
	for _, ns := range s.objects.namespaces {
		for _, svc := range ns.services {
			if svc.object != nil {
				names = append(names, svc.name)
			}
		}
	}
	slices.SortFunc(names, state.ServiceName.Compare)
	return names
}

// Nodes returns the Nodes that count, ordered by name: the store's own Node, if it has been delivered.
func (s *Store) Nodes() []*model.Node {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Values(s.objects.nodes), func(a, b *model.Node) int { return cmp.Compare(a.Name, b.Name) })
}

func namesAddr(o *model.Service, addr netip.Addr) bool {
	return slices.Contains(o.ClusterIPs, addr) || slices.Contains(o.ExternalIPs, addr) || slices.Contains(o.LoadBalancerIPs, addr)
}

func hasNodePort(o *model.Service, port uint16) bool {
	return o.HealthCheckNodePort == port || slices.ContainsFunc(o.Ports, func(p model.ServicePort) bool { return p.NodePort == port })
}
