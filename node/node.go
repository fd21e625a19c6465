// Package node is the runtime of a node: everything between the cluster's objects and the kernel, in one piece to embed.
//
//	Source ──▶ store ──▶ dataplane of config.Mode     switchyard proxy, switchyard run
//	States ────────────▶ dataplane of config.Mode     switchyard apply
//	Source ──▶ store ──▶ node-local API               switchyard serve
//
// In addition, a [Node] does what a service proxy owes its operators: /healthz, /livez and /metrics, health check node ports, and
// events. It also writes the kernel's connection tracking settings, and removes what kube-proxy has left. All of it goes by one
// [config.Config], which can be replaced while the node runs ([Node.Reconfigure]).
//
// A program that routes what an API server has, in whole, with github.com/switchyard-net/switchyard/source/kube:
//
//	api, renew, err := kube.Connection{Kubeconfig: "/etc/kubernetes/kubelet.conf"}.Follow()
//	if err != nil {
//		return err
//	}
//	c := config.Default()
//	c.HostnameOverride = "node-a"
//	n, err := node.New(ctx, node.Options{
//		Config: c,
//		Source: func(_ *config.Config, name string) (model.Source, error) {
//			return kube.New(kube.Options{Config: api, Renew: renew, NodeName: name})
//		},
//	})
//	if err != nil {
//		return err
//	}
//	return n.Run(ctx)
//
// A Node owns no flags, signals or files: the caller reads the configuration, makes the source, and ends the context. When a Node ends,
// the programmed rules stay; [Cleanup] removes them.
package node

import (
	"context"
	"errors"
	"log/slog"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/switchyard-net/switchyard/backend"
	"github.com/switchyard-net/switchyard/backend/nftables"
	"github.com/switchyard-net/switchyard/config"
	"github.com/switchyard-net/switchyard/internal/admin/ui"
	"github.com/switchyard-net/switchyard/internal/edgenode"
	"github.com/switchyard-net/switchyard/internal/httpserver"
	"github.com/switchyard-net/switchyard/internal/kernel/leftovers"
	"github.com/switchyard-net/switchyard/internal/lastknown"
	"github.com/switchyard-net/switchyard/internal/ops/healthz"
	"github.com/switchyard-net/switchyard/internal/ops/metrics"
	"github.com/switchyard-net/switchyard/internal/ops/nodesetup"
	"github.com/switchyard-net/switchyard/internal/ops/servicehealth"
	"github.com/switchyard-net/switchyard/internal/resident"
	"github.com/switchyard-net/switchyard/model"
	"github.com/switchyard-net/switchyard/state"
	"github.com/switchyard-net/switchyard/store"
)

// Role is what a [Node] does with the states that it has.
type Role int

// The roles.
const (
	// Proxy programs this node's kernel, and serves the states over the API if config.API.Listen has addresses.
	Proxy Role = iota
	// Server serves the states of this node over the API, and programs nothing.
	Server
	// Relay serves the states of all nodes over the API, and the cluster's objects to relays below. It programs nothing.
	Relay
)

// Options are what a [Node] is made of. Config is required, and so is one of Source and States.
type Options struct {
	// Config is the whole configuration, as [config.Default] returns it, or the Convert method of a file of config/v1alpha2. It must be valid: c.Validate(runtime.GOOS)
	// returns nothing, which New does not check. It must not be modified afterwards.
	Config *config.Config
	// Source makes the source of the cluster's objects for a configuration and the name of the node. The name is empty for a Relay,
	// which needs the objects of all nodes. New calls it, and Reconfigure calls it if clientConnection, configSyncPeriod,
	// serviceProxyName, api.names or the node's name have changed. With api.names it must also deliver Services and EndpointSlices that
	// only have names, as kube.Options.Names makes it. It should deliver the Node: without it, the node has no addresses, zone and pod
	// ranges. Package source/kube has a source for API servers. The node uses the source's [model.WithProblems], [model.WithEligibility],
	// [model.WithEvents] and [model.WithEdge], if it has them.
	Source func(c *config.Config, node string) (model.Source, error)
	// States are states that are made elsewhere, for the role Proxy.
	States *States
	// Role is what the node does with the states. Default: Proxy.
	Role Role
	// Dataplane makes the dataplane of a Proxy, instead of the dataplane of config.Mode. Metrics and /proxyMode call it
	// custom. New calls it once, with its own context, and Run closes the dataplane. The node of each update
	// ([state.Node]) always says which clients are pods, and where NodePorts are served. The node uses the optional abilities
	// of package backend that the dataplane has.
	//
	// config.Mode still decides the defaults that depend on it, such as [config.Config.NodePorts]. Rules of built-in modes stay in the
	// kernel: call [Cleanup] before New. Cleanup does not remove the rules of such a dataplane, and does not count it as another
	// process. It must itself keep out a second process.
	Dataplane func(ctx context.Context, c *config.Config, o DataplaneOptions) (Dataplane, error)
	// Logger gets what an operator should know. Default: nothing is logged.
	Logger *slog.Logger
	// Program and Version are how the process is called where others see it. Defaults: the name of the executable, and unknown.
	Program, Version string
	// TakeOver is how long New waits for the end of another process that programs this kernel, and goes on routing until then. Default:
	// it does not wait.
	TakeOver time.Duration
	// Memory is how many bytes of memory the process may use, including the kernel's charges to its container. As a rule, it is the
	// limit of its cgroup. The budgets of Services follow from it where Config says so ([config.ByMemory]). 0: it is not known.
	Memory int64
	// ReplaceKubeProxy makes the node take kube-proxy's place. The node writes the settings that [SetUp] writes, and removes what
	// kube-proxy has left in the kernel once the first state is programmed.
	ReplaceKubeProxy bool
	// HealthCheckNodePorts decides whether the health check node ports of Services are answered. By default a Proxy answers, once it
	// shows a Service. A Server does not, because it would answer for the dataplanes of other processes. A Relay cannot.
	HealthCheckNodePorts *bool
	// StrictHealth makes /healthz fail as soon as the source has problems, nothing is programmed yet or a commit has failed. Default: as
	// with kube-proxy, it fails once an update has been waiting for two sync periods, and the rest is listed as problems.
	StrictHealth bool
	// OnReady is called once: when the first state is programmed, with the number of services, or when a Server or Relay has states to
	// serve. It must return soon. It may be nil.
	OnReady func(services int)
	// FieldName returns what messages call the field of the configuration with a path such as api.listen. Default: its path.
	FieldName func(path string) string
	// Flags returns what /flagz shows. If it is nil, there is no /flagz.
	Flags func() map[string]string
	// Metrics are further metrics, which the program has for /metrics. They replace families of the node with the same names, such as
	// the families of the Go runtime. The node's own are in [Node.Metrics], and in no global registry. It may be nil.
	Metrics prometheus.Gatherer
	// LogLinesSuppressed returns the number of lines that were left out of the log, for the metrics. It may be nil.
	LogLinesSuppressed func() uint64
	// MaxClients and MaxConnectionAge bound the connections to the API; see [server.Options].
	MaxClients       int
	MaxConnectionAge time.Duration
}

// States are states of one node that are computed elsewhere, for example by the server of a node-local API.
type States struct {
	// Feed hands them out. Required.
	Feed state.Feed
	// Latest returns the newest revision, and how many services it has. It is called concurrently and must not block. Required.
	Latest func() (state.Revision, int)
	// Run keeps Feed up to date until its context ends, and then returns nil. It may be nil.
	Run func(ctx context.Context) error
	// Name returns the name of the node, empty if it is not known yet. It may be nil.
	Name func() string
	// Problems returns why the states may be old. It may be nil.
	Problems func() []error
	// Report is called with each status of the dataplane. It must not block. It may be nil.
	Report func(applied state.Revision, failed map[state.ServiceName]error)
	// Reconfigure is called with each configuration that the node goes on with after the first, for states that are made by it. It must not
	// block. It may be nil.
	Reconfigure func(c *config.Config)
}

func (o *Options) check() error {
	switch {
	case o.Config == nil:
		return errors.New("node: Options.Config is missing")
	case (o.Source == nil) == (o.States == nil):
		return errors.New("node: one of Options.Source and Options.States is needed")
	case o.States != nil && (o.States.Feed == nil || o.States.Latest == nil):
		return errors.New("node: States.Feed or States.Latest is missing")
	case o.Role == Relay && o.HealthCheckNodePorts != nil && *o.HealthCheckNodePorts:
		return errors.New("node: a Relay has no health check node ports: leave Options.HealthCheckNodePorts out")
	case o.States != nil && o.Role != Proxy:
		return errors.New("node: only the role Proxy takes Options.States")
	}
	return nil
}

var families = []state.Family{state.IPv4, state.IPv6}

// Node is the runtime of a node. Its methods may be called concurrently.
type Node struct {
	o   Options
	log *slog.Logger
	// config is in use. It is never modified, but replaced, by the goroutine of followRequests, and so is pipeline.
	config   atomic.Pointer[config.Config]
	pipeline atomic.Pointer[pipeline]
	// mode is what metrics and /proxyMode call the mode of dataplane.
	mode atomic.Value // string
	// dataplane serves all pipelines, one after the other: the kernel keeps others from its tables while it is open. In a Server or Relay it is
	// nil.
	dataplane Dataplane
	// reconciler has the state that dataplane shows, regardless of the pipeline that it came from. It is nil if
	// dataplane is nil.
	reconciler *backend.Reconciler

	files                        shares
	registry                     *metrics.Registry
	health                       *healthz.Health
	ports                        *healthPorts // nil if they are not answered
	followers                    *followers
	fleet                        *fleet // nil but in a Relay
	degraded                     degraded
	audience                     *audience
	status                       dataplaneStatus
	healthServer, operatorServer *httpserver.Server
	uiServer                     *httpserver.Server
	// The connections of the four.
	healthConnections, operatorConnections, portConnections, uiConnections connections
	// changes is what the dataplane did last, for the page. endUI ends its streams.
	changes ui.Changes
	endUI   context.CancelFunc

	announcer *edgenode.Announcer

	group    *group        // of Run
	requests chan request  // of Reconfigure
	ended    chan struct{} // closed when Run has returned

	started   time.Time
	modeNote  atomic.Pointer[modeNote] // the latest; nil before there was one
	traffic   traffic
	affinity  affinity
	stopAdmin func() // set by run, and by the goroutine of followRequests

	ready  chan struct{} // closed when OnReady is called
	once   sync.Once
	events chan model.Event
	// problemEvents limits events about problems of services.
	problemEvents *rate.Limiter
}

// New makes a node, without starting it. It opens the dataplane that config.Mode selects ([SelectMode]), in the calling thread's network
// namespace. Connections go where they went before until Run has the first state. Run must be called, and ends what New has opened.
func New(ctx context.Context, o Options) (*Node, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	n := &Node{
		o: o, log: o.Logger, requests: make(chan request), ended: make(chan struct{}),
		started: time.Now(), ready: make(chan struct{}), events: make(chan model.Event, maxEvents),
		problemEvents: rate.NewLimiter(rate.Every(problemEventPause), problemEventBurst),
	}
	if n.log == nil {
		n.log = slog.New(slog.DiscardHandler)
	}
	n.announcer = edgenode.New(edgenode.Options{Source: n.edgeSource, Logger: n.log})
	n.files = openShares(o.Config.Mode, n.log)
	if o.Role != Proxy && !n.answersPorts() {
		n.files = n.files.forServe()
	}
	n.followers, n.audience = newFollowers(n.log), newAudience()
	if o.Role == Relay {
		n.fleet = newFleet()
	}
	n.config.Store(o.Config)
	n.warnCounters(o.Config)
	chosen, err := n.choose(o.Config)
	if err != nil {
		return nil, err
	}
	n.mode.Store("none")
	if chosen != nil {
		n.mode.Store(chosen.metrics)
		n.noteMode(chosen)
	}
	origin, err := n.originOf(o.Config)
	if err != nil {
		return nil, err
	}
	n.registry = n.newRegistry()
	p, err := n.newPipeline(o.Config, origin)
	if err != nil {
		return nil, err
	}
	n.pipeline.Store(p)
	if chosen != nil {
		// Before anything is served: a predecessor that is still running uses the same ports.
		n.dataplane, err = n.openDataplane(ctx, chosen)
		if err != nil {
			p.close()
			return nil, &DataplaneError{chosen.mode, err}
		}
		n.degraded.log, n.degraded.can, n.degraded.mode = n.log, func() state.Features { return backend.FeaturesOf(n.inUse()) }, n.proxyMode
		n.reconciler = backend.NewReconciler(n.dataplane)
		n.warnEdge(o.Config)
	}
	n.health = n.newHealth()
	if n.answersPorts() {
		if err := n.addPorts(); err != nil {
			p.close()
			if n.dataplane != nil {
				err = errors.Join(err, n.dataplane.Close())
			}
			return nil, err
		}
	}
	n.addServers()
	return n, nil
}

// answersPorts reports whether the node answers on health check node ports.
func (n *Node) answersPorts() bool {
	if n.o.HealthCheckNodePorts != nil {
		return *n.o.HealthCheckNodePorts
	}
	return n.o.Role == Proxy
}

// openDataplane opens the dataplane that was chosen, or the caller's.
func (n *Node) openDataplane(ctx context.Context, chosen *dataplane) (Dataplane, error) {
	c, o := n.o.Config, DataplaneOptions{
		relayFiles: n.files.relay, memory: n.o.Memory,
		Logger: n.log, Program: n.o.Program, TakeOver: n.o.TakeOver, OnFlowsCut: n.registry.Conntrack,
		TCPLingers: n.o.States == nil, OnResets: n.registry.Resets, OnProbe: func(r nftables.ProbeResult) { n.registry.Probe(r.String()) }, OnEjections: n.registry.Ejections, OnIPTablesRules: n.registry.IPTablesRules,
		onHNSFailure: n.countHNSFailure, OnProgress: n.progressed, announce: n.announce, saw: n.announcer.Saw,
	}
	switch {
	case n.o.Dataplane != nil:
		return n.o.Dataplane(ctx, c, o)
	case isStandalone(c, runtime.GOOS):
		return openStandaloneRelay(ctx, c, o, nil)
	}
	d, err := openSwitchable(ctx, *chosen, c, o)
	if err != nil {
		return nil, err
	}
	return d, nil
}

// reconfigureDataplane has the dataplane go on with another configuration, or replaces it with the dataplane of another mode. p is the
// pipeline whose state is programmed. It must not run at the time.
func (n *Node) reconfigureDataplane(p *pipeline, c *config.Config) error {
	s, ok := n.dataplane.(*switchable)
	if !ok {
		return n.dataplane.Reconfigure(c)
	}
	chosen, err := n.choose(c)
	if err != nil {
		return err
	}
	if isStandalone(c, runtime.GOOS) {
		return errStandalone
	}
	if chosen.mode == s.now.mode {
		err = s.Reconfigure(c)
	} else {
		err = n.switchMode(s, p, chosen, c)
	}
	if err != nil {
		return err
	}
	if n.noteMode(chosen) { // it is in use
		n.reportMode()
	}
	return nil
}

// switchMode replaces the dataplane in use with the dataplane of another mode.
func (n *Node) switchMode(s *switchable, p *pipeline, chosen *dataplane, c *config.Config) error {
	var u *state.Update
	if newest, _ := p.latest(); newest > 0 {
		var err error
		if u, err = p.feed.Next(n.group.ctx, 0); err != nil {
			return err
		}
	}
	if err := s.switchTo(n.group.ctx, *chosen, c, u, n.status.current().Failed); err != nil {
		return err
	}
	n.setMode(chosen.metrics)
	return nil
}

// setMode notes the mode of the dataplane in use.
func (n *Node) setMode(mode string) {
	n.mode.Store(mode)
	n.registry.SetMode(mode)
}

func (n *Node) proxyMode() string { return n.mode.Load().(string) }

// customMode is what metrics and /proxyMode call the mode of a dataplane of the caller.
const customMode = "custom"

// choose returns the dataplane for c, nil for a role that has none.
func (n *Node) choose(c *config.Config) (*dataplane, error) {
	if n.o.Role != Proxy {
		return nil, nil
	}
	if n.o.Dataplane != nil {
		return &dataplane{mode: c.Mode, metrics: customMode}, nil
	}
	mode, err := SelectMode(c, runtime.GOOS)
	if err != nil {
		return nil, err
	}
	if c.Mode != "" && mode != c.Mode {
		n.log.Warn("another dataplane serves this mode", "mode", c.Mode, "dataplane", mode, "remedy", "set mode to "+string(mode)+", or leave it blank")
	}
	chosen, _ := dataplaneOf(mode, runtime.GOOS)
	if chosen.available != nil && c.AllowModeFallback {
		if why := chosen.available(); why != nil {
			chosen, _ = dataplaneOf(config.ModeNFTables, runtime.GOOS)
			chosen.note = modeNote{lacking: mode, why: why.Error()}
		}
	}
	if c.Mode == "" && chosen.mode == config.ModeNFTables {
		chosen.note.blank = true
	}
	return &chosen, nil
}

// addPorts adds health check node ports.
func (n *Node) addPorts() (err error) {
	n.ports, err = newHealthPorts(servicehealth.Options{
		Logger: n.log, Healthy: n.health.Healthy, OnProblem: n.reportPort,
		OpenConnections: &n.portConnections.open, ClosedConnections: &n.portConnections.closed,
	}, n.files)
	if err != nil {
		return err
	}
	n.health.AddProblems("healthCheckNodePorts", n.ports.problems)
	return nil
}

// Name returns the name of the node, empty for a Relay, and as long as it is not known.
func (n *Node) Name() string { return n.pipeline.Load().name() }

// Config returns the configuration in use. It must not be modified.
func (n *Node) Config() *config.Config { return n.config.Load() }

// Feed returns the states of this node, for consumers other than the dataplane. It is closed when Reconfigure takes another source;
// then there
// is another one. It is nil in a Relay.
func (n *Node) Feed() state.Feed { return n.pipeline.Load().feed }

// Metrics returns the metrics of the node, with the metrics of Options.Metrics, for programs that serve them elsewhere. The node serves
// them
// where config.MetricsBindAddress says.
func (n *Node) Metrics() prometheus.Gatherer { return n.registry }

// Run runs the node until ctx ends, and then returns nil. It returns an error if the node cannot go on. It is called once.
//
// Run opens all listeners, also for health check node ports, in the network namespace of the process. Once the first state is programmed, it
// removes the rules of other built-in modes, unless the dataplane is one of [Options].Dataplane.
func (n *Node) Run(ctx context.Context) error {
	defer close(n.ended)
	defer n.endUI()
	err := errors.Join(n.healthServer.Bind(ctx), n.operatorServer.Bind(ctx))
	if err != nil {
		err = errors.Join(err, n.healthServer.Close(), n.operatorServer.Close())
		if n.ports != nil {
			err = errors.Join(err, n.ports.addresses.Close())
		}
	} else {
		err = n.run(ctx)
	}
	n.pipeline.Load().close()
	if n.dataplane != nil {
		err = errors.Join(err, n.dataplane.Close())
	}
	return err
}

func (n *Node) run(ctx context.Context) error {
	if n.o.ReplaceKubeProxy {
		SetUp(n.config.Load(), n.log)
	}
	n.group = newGroup(ctx)
	context.AfterFunc(n.group.ctx, n.endUI)
	for _, part := range []func(context.Context) error{n.healthServer.Run, n.operatorServer.Run, n.uiServer.Run, n.reportEvents, n.trimLater, n.tellCluster} {
		n.group.start(part)
	}
	if n.ports != nil {
		n.group.start(n.ports.Run)
	}
	if n.o.ReplaceKubeProxy {
		n.group.start(n.removeLeftovers)
	}
	n.pipeline.Load().start(n, n.config.Load())
	resident.Unmap() // what initialization went through, while the first lists are asked for, which take most memory
	n.startAdmin(n.config.Load())
	n.group.start(n.followRequests)
	return n.group.wait()
}

// becomeReady is called when the node begins to work, and again later.
func (n *Node) becomeReady(failed int) {
	n.once.Do(func() {
		resident.Trim() // reading everything for the first time took far more than keeping it takes
		p := n.pipeline.Load()
		if n.o.Role == Proxy {
			n.emit(model.Event{Kind: "Node", Name: p.name(), Reason: "Starting", Action: "StartKubeProxy"})
			n.reportMode()
		}
		if n.o.OnReady != nil {
			_, services := p.latest()
			n.o.OnReady(services - failed)
		}
		close(n.ready)
	})
}

// nodeIPFault is called if the node does not have the addresses that it must have. That ends the process before it routes anything, if
// configHardFail says so; later, the routes are worth more.
func (n *Node) nodeIPFault(err error) {
	select {
	case <-n.ready:
	default:
		if n.config.Load().ConfigHardFail {
			n.group.fail(err)
			return
		}
	}
	n.log.Warn("the node lacks required addresses", "error", err)
}

// progressed notes that the dataplane makes progress.
func (n *Node) progressed() {
	if n.health != nil { // not while New opens the dataplane
		n.health.Progress()
	}
}

// attempted notes a call of the dataplane.
func (n *Node) attempted(a backend.Attempt) {
	n.registry.Attempt(a)
	n.status.attempted(a)
	n.changes.Attempted(a)
	n.degraded.attempted(a)
	if a.Update != nil && a.Err == nil {
		n.progressed() // more may wait by now, or the same for longer
	}
	if n.ports != nil {
		n.ports.attempted(a)
	}
}

// statusChanged notes how the dataplane is doing.
func (n *Node) statusChanged(s backend.Status) {
	n.registry.Status(s)
	n.health.Status(s)
	n.status.set(s)
	if n.o.States != nil && n.o.States.Report != nil {
		n.o.States.Report(s.Applied, s.Failed)
	}
	if s.Applied > 0 {
		n.becomeReady(len(s.Failed))
	}
}

// Events about services are reported at this rate at most. Anyone may cause any number of problems, and requests about
// routing must not wait for their events.
const (
	problemEventPause = 10 * time.Second
	problemEventBurst = 20
)

// reportProblem reports a problem of a service as an event, if this is the node to do so.
func (n *Node) reportProblem(p store.Problem) {
	if n.o.Role == Proxy && p.Here && n.problemEvents.Allow() {
		n.emit(model.Event{Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, Warning: true,
			Reason: string(p.Reason), Action: "Route", Note: p.Error()})
	}
}

// reportNode reports that this Node lacks a field.
func (n *Node) reportNode(p lastknown.Problem) {
	if n.o.Role == Proxy {
		n.emit(model.Event{Kind: "Node", Name: p.Node, Warning: true, Reason: string(p.Reason), Action: "Route", Note: p.Error()})
	}
}

// reportPort reports a health check node port that cannot be served.
func (n *Node) reportPort(p servicehealth.Problem) {
	n.emit(model.Event{Kind: "Service", Namespace: p.Service.Namespace, Name: p.Service.Name, Warning: true,
		Reason: "FailedToStartServiceHealthcheck", Action: "Listen", Note: p.Error()})
}

// maxEvents is how many events may wait to be reported. More than that are only logged where they occur.
const maxEvents = 100

// emit reports an event soon.
func (n *Node) emit(e model.Event) {
	select {
	case n.events <- e:
	default:
	}
}

// reportEvents hands events to the source, one after the other.
func (n *Node) reportEvents(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case e := <-n.events:
			s, ok := n.pipeline.Load().source.(model.WithEvents)
			if !ok {
				continue
			}
			if err := s.Report(ctx, e); err != nil && ctx.Err() == nil {
				n.log.Debug("cannot report event", "error", err)
			}
		}
	}
}

// trimDelay is how long after the first state the work is over that follows it: leftovers, events and flows.
const trimDelay = 3 * time.Second

// trimLater gives back what that work needed. The first state alone is not the end of the start.
func (n *Node) trimLater(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.ready:
	}
	select {
	case <-ctx.Done():
	case <-time.After(trimDelay):
		resident.Trim()
	}
	return nil
}

// removeLeftovers removes what kube-proxy has left in the kernel, once nothing needs it.
func (n *Node) removeLeftovers(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-n.ready:
	}
	items, err := leftovers.Remove(ctx)
	for _, item := range items {
		n.log.Info("removed what kube-proxy had left", "what", item.String())
	}
	if err != nil && ctx.Err() == nil {
		n.log.Warn("rules of kube-proxy may be left in the kernel", "error", err,
			"remedy", "run kube-proxy --cleanup of its old version, or see docs/migrate-from-kube-proxy.md")
	}
	return nil
}

// SetUp writes the kernel settings of section linux of c: limits and timeouts of connection tracking, and the OOM score of this
// process. A setting that cannot be written, as on a nested or rootless node, is a warning. For the OOM score, it is a line of verbosity 1.
func SetUp(c *config.Config, log *slog.Logger) {
	ct := &c.Linux.Conntrack
	for _, err := range nodesetup.Apply(nodesetup.Options{
		Conntrack: nodesetup.Conntrack{
			MaxPerCore: int(ct.MaxPerCore), Min: int(ct.Min),
			TCPEstablishedTimeout: ct.TCPEstablishedTimeout.Duration, TCPCloseWaitTimeout: ct.TCPCloseWaitTimeout.Duration,
			TCPBeLiberal: ct.TCPBeLiberal, UDPTimeout: ct.UDPTimeout.Duration, UDPStreamTimeout: ct.UDPStreamTimeout.Duration,
		},
		OOMScoreAdj: new(int(c.Linux.OOMScoreAdj)),
		Logger:      log,
	}) {
		if errors.Is(err, errors.ErrUnsupported) {
			log.Debug("this operating system has none of the settings of the section linux", "error", err)
			continue
		}
		if w, ok := errors.AsType[*nodesetup.Warning](err); ok && w.IsOOMScore() {
			log.Log(context.Background(), levelOf(1), "cannot set OOM score", "error", err)
			continue
		}
		log.Warn("cannot set sysctl", "error", err)
	}
}

// levelOf returns the level of lines that are shown with a verbosity.
func levelOf(verbosity int) slog.Level { return slog.Level(-verbosity) }

// fieldName returns what messages call a field of the configuration.
func (n *Node) fieldName(path string) string {
	if n.o.FieldName == nil {
		return path
	}
	return n.o.FieldName(path)
}
