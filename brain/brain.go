// Package brain turns a Service and its EndpointSlices into the finished record for one node.
//
// It is pure: no I/O, no clock, no log, no state. The rules are Kubernetes' own, as implemented by kube-proxy (k8s.io/kubernetes
// pkg/proxy); each function names the rule that it implements.
package brain

import (
	"net/netip"
	"slices"
	"time"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// Config has the operator's decisions about routing on this node.
type Config struct {
	// NodeName is this node's name. Required.
	NodeName string
	// ServiceProxyName makes this instance handle exactly the services whose label
	// service.kubernetes.io/service-proxy-name has this value. Empty: the services without that label.
	ServiceProxyName string
	// LocalDetector is how dataplanes distinguish pods from other clients. Records go by it, and it is a part of the node ([state.Node]), so
	// that both sides agree. The zero value takes no client for a pod.
	LocalDetector state.LocalDetector
	// NodePorts are the addresses on which dataplanes serve NodePorts: a part of the node, likewise. The zero value stands for all but
	// loopback ones.
	NodePorts state.NodePortAddresses
	// MasqueradeAll masquerades all connections to cluster IPs.
	MasqueradeAll bool
	// ExternalIPs are the ranges that externalIPs of services may be in. Empty: they may be any address. See [AdmitExternalIPs].
	ExternalIPs []netip.Prefix
	// NodeExternalIPs allows externalIPs that are addresses of nodes.
	NodeExternalIPs bool
	// IgnoreExternalIPs routes no externalIP at all: the feature gate AllowServiceExternalIPs (KEP-5707) is false.
	IgnoreExternalIPs bool
	// MaxEntries is how many entries one service may have; see [MaxEntries], which is the most and what 0 stands for.
	MaxEntries int64
	// MaxFrontends is how many frontends one service may have. 0: as many as MaxEntries has room for. A dataplane is slower with a change of
	// frontends than with one of endpoints, and the store arbitrates each of them.
	MaxFrontends int64
	// TCPLingers also puts the lingering endpoints of TCP ports into records, for a dataplane that resets connections
	// to removed endpoints. It costs a change of the record for each endpoint that stops serving after it has left the
	// routes.
	TCPLingers bool
	// Ping makes the node answer echo requests to the addresses of Services without the annotation switchyard.net/ping.
	Ping bool
	// AcceptAnnotationsOf are some of the [AnnotationDomains], whose annotations count where ours are absent. Of several, the first one counts.
	AcceptAnnotationsOf []string
	// NoRanges are addresses that get no ranges of ports. See [RefuseRanges].
	NoRanges []netip.Addr
	// Young are the endpoints that slow start concerns, sorted by address. They count for services with the annotation only. [SlowStartOf] has its
	// length.
	Young []Young
	// NodeHealth is when the endpoints on a Node come last. Package store applies it to all endpoints; [Compute] goes by their field NodeUnready.
	NodeHealth NodeHealth
	// Ejection takes new connections from TCP endpoints that do not answer, of services without the annotation switchyard.net/eject.
	Ejection bool
	// Edge is which connections from outside nodes hand over to each other. Package store says for each endpoint whether its Node takes part.
	Edge Edge
}

// Equal reports whether two configurations are the same in every field.
func (c *Config) Equal(o *Config) bool {
	return c.NodeName == o.NodeName && c.ServiceProxyName == o.ServiceProxyName && c.LocalDetector.Equal(o.LocalDetector) &&
		c.NodePorts.Equal(o.NodePorts) && c.MasqueradeAll == o.MasqueradeAll && slices.Equal(c.ExternalIPs, o.ExternalIPs) && c.NodeExternalIPs == o.NodeExternalIPs &&
		c.IgnoreExternalIPs == o.IgnoreExternalIPs && c.MaxEntries == o.MaxEntries && c.MaxFrontends == o.MaxFrontends && c.TCPLingers == o.TCPLingers &&
		c.Ping == o.Ping && c.Ejection == o.Ejection && slices.Equal(c.AcceptAnnotationsOf, o.AcceptAnnotationsOf) && slices.Equal(c.NoRanges, o.NoRanges) &&
		slices.Equal(c.Young, o.Young) && c.NodeHealth == o.NodeHealth && c.Edge == o.Edge
}

// Families is a set of IP families.
type Families struct{ IPv4, IPv6 bool }

// Has reports whether a family is in the set.
func (f Families) Has(family state.Family) bool {
	return family == state.IPv4 && f.IPv4 || family == state.IPv6 && f.IPv6
}

// Compute returns the record of svc on this node, or nil if this instance does not route the service. node is this
// node's object, nil if there is none. slices are all EndpointSlices in the service's namespace whose ServiceName is
// svc's, in any order. The arguments are not modified. The record shares no memory that anyone modifies.
//
// A nil svc and nil slices count as absent. Compute ignores single items that Kubernetes' API server would not admit:
// unknown protocols, ports 0, addresses without a family. The rest of the service still works. A service with nothing
// left to route is not routed. [SizeOf] returns the parts that are left out of a record that would be too large.
func Compute(cfg *Config, node *model.Node, svc *model.Service, slices []*model.EndpointSlice) *state.Service {
	return computeOn(cfg, node, svc, slices, nil)
}

// computeOn is Compute, with its reasons in why, unless that is nil.
func computeOn(cfg *Config, node *model.Node, svc *model.Service, slices []*model.EndpointSlice, why *Explanation) *state.Service {
	if svc == nil {
		why.notRouted(NoService)
		return nil
	}
	return compute(cfg, locate(cfg, node), admitted(svc, node), svc, slices, why)
}

// compute is Compute for a node that is here, and whose addresses the source ranges of svc contain in the families admitted. It notes
// its reasons in why, unless that is nil.
func compute(cfg *Config, here location, admitted Families, svc *model.Service, from []*model.EndpointSlice, why *Explanation) *state.Service {
	if reason := skips(cfg, svc); reason != "" {
		why.notRouted(reason)
		return nil
	}
	b := newBudget(cfg)
	// Constants keep these off the heap; few services have more.
	scratch, parts := make(candidates, 0, 16), make([]part, 0, 4)
	settings := SettingsOf(cfg, svc)
	claims, addresses := claimsOf(make([]claim, 0, 8), make([]state.Frontend, 0, 4), cfg, svc, &settings, admitted, &b, why)
	if len(claims) == 0 {
		why.notRouted(NothingToRoute)
		return nil
	}
	why.settings(settings)
	sh := settings.shares(cfg)
	here.weighs, b.weighted = sh.zones != ZoneWeights{}, settings.multiplies()
	ports := frame(cfg, claims, &addresses)
	supply := newSupply(cfg, from, len(svc.Ports))
	var joins [2]joiner // by family
	health, edges := newHealth(svc), newEdges(cfg, &settings)
	for i := range ports {
		p, settings := &ports[i], &settings
		if claims[i].last != 0 {
			r := settings.forRanges()
			settings = &r
		}
		// Kubernetes and the record both count the timeout in whole seconds.
		p.Affinity = max(svc.Affinity.Truncate(time.Second), 0)
		if p.Affinity == 0 { // which wins
			p.Balance = settings.Balance
		}
		if p.Protocol == state.TCP { // only its connections can be reset, and only its endpoints have to answer
			p.DrainSeconds, p.Ejection = settings.DrainSeconds, settings.Eject.or(cfg.Ejection)
		}
		parts = supply.forClaim(parts[:0], &claims[i])
		scratch = scratch[:0]
		fits := b.endpoints(&claims[i], parts)
		if fits {
			scratch = joins[indexOf(p.Family)].join(scratch, here, p.Family, parts)
		}
		active := scratch.active()
		chosen := setTraffic(p, cfg, svc, scratch, active, sh)
		health.count(active)
		apart, node := edges.set(p, here, parts, active, sh, chosen)
		if why != nil {
			why.port(&claims[i], fits, here, &supply, parts, scratch, active, sh, chosen, apart, node)
		}
	}
	sortPorts(ports)
	return &state.Service{Name: svc.Name, Ports: ports, HealthCheck: health.check()}
}
