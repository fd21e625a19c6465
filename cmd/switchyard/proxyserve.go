package main

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/brain"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/config/v1alpha2"
	"github.com/switchyard-net/switchyard/internal/healthz"
	"github.com/switchyard-net/switchyard/internal/ifaddr"
	"github.com/switchyard-net/switchyard/internal/leftovers"
	"github.com/switchyard-net/switchyard/internal/metrics"
	"github.com/switchyard-net/switchyard/internal/reconcile"
	"github.com/switchyard-net/switchyard/internal/servicehealth"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/source"
	"github.com/switchyard-net/switchyard/source/kube"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

var families = []state.Family{state.IPv4, state.IPv6}

// serveProxy runs the daemon until ctx ends. When the configuration file changes, everything in the process is made anew with
// it; the kernel keeps what it holds, and only differences are written.
func serveProxy(ctx context.Context, p *proxyFlags, c *config.Config, log *slog.Logger, level *slog.LevelVar) error {
	if err := checkMode(c.Mode, log); err != nil {
		return err
	}
	debug.SetGCPercent(startGCPercent)
	var current atomic.Pointer[daemon]
	registry := newRegistry(&current)
	for {
		setLevel(level, c)
		d, err := newDaemon(p, c, log, registry)
		switch remade := current.Load() != nil; {
		case err != nil && remade && !c.ConfigHardFail:
			log.Warn("the process cannot go on with the changed configuration yet; trying again", "error", err)
			if pause(ctx, remakePause); ctx.Err() != nil {
				return nil
			}
			continue
		case err != nil:
			return err
		case !remade:
			d.first = true
		}
		setUpNode(c, log) // not before it is certain that there is something to run
		current.Store(d)
		next, err := d.run(ctx)
		if next == nil || err != nil {
			return err
		}
		c = next
	}
}

// Reading everything for the first time leaves several times as much garbage as it keeps. Collecting it over and over takes
// time from the first state; until that is programmed, memory is spent instead.
const (
	startGCPercent = 400
	usualGCPercent = 100
)

// remakePause is the time between attempts to go on with a changed configuration.
const remakePause = 5 * time.Second

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// daemon is the process with one configuration.
type daemon struct {
	flags *proxyFlags
	c     *config.Config
	log   *slog.Logger
	// first says that the process has just been started.
	first bool
	name  string // of this node

	source    *kube.Source
	store     *store.Store
	dataplane *nftables.Backend
	registry  *metrics.Registry
	health    *healthz.Health
	ports     *servicehealth.Server
	addresses *ifaddr.Watcher

	programmed chan struct{} // closed once the first state is programmed
	once       sync.Once
	events     chan kube.Event
	node       atomic.Pointer[state.Node]
	moved      chan struct{} // has a value when node has changed
}

func newDaemon(p *proxyFlags, c *config.Config, log *slog.Logger, registry *metrics.Registry) (d *daemon, err error) {
	name, err := nodeName(c)
	if err != nil {
		return nil, err
	}
	connection, err := kube.Connection{
		Kubeconfig: c.ClientConnection.Kubeconfig, Master: p.master,
		AcceptContentTypes: c.ClientConnection.AcceptContentTypes, ContentType: c.ClientConnection.ContentType,
		QPS: c.ClientConnection.QPS, Burst: int(c.ClientConnection.Burst),
	}.Config()
	if err != nil {
		return nil, err
	}
	d = &daemon{flags: p, c: c, log: log, name: name, registry: registry, programmed: make(chan struct{}), moved: make(chan struct{}, 1), events: make(chan kube.Event, maxEvents)}
	d.source, err = kube.New(kube.Options{
		Config: connection, NodeName: name, ResyncPeriod: c.ConfigSyncPeriod.Duration, Logger: log,
	})
	if err != nil {
		return nil, err
	}
	detector := c.LocalDetector()
	d.store = store.New(store.Options{Logger: log, Brain: brain.Config{
		NodeName: name, MasqueradeAll: c.Linux.MasqueradeAll,
		DetectLocal: brain.Families{IPv4: detector.Detects(state.IPv4), IPv6: detector.Detects(state.IPv6)},
	}})
	bit := int(c.NFTables.MasqueradeBit)
	d.dataplane, err = nftables.New(nftables.Options{
		Logger: log, LocalDetector: detector, NodePortAddresses: c.NodePorts(), MasqueradeBit: &bit,
	})
	if err != nil {
		return nil, explain(err)
	}
	if d.addresses, err = ifaddr.Open(ifaddr.Options{Logger: log}); err != nil {
		return nil, errors.Join(err, d.dataplane.Close())
	}
	d.health = healthz.New(healthz.Options{
		Families: families, Timeout: 2 * c.SyncPeriod.Duration, Newest: d.newest,
		OnHealthz: registry.Healthz, OnLivez: registry.Livez,
	})
	d.health.AddProblems("source", d.source.Problems)
	d.ports = servicehealth.New(servicehealth.Options{Logger: log, Healthy: d.health.Healthy, OnProblem: func(p servicehealth.Problem) {
		d.tell(kube.Event{Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, Warning: true,
			Reason: "FailedToStartServiceHealthcheck", Action: "Listen", Note: p.Error()})
	}})
	return d, nil
}

// newRegistry returns the metrics of the process, which go on counting when the daemon is made anew.
func newRegistry(current *atomic.Pointer[daemon]) *metrics.Registry {
	count := func(of func(*daemon) int) func() int {
		return func() int {
			if d := current.Load(); d != nil {
				return of(d)
			}
			return 0
		}
	}
	registry := metrics.New(metrics.Options{
		Mode: metrics.ModeNFTables, Families: families, Version: currentVersion(),
		Services:            count(func(d *daemon) int { return d.store.Snapshot().Len() }),
		SourceProblems:      count(func(d *daemon) int { return len(d.source.Problems()) }),
		HealthCheckProblems: count(func(d *daemon) int { return len(d.ports.Problems()) }),
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

func (d *daemon) newest() state.Revision { return d.store.Snapshot().Revision() }

// run runs the daemon until ctx ends, or until it is to go on with another configuration, which it then returns.
func (d *daemon) run(ctx context.Context) (next *config.Config, err error) {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	defer d.store.Close()
	sink := d.registry.CountChanges(d.withNodeIPs(d.store.Source("kube")), d.newest)
	parts := []func(context.Context) error{
		func(ctx context.Context) error { return d.source.Run(ctx, sink) },
		func(ctx context.Context) error {
			err := reconcile.Run(ctx, d.store, d.dataplane, reconcile.Options{
				Logger: d.log, VerifyPeriod: d.c.SyncPeriod.Duration, OnAttempt: d.attempted, OnStatus: d.status,
			})
			return errors.Join(err, d.dataplane.Close())
		},
		d.ports.Run,
		d.followAddresses,
		d.report,
		d.removeLeftovers,
		d.serve("health", "healthzBindAddress", d.c.HealthzBindAddress, d.healthHandler()),
		d.serve("metrics", "metricsBindAddress", d.c.MetricsBindAddress, d.operatorHandler()),
		func(ctx context.Context) error {
			c, err := d.awaitConfig(ctx)
			if c != nil {
				next = c
				stop()
			}
			return err
		},
	}
	err = together(ctx, parts) // sets next
	return next, err
}

// attempted takes down a call of the dataplane.
func (d *daemon) attempted(a reconcile.Attempt) {
	d.registry.Attempt(a)
	if a.Update == nil || a.Err != nil {
		return
	}
	d.ports.Update(a.Update)
	if d.node.Swap(a.Update.Node) != a.Update.Node {
		select {
		case d.moved <- struct{}{}:
		default:
		}
	}
}

func (d *daemon) status(s reconcile.Status) {
	d.registry.Status(s)
	d.health.Status(s)
	if s.Applied > 0 {
		d.once.Do(func() {
			debug.SetGCPercent(usualGCPercent)
			debug.FreeOSMemory() // reading everything for the first time took far more than keeping it takes
			if d.first {
				d.tell(kube.Event{Kind: "Node", Name: d.name, Reason: "Starting", Action: "StartKubeProxy"})
			}
			d.log.Info("the first state is programmed", "services", d.store.Snapshot().Len()-len(s.Failed))
			close(d.programmed)
		})
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
			if err := d.source.Report(ctx, e); err != nil && ctx.Err() == nil {
				d.log.Debug("an event could not be reported", "error", err)
			}
		}
	}
}

// removeLeftovers removes what kube-proxy has left in the kernel, once it is not needed any more.
func (d *daemon) removeLeftovers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-d.programmed:
	}
	if !d.first {
		return nil
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

// followAddresses serves health check node ports on the addresses that serve NodePorts.
func (d *daemon) followAddresses(ctx context.Context) error {
	defer d.addresses.Close()
	on := d.c.NodePorts()
	for {
		node := d.node.Load()
		switch {
		case isEverywhere(on):
			d.ports.SetAddresses(servicehealth.AllAddresses(families...))
		case node != nil:
			d.ports.SetAddresses(ifaddr.Select(d.addresses.Addrs(), on, node))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-d.addresses.Changed():
		case <-d.moved:
		}
	}
}

// isEverywhere says whether NodePorts are served on all addresses of both families.
func isEverywhere(on backend.NodePortAddresses) bool {
	all := map[bool]bool{}
	for _, p := range on.CIDRs {
		if p.Bits() == 0 {
			all[p.Addr().Is4()] = true
		}
	}
	return all[true] && all[false] || !on.Primary && len(on.CIDRs) == 0
}

func (d *daemon) serve(name, field string, addr netip.AddrPort, h http.Handler) func(context.Context) error {
	return func(ctx context.Context) error {
		if !addr.IsValid() {
			return nil
		}
		return healthz.ListenAndServe(ctx, addr.String(), h, healthz.ServeOptions{
			Name: name, Flag: field, HardFail: d.c.BindAddressHardFail, Logger: d.log,
		})
	}
}

// healthHandler answers with what the source knows of this node by then.
func (d *daemon) healthHandler() http.Handler {
	h := d.health.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		d.health.SetNode(healthz.Node{Exists: d.source.NodeEligible()})
		h.ServeHTTP(w, r)
	})
}

func (d *daemon) operatorHandler() http.Handler {
	return healthz.Operator(healthz.OperatorOptions{
		Metrics: d.registry.Handler(), ProxyMode: metrics.ModeNFTables, Version: currentVersion(),
		Profiling: d.c.EnableProfiling,
		Config:    func() any { return v1alpha2.From(d.c) },
		Flags: func() map[string]string {
			flags := map[string]string{}
			d.flags.flags.VisitAll(func(f *pflag.Flag) { flags[f.Name] = f.Value.String() })
			return flags
		},
	})
}

// withNodeIPs puts the addresses of nodeIPOverride in the place of those of the Node.
func (d *daemon) withNodeIPs(next source.Sink) source.Sink {
	if len(d.c.NodeIPOverride) == 0 {
		return next
	}
	return &nodeIPs{Sink: next, addresses: d.c.NodeIPOverride}
}

type nodeIPs struct {
	source.Sink
	addresses []netip.Addr
}

// Update implements [source.Sink].
func (s *nodeIPs) Update(set []model.Object, deleted []model.Ref) {
	for i, o := range set {
		if n, ok := o.(*model.Node); ok {
			changed := *n
			changed.Addresses = s.addresses
			set[i] = &changed
		}
	}
	s.Sink.Update(set, deleted)
}
