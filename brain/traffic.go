package brain

import (
	"slices"

	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
)

// setTraffic sets the routes of connections to the frontends of p, by the traffic policies of svc. Equal routes share
// the memory of their endpoints.
//
// externalTrafficPolicy only counts if p is reachable from outside the cluster. With policy Local, clients inside the
// cluster still reach all endpoints: pods with their own address, the node masqueraded. (The "short circuit" of
// pkg/proxy/nftables and iptables proxier.go; pkg/proxy/serviceport.go, UsesClusterEndpoints.)
//
// Routes choose among eps, the endpoints of all that may get new connections, and sh multiplies their weights. It returns the policies by which it chose.
func setTraffic(p *state.Port, cfg *Config, svc *model.Service, all, eps candidates, sh shares) (by choice) {
	// Frontends are ordered by kind, and ClusterIP is the first kind.
	internal := p.Frontends[0].Kind == state.ClusterIP
	external := p.Frontends[len(p.Frontends)-1].Kind != state.ClusterIP

	var cluster, local state.Route
	if internal && !svc.InternalLocal || external {
		cluster, by.cluster = clusterRoute(eps, sh)
		by.clusterTo = cluster.Endpoints
	}
	if internal && svc.InternalLocal || external && svc.ExternalLocal {
		local, by.local = localRoute(eps, sh)
		by.localTo = local.Endpoints
	}
	if internal {
		to := cluster
		by.internal = PolicyCluster
		if svc.InternalLocal {
			to, by.internal = local, PolicyLocal
		}
		p.Internal = state.Traffic{Inside: to, Outside: to, Masquerade: internalMasquerade(cfg, p.Family)}
	}
	if external {
		// Replies must pass this node again, wherever the endpoint is.
		p.External, by.external = state.Traffic{Inside: cluster, Outside: cluster, Masquerade: state.MasqueradeAlways}, PolicyCluster
		if svc.ExternalLocal {
			// Local endpoints see the client's address, and reply through this node in any case.
			p.External, by.external = state.Traffic{Inside: cluster, Outside: local, Masquerade: state.MasqueradeNode}, PolicyLocal
		}
	}
	if p.Protocol == state.UDP || p.Protocol == state.TCP && (cfg.TCPLingers || p.DrainSeconds > 0) {
		p.Lingering = lingering(all, cluster.Endpoints, local.Endpoints)
	}
	return by
}

// choice has the policies that chose the routes of a port, and the endpoints that each policy selects, in its order. The zero
// selection belongs to a policy that is not in use.
type choice struct {
	internal, external Policy
	cluster, local     selection
	clusterTo, localTo []state.Endpoint
}

// clusterRoute is the route of traffic policy Cluster. Without endpoints, connections are rejected.
func clusterRoute(eps candidates, sh shares) (state.Route, selection) {
	to, by := eps.cluster(sh)
	return routeTo(to, state.Reject), by
}

// localRoute is the route of traffic policy Local. If all endpoints are on other nodes, connections are dropped. A load
// balancer may send connections here until its health check fails, and clients then retry (pkg/proxy/nftables and
// iptables proxier.go).
func localRoute(eps candidates, sh shares) (state.Route, selection) {
	to, by := eps.local(sh)
	if eps.exist() {
		return routeTo(to, state.Drop), by
	}
	return state.Route{Verdict: state.Reject}, by
}

// routeTo forwards to eps, or gives the verdict otherwise if there are none.
func routeTo(eps []state.Endpoint, otherwise state.Verdict) state.Route {
	if len(eps) == 0 {
		return state.Route{Verdict: otherwise}
	}
	return state.Route{Verdict: state.Forward, Endpoints: eps}
}

// internalMasquerade describes which connections to cluster IPs are masqueraded: all of them if the operator wants it.
// Otherwise, the connections that enter the cluster here, which only a node with a local-traffic detector can see
// (pkg/proxy/nftables/proxier.go, masqueradeAll and localDetector).
func internalMasquerade(cfg *Config, family state.Family) state.Masquerade {
	switch {
	case cfg.MasqueradeAll:
		return state.MasqueradeAlways
	case cfg.LocalDetector.Detects(family):
		return state.MasqueradeUnlessPod
	}
	return state.MasqueradeNever
}

// lingering returns the serving endpoints that are in no route of the port. Flows to them continue
// (pkg/proxy/conntrack/cleanup.go keeps UDP flows to serving endpoints). These endpoints terminate, or policies and
// hints send new connections elsewhere, or their weight is 0.
func lingering(eps candidates, routes ...[]state.Endpoint) []state.Endpoint {
	var out []state.Endpoint
	for _, e := range eps {
		routed := slices.ContainsFunc(routes, func(to []state.Endpoint) bool {
			_, found := slices.BinarySearchFunc(to, e.endpoint(), state.Endpoint.Compare)
			return found
		})
		if e.is&serving != 0 && !routed {
			e.weight = 0 // which is the routes'
			out = append(out, e.endpoint())
		}
	}
	return out
}
