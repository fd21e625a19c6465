package node

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"runtime"
	"time"

	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/internal/kernel/ctusage"
	"github.com/switchyard-net/switchyard/internal/ops/healthz"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// newHealth returns the health of the node, without the health of health check node ports.
func (n *Node) newHealth() *healthz.Health {
	o := healthz.Options{OnHealthz: n.registry.Healthz, OnLivez: n.registry.Livez}
	if n.dataplane != nil {
		o.Families, o.Timeout, o.Newest = families, healthTimeout(n.config.Load()), n.newest
	}
	h := healthz.New(o)
	h.SetNode(healthz.Node{Exists: true})
	add := h.AddProblems
	if n.o.StrictHealth {
		add = h.AddFaults
	}
	if n.o.States != nil {
		h.AddProblems("api", n.sourceProblems)
		h.AddProblems("settings", func() []error { return n.pipeline.Load().problems() })
	} else {
		add("source", n.sourceProblems)
		h.AddProblems("objects", func() []error { return n.pipeline.Load().problems() })
		h.AddProblems("nodes", n.nodeProblems)
	}
	if n.dataplane == nil {
		h.AddFaults("state", n.missingState)
		h.AddProblems("dataplanes", n.followers.problems)
		return h
	}
	add("dataplane", n.status.faults)
	add("tables", n.status.drift)
	h.AddProblems("services", n.status.problems)
	h.AddProblems("edge", n.edgeProblems)
	h.AddProblems("conntrack", func() []error {
		if err := ctusage.Problem(); err != nil {
			return []error{err}
		}
		return nil
	})
	for _, d := range dataplanes(runtime.GOOS) {
		if d.part != "" {
			h.AddProblems(d.part, func() []error { return n.problemsIn(d.metrics) })
		}
	}
	h.AddProblems("services", func() []error { return n.problemsIn(customMode) })
	return h
}

// missingState is the fault of a node that has nothing to serve.
func (n *Node) missingState() []error {
	select {
	case <-n.pipeline.Load().ready:
		return nil
	default:
		return []error{errors.New("there is no state to serve yet: not all objects of the cluster are known")}
	}
}

// healthTimeout is how long an update may wait until the node is unhealthy.
func healthTimeout(c *config.Config) time.Duration { return 2 * c.SyncPeriod.Duration }

func (n *Node) newest() state.Revision {
	newest, _ := n.pipeline.Load().latest()
	return newest
}

// addServers adds what answers for the health, and to operators.
func (n *Node) addServers() {
	n.healthServer = httpserver.NewServer(n.healthHandler(), httpserver.Options{
		Name: "health", Flag: n.fieldName("healthzBindAddress"), Logger: n.log,
		Connections: n.healthConnections.pool("health", n.files.health, n.files.healthOwn, n.log),
	})
	n.operatorServer = httpserver.NewServer(n.operatorHandler(), httpserver.Options{
		Name: "metrics", Flag: n.fieldName("metricsBindAddress"), Logger: n.log,
		Connections: n.operatorConnections.pool("metrics", n.files.metrics, n.files.metricsOwn, n.log),
	})
	var ctx context.Context
	ctx, n.endUI = context.WithCancel(context.Background())
	page := ui.Handler(ctx, adminSource{n})
	if n.fleet != nil {
		page = ui.RelayHandler(ctx, relaySource{n})
	}
	n.uiServer = httpserver.NewServer(page, httpserver.Options{
		Name: "the page", Flag: n.fieldName("uiBindAddress"), Logger: n.log,
		Connections: n.uiConnections.pool("page", n.files.ui, n.files.ui, n.log),
	})
	n.serveOn(n.config.Load())
}

// serveOn moves health, metrics and the page to where c has them. A page that cannot be served never ends the process: it routes as well without.
func (n *Node) serveOn(c *config.Config) {
	text := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	n.healthServer.SetAddress(text(c.HealthzBindAddress), c.BindAddressHardFail)
	n.operatorServer.SetAddress(text(c.MetricsBindAddress), c.BindAddressHardFail)
	if n.pipeline.Load().store != nil || n.fleet != nil {
		n.uiServer.SetAddress(text(c.UIBindAddress), false)
	}
}

// nodeHealth is what the pipeline knows about the health of Nodes.
func (n *Node) nodeHealth() metrics.NodeHealth {
	h := n.pipeline.Load().nodeHealth()
	if !h.Enabled {
		return metrics.NodeHealth{}
	}
	return metrics.NodeHealth{NotReady: h.NotReady, Last: len(h.Last), Ignored: h.Ignored}
}

// newRegistry returns the metrics of the process. They are not asked for before there is a pipeline.
func (n *Node) newRegistry() *metrics.Registry {
	o := metrics.Options{
		Mode: n.proxyMode(), Families: families, Version: n.o.Version,
		SourceProblems:     func() int { return len(n.sourceProblems()) },
		NodeProblems:       n.countNodeProblems,
		NodeHealth:         n.nodeHealth,
		LogLinesSuppressed: n.o.LogLinesSuppressed,
		Connections:        map[string]metrics.Connections{"health": n.healthConnections.count, "metrics": n.operatorConnections.count, "page": n.uiConnections.count},
		LimitedServices:    n.limitedServices,
		BadAnnotations:     func() int { return n.pipeline.Load().limited()[store.AnnotationIgnored] },
		Others:             n.o.Metrics,
	}
	if n.o.Role != Relay {
		o.Services = func() int {
			_, services := n.pipeline.Load().latest()
			return services
		}
	}
	if n.o.Role == Proxy {
		o.Traffic = n.serviceTraffic
		o.DegradedServices = n.degraded.byName
	}
	n.addMetrics(&o)
	o.AffinityClients, o.Relayed, o.IPTablesInvalidDropped = n.affinityClients, n.relayed, n.droppedInvalid
	o.SocketHooks = func() metrics.SocketHooks {
		if hooks, ok := n.inUse().(hooked); ok {
			return hooks.measured()
		}
		return metrics.SocketHooks{}
	}
	o.Edge = n.edge
	o.LocalNodePorts = func() (p metrics.LocalNodePorts) {
		if s, ok := n.dataplane.(*switchable); ok {
			p.Listeners, p.Failures = s.local.amounts()
			p.Rejects = s.localRejects()
		}
		return p
	}
	if n.answersPorts() {
		o.HealthCheckProblems = func() int { return len(n.ports.Problems()) }
		o.Connections["health-check-node-ports"] = n.portConnections.count
	}
	return metrics.New(o)
}

// limitedServices counts the services that are not routed in full, by reason.
func (n *Node) limitedServices() map[string]int {
	counts := map[string]int{}
	limited := n.pipeline.Load().limited()
	for _, reason := range store.Reasons() {
		if reason == store.AnnotationIgnored {
			continue // such a Service is served in full, and has a metric of its own
		}
		counts[string(reason)] = limited[reason]
	}
	return counts
}

// healthHandler answers with what the source knows of this node by then.
func (n *Node) healthHandler() http.Handler {
	h := n.health.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s, ok := n.pipeline.Load().source.(model.WithEligibility); ok {
			n.health.SetNode(healthz.Node{Exists: s.NodeEligible()})
		}
		h.ServeHTTP(w, r)
	})
}

func (n *Node) operatorHandler() http.Handler {
	return healthz.Operator(healthz.OperatorOptions{
		Metrics: n.registry.Handler(), ProxyMode: n.proxyMode, Version: n.o.Version,
		Profiling: func() bool { return n.config.Load().EnableProfiling },
		Config:    func() any { return v1alpha2.From(n.config.Load()) },
		Flags:     n.o.Flags,
	})
}
