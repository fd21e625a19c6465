package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/time/rate"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/ops/healthz"
	"github.com/switchyard-net/switchyard/ops/metrics"
	"github.com/switchyard-net/switchyard/ops/servicehealth"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

var families = []state.Family{state.IPv4, state.IPv6}

// serveProxy runs the daemon until ctx ends.
func serveProxy(ctx context.Context, p *proxyFlags, c *config.Config, log *slog.Logger, v *verbosity) error {
	if err := checkMode(c.Mode, log); err != nil {
		return err
	}
	warnWithoutEffect(c, log)
	d, err := newDaemon(ctx, p, c, log, v)
	if err != nil {
		return err
	}
	setUpNode(c, log) // not before it is certain that there is something to run
	return d.run(ctx)
}

// daemon is the process.
type daemon struct {
	flags     *proxyFlags
	log       *slog.Logger
	verbosity *verbosity
	// config is in use. It is never modified, but replaced, by the goroutine of followConfig.
	config atomic.Pointer[config.Config]
	line   atomic.Pointer[line] // likewise
	// backend is the dataplane of all lines, one after the other: the kernel keeps others from its tables while it is open.
	backend *nftables.Backend

	files                        shares
	registry                     *metrics.Registry
	health                       *healthz.Health
	ports                        *healthPorts
	dataplane                    dataplaneStatus
	healthServer, operatorServer *httpserver.Server
	// The connections of the three.
	healthConnections, operatorConnections, portConnections connections

	fail       func(error)   // ends the process; set by run
	programmed chan struct{} // closed once the first state is programmed
	once       sync.Once
	events     chan kube.Event
	// problemEvents limits events about problems of services.
	problemEvents *rate.Limiter
}

func newDaemon(ctx context.Context, p *proxyFlags, c *config.Config, log *slog.Logger, v *verbosity) (*daemon, error) {
	d := &daemon{
		flags: p, log: log, verbosity: v,
		programmed: make(chan struct{}), events: make(chan kube.Event, maxEvents), files: openShares(log),
		problemEvents: rate.NewLimiter(rate.Every(problemEventPause), problemEventBurst),
	}
	d.config.Store(c)
	d.registry = d.newRegistry()
	o, err := d.origin(c)
	if err != nil {
		return nil, err
	}
	l, err := d.newLine(c, o)
	if err != nil {
		return nil, err
	}
	d.line.Store(l)
	// Before anything is served: a predecessor that is still running uses the same ports.
	if d.backend, err = nftables.New(ctx, d.options(c)); err != nil {
		l.store.Close()
		return nil, explainStart(err)
	}
	d.health = healthz.New(healthz.Options{
		Families: families, Timeout: healthTimeout(c), Newest: d.newest,
		OnHealthz: d.registry.Healthz, OnLivez: d.registry.Livez,
	})
	d.health.AddProblems("source", func() []error { return d.line.Load().source.Problems() })
	onProblem := func(p servicehealth.Problem) {
		d.tell(kube.Event{Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, Warning: true,
			Reason: "FailedToStartServiceHealthcheck", Action: "Listen", Note: p.Error()})
	}
	d.ports, err = newHealthPorts(servicehealth.Options{
		Logger: log, Healthy: d.health.Healthy, OnProblem: onProblem,
		OpenConnections: &d.portConnections.open, ClosedConnections: &d.portConnections.closed,
	}, d.files, func() backend.NodePortAddresses { return d.config.Load().NodePorts() })
	if err != nil {
		l.store.Close()
		return nil, errors.Join(err, d.backend.Close())
	}
	d.health.AddProblems("objects", func() []error { return d.line.Load().store.Problems() })
	d.health.AddProblems("dataplane", d.dataplane.faults)
	d.health.AddProblems("tables", d.backend.Faults)
	d.health.AddProblems("services", d.dataplane.problems)
	d.health.AddProblems("healthCheckNodePorts", d.ports.problems)
	d.healthServer = httpserver.NewServer(d.healthHandler(), httpserver.Options{
		Name: "health", Flag: "healthzBindAddress", Logger: log,
		Connections: d.healthConnections.pool("health", d.files.health, d.files.healthOwn, log),
	})
	d.operatorServer = httpserver.NewServer(d.operatorHandler(), httpserver.Options{
		Name: "metrics", Flag: "metricsBindAddress", Logger: log,
		Connections: d.operatorConnections.pool("metrics", d.files.metrics, d.files.metricsOwn, log),
	})
	d.serveOn(c)
	return d, nil
}

// healthTimeout is how long an update may wait until the process is unhealthy.
func healthTimeout(c *config.Config) time.Duration { return 2 * c.SyncPeriod.Duration }

// serveOn says where health and metrics are served.
func (d *daemon) serveOn(c *config.Config) {
	text := func(a netip.AddrPort) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	d.healthServer.SetAddress(text(c.HealthzBindAddress), c.BindAddressHardFail)
	d.operatorServer.SetAddress(text(c.MetricsBindAddress), c.BindAddressHardFail)
}

// newRegistry returns the metrics of the process. They are not asked for before there is a line.
func (d *daemon) newRegistry() *metrics.Registry {
	registry := metrics.New(metrics.Options{
		Mode: metrics.ModeNFTables, Families: families, Version: currentVersion(),
		Services:            func() int { return d.line.Load().store.Snapshot().Len() },
		SourceProblems:      func() int { return len(d.line.Load().source.Problems()) },
		HealthCheckProblems: func() int { return len(d.ports.Problems()) },
		LogLinesSuppressed:  d.verbosity.limiter.Suppressed,
		Connections: map[string]metrics.Connections{
			"health": d.healthConnections.count, "metrics": d.operatorConnections.count, "health-check-node-ports": d.portConnections.count,
		},
		LimitedServices: d.limitedServices,
	})
	requests := registry.RESTClient()
	kube.ObserveRequests(kube.RequestMetrics{
		RequestLatency: requests.RequestLatency, RateLimiterLatency: requests.RateLimiterLatency,
		RequestSize: requests.RequestSize, ResponseSize: requests.ResponseSize,
		RequestResult: requests.RequestResult, RequestRetry: requests.RequestRetry,
		TransportCreateCalls: requests.TransportCreateCalls, TransportCAReloads: requests.TransportCAReloads,
	})
	return registry
}

func (d *daemon) newest() state.Revision { return d.line.Load().store.Snapshot().Revision() }

// run runs the daemon until ctx ends.
func (d *daemon) run(ctx context.Context) error {
	g := newGroup(ctx)
	d.fail = g.fail
	for _, part := range []func(context.Context) error{
		d.ports.Run, d.report, d.removeLeftovers, d.trimLater, d.healthServer.Run, d.operatorServer.Run,
	} {
		g.start(part)
	}
	d.line.Load().start(g, d, d.config.Load())
	g.start(func(ctx context.Context) error { return d.followConfig(ctx, g) })
	return errors.Join(g.wait(), d.backend.Close())
}

// nodeIPFault takes down that the node does not have the addresses that it must have. That ends the process before it routes
// anything, if configHardFail says so; later, the routes are worth more.
func (d *daemon) nodeIPFault(err error) {
	select {
	case <-d.programmed:
	default:
		if d.config.Load().ConfigHardFail {
			d.fail(err)
			return
		}
	}
	d.log.Warn("the node does not have the addresses that it must have", "error", err)
}

// attempted takes down a call of the dataplane.
func (d *daemon) attempted(a backend.Attempt) {
	d.registry.Attempt(a)
	d.ports.attempted(a)
}

func (d *daemon) status(s backend.Status) {
	d.registry.Status(s)
	d.health.Status(s)
	d.dataplane.set(s)
	if s.Applied > 0 {
		d.once.Do(func() {
			resident.Trim() // reading everything for the first time took far more than keeping it takes
			l := d.line.Load()
			d.tell(kube.Event{Kind: "Node", Name: l.name, Reason: "Starting", Action: "StartKubeProxy"})
			d.log.Info("the first state is programmed", "services", l.store.Snapshot().Len()-len(s.Failed))
			close(d.programmed)
		})
	}
}

// limitedServices counts the services of which a part is not routed, by reason.
func (d *daemon) limitedServices() map[string]int {
	counts := map[string]int{}
	limited := d.line.Load().store.Limited()
	for _, reason := range store.Reasons() {
		counts[string(reason)] = limited[reason]
	}
	return counts
}

// Events about services go to the API server at this rate at most: anyone may cause any number of problems, and requests for what is to be
// routed must not wait.
const (
	problemEventPause = 10 * time.Second
	problemEventBurst = 20
)

// reportProblem reports a problem of a service as an event, if this is the node to do so.
func (d *daemon) reportProblem(p store.Problem) {
	if p.Here && d.problemEvents.Allow() {
		d.tell(kube.Event{Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, Warning: true,
			Reason: string(p.Reason), Action: "Route", Note: p.Error()})
	}
}

// maxEvents is how many events may wait to be reported. More than that are only logged where they occur.
const maxEvents = 100

// tell reports an event soon.
func (d *daemon) tell(e kube.Event) {
	select {
	case d.events <- e:
	default:
	}
}

// report sends events to the API server, one after the other.
func (d *daemon) report(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-d.events:
			if err := d.line.Load().source.Report(ctx, e); err != nil && ctx.Err() == nil {
				d.log.Debug("an event could not be reported", "error", err)
			}
		}
	}
}

// settled is how long after the first state the work is over that follows it: leftovers, events and flows.
const settled = 3 * time.Second

// trimLater gives back what that work needed. The first state alone is not the end of the start.
func (d *daemon) trimLater(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.programmed:
	}
	select {
	case <-ctx.Done():
	case <-time.After(settled):
		resident.Trim()
	}
	return nil
}

// removeLeftovers removes what kube-proxy has left in the kernel, once it is not needed any more.
func (d *daemon) removeLeftovers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.programmed:
	}
	items, err := leftovers.Remove(ctx)
	for _, item := range items {
		d.log.Info("removed what kube-proxy had left", "what", item.String())
	}
	if err != nil && ctx.Err() == nil {
		d.log.Warn("rules of kube-proxy may be left in the kernel", "error", err,
			"remedy", "run kube-proxy --cleanup of its old version, or see docs/migrate-from-kube-proxy.md")
	}
	return nil
}

// healthHandler answers with what the source knows of this node by then.
func (d *daemon) healthHandler() http.Handler {
	h := d.health.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.health.SetNode(healthz.Node{Exists: d.line.Load().source.NodeEligible()})
		h.ServeHTTP(w, r)
	})
}

func (d *daemon) operatorHandler() http.Handler {
	return healthz.Operator(healthz.OperatorOptions{
		Metrics: d.registry.Handler(), ProxyMode: metrics.ModeNFTables, Version: currentVersion(),
		Profiling: func() bool { return d.config.Load().EnableProfiling },
		Config:    func() any { return v1alpha2.From(d.config.Load()) },
		Flags: func() map[string]string {
			flags := map[string]string{}
			d.flags.flags.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
			return flags
		},
	})
}
