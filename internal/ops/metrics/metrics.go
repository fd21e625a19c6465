// Package metrics holds the metrics that a proxy process exports to Prometheus. kube-proxy's metrics have the same
// names, types and labels, so that its boards and alerts work unchanged. Switchyard's own metrics begin with
// switchyard_.
//
// A [Registry] belongs to one process and is fed by plain calls; nothing is global. The metrics have the same meaning
// as in kube-proxy, with these differences:
//
//   - kube-proxy syncs each IP family by itself. Here one transaction commits all families, so a sync counts once for each
//     of them, with the same duration and the same outcome. So does a programming latency.
//   - kube-proxy counts each Service once for each family. Here a change counts once.
//   - kube-proxy forgets pending changes when a sync begins, even if the sync fails. Here a change is pending until it
//     is applied.
//   - The metrics of full and partial syncs and of conntrack are there in all modes. Counters begin at 0 instead of
//     being absent until they first count.
//   - kubernetes_build_info is not there, because alerts about version skew would take Switchyard's version for a
//     Kubernetes component's. switchyard_build_info is there instead.
package metrics

import (
	"cmp"
	"errors"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/switchyard-net/switchyard/state"
)

// The modes that have metrics of their own, by kube-proxy's names. Services that the modes ebpf and userspace leave
// to nftables also have the metrics of mode nftables.
const (
	ModeEBPF        = "ebpf"
	ModeIPTables    = "iptables"
	ModeIPVS        = "ipvs"
	ModeNFTables    = "nftables"
	ModeUserspace   = "userspace"
	ModeKernelspace = "kernelspace"
)

// Options specifies what a process is, and where the numbers come from that are asked for when they are shown. Functions are
// called concurrently and must not block; the metric of one that is nil is absent.
type Options struct {
	// Mode is the dataplane's mode, until SetMode names another one. A mode that is none of this package's constants has the common metrics only.
	Mode string
	// Families are the IP families that the dataplane programs. Required.
	Families []state.Family
	// Version is the version of the program. Default: unknown.
	Version string
	// Others are metrics of other parts of the program. They are also shown, and replace families with the same names
	// here. It may be nil.
	Others prometheus.Gatherer
	// Services returns the number of services in the newest state.
	Services func() int
	// SourceProblems returns the number of problems that the sources have.
	SourceProblems func() int
	// NodeProblems returns the number of Nodes that lack fields that they should have.
	NodeProblems func() int
	// NodeHealth returns what the process knows about the health of Nodes.
	NodeHealth func() NodeHealth
	// HealthCheckProblems returns the number of health check node ports that cannot be served.
	HealthCheckProblems func() int
	// Connections are the connections of the process's servers, by the names of the servers.
	Connections map[string]Connections
	// LogLinesSuppressed returns the number of lines that were left out of the log because there were too many.
	LogLinesSuppressed func() uint64
	// LimitedServices returns the number of services that are not fully served, for each of a fixed set of reasons.
	LimitedServices func() map[string]int
	// BadAnnotations returns the number of services with an annotation that is ignored.
	BadAnnotations func() int
	// DegradedServices returns the number of services that are served without a feature which the dataplane lacks, for each feature.
	DegradedServices func() map[string]int
	// IPTablesInvalidDropped and IPTablesLocalhostAccepted return packets counted by the kernel, in mode iptables.
	// The first are dropped because conntrack does not know their connection; the second go to NodePorts on loopback
	// addresses.
	IPTablesInvalidDropped    func() uint64
	IPTablesLocalhostAccepted func() uint64
	// LocalNodePorts returns how NodePorts on loopback addresses are doing. It is asked in mode nftables only.
	LocalNodePorts func() LocalNodePorts
	// Traffic returns what the dataplane has counted of connections to Services, nil while it does not count. It may take as long as reading that
	// from the kernel.
	Traffic func() *Traffic
	// AffinityClients returns how many clients with affinity are remembered, by family. It is empty where that is not known.
	AffinityClients func() []AffinityClients
	// Relayed returns what the relay of mode userspace carries, by protocol. It is empty in other modes.
	Relayed func() map[string]Relayed
	// SocketHooks returns how the socket hooks are doing. It is asked in mode ebpf only.
	SocketHooks func() SocketHooks
	// Edge returns how the edge is doing, nil while there is none. It is asked in modes nftables and ebpf only.
	Edge func() *Edge
	// PendingSince returns the time since when the oldest change waits for the dataplane, zero if none waits. It is nil in a
	// process without dataplane.
	PendingSince func() time.Time
	// ConntrackEntries returns the entries of the connection tracking table, and false where there is none.
	ConntrackEntries func() (ConntrackEntries, bool)
	// Followers returns the clients of the node-local API, and Role is the role of the process that serves them: relay or server.
	Followers func() Followers
	Role      string
}

// NodeHealth is the health of all Nodes. It is the zero value where the health of Nodes does not count.
type NodeHealth struct {
	// NotReady is how many Nodes are not ready, and Last on how many of them endpoints come last.
	NotReady, Last int
	// Ignored reports that no endpoint comes last because too many Nodes are not ready.
	Ignored bool
}

// Connections returns how many connections are open, and how many were closed because there were too many.
type Connections func() (open, closed int64)

// Registry holds the metrics of one process. Its methods may be called concurrently.
type Registry struct {
	registry *prometheus.Registry
	families []string
	started  time.Time
	o        Options
	kube     kubeProxy
	own      own
	mode     atomic.Pointer[modeMetrics]

	mu sync.Mutex // guards all below
	// applied is the last revision that was applied, pendingSince is from the last status.
	applied      state.Revision
	pendingSince time.Time
	queued       time.Time // the newest time at which a change asked for a sync
	changes      changes
	drops        drops
	resets       resets
}

// own are Switchyard's metrics that are written, not asked for.
type own struct {
	attempts    *prometheus.CounterVec
	verify      prometheus.Histogram
	written     prometheus.Counter
	repaired    prometheus.Counter
	revision    prometheus.Gauge
	failed      prometheus.Gauge
	programming prometheus.Histogram
	ejections   prometheus.Counter
	ejected     prometheus.Gauge
	probes      *prometheus.CounterVec
}

// New returns the registry of a process that starts now.
func New(o Options) *Registry {
	r := &Registry{
		o:        o,
		registry: prometheus.NewRegistry(),
		started:  time.Now(),
		drops:    newDrops(),
		resets:   newResets(),
	}
	for _, f := range o.Families {
		r.families = append(r.families, f.String())
	}
	r.registry.MustRegister(
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		collectors.NewGoCollector(collectors.WithGoCollectorRuntimeMetrics(collectors.MetricsAll)),
	)
	r.kube.register(r.registry, r.families)
	r.registerOwn(&o)
	r.SetMode(o.Mode)
	// Until the first state has come, the process waits for it: that counts as a sync that was asked for.
	r.noteQueued(r.started)
	return r
}

// Handler serves the metrics in the formats that Prometheus can ask for.
func (r *Registry) Handler() http.Handler {
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{ProcessStartTime: r.started})
}

// Gather implements [prometheus.Gatherer]: it returns what the process shows, with the metrics of the mode that it has when it is asked. A
// program with metrics of its own shows both with [Join].
func (r *Registry) Gather() ([]*dto.MetricFamily, error) {
	all := prometheus.Gatherers{r.registry, prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) { return r.mode.Load().registry.Gather() })}
	return Join(r.o.Others, all).Gather()
}

// Join returns a gatherer of the metrics of two. If both have a family, such as the metrics of the Go runtime, the
// family of first is shown. first may be nil.
func Join(first, second prometheus.Gatherer) prometheus.Gatherer {
	if first == nil {
		return second
	}
	return prometheus.GathererFunc(func() ([]*dto.MetricFamily, error) {
		families, err := first.Gather()
		more, err2 := second.Gather()
		has := make(map[string]bool, len(families))
		for _, f := range families {
			has[f.GetName()] = true
		}
		for _, f := range more {
			if !has[f.GetName()] {
				families = append(families, f)
			}
		}
		slices.SortFunc(families, func(a, b *dto.MetricFamily) int { return cmp.Compare(a.GetName(), b.GetName()) })
		return families, errors.Join(err, err2)
	})
}

func (r *Registry) registerOwn(o *Options) {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(r.registry, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "switchyard", Name: name, Help: help}, labels))
	}
	gauge := func(name, help string) prometheus.Gauge {
		return register(r.registry, prometheus.NewGauge(prometheus.GaugeOpts{Namespace: "switchyard", Name: name, Help: help}))
	}
	histogram := func(name, help string) prometheus.Histogram {
		return register(r.registry, prometheus.NewHistogram(prometheus.HistogramOpts{
			Namespace: "switchyard", Name: name, Help: help, Buckets: prometheus.ExponentialBuckets(0.001, 2, 16), // 1 ms to 33 s
		}))
	}
	r.own = own{
		attempts:    counter("dataplane_attempts_total", "Calls of the dataplane: apply, retry (of services that failed) or verify, by result.", "call", "result"),
		verify:      histogram("dataplane_verify_duration_seconds", "How long it took to compare the dataplane with what was applied."),
		written:     counter("dataplane_written_total", "Kernel objects that were added, replaced or deleted.").WithLabelValues(),
		repaired:    counter("dataplane_repairs_total", "Kernel objects that something else had changed or deleted, and that were put right.").WithLabelValues(),
		revision:    gauge("applied_revision", "The revision of the state that the dataplane shows."),
		failed:      gauge("failed_services", "Services that cannot be programmed."),
		ejections:   counter("ejections_total", "Endpoints of Service ports that were ejected because they did not answer.").WithLabelValues(),
		ejected:     gauge("ejected_endpoints", "Endpoints of Service ports that get no new connections from this node because they do not answer."),
		probes:      counter("probes_total", "Probes of endpoints that were suspected to be silent, or compared with these, by result: answered, silent or failed.", "result"),
		programming: histogram("network_programming_duration_seconds", "Time from a change in the cluster until the kernel had it. It has finer buckets than kubeproxy_network_programming_duration_seconds and counts a change once."),
	}
	for _, call := range []string{callApply, callRetry, callVerify} {
		r.own.attempts.WithLabelValues(call, "success")
		r.own.attempts.WithLabelValues(call, "error")
	}
	for _, result := range []string{"answered", "silent", "failed"} {
		r.own.probes.WithLabelValues(result)
	}
	r.resets.packets = counter("connection_resets_total",
		"Packets that were answered with a reset because their endpoint had left the Service. Without a name: of Services that are gone, and of those beyond the first 1,000.",
		"namespace", "name")
	r.resets.packets.WithLabelValues("", "")
	info := prometheus.GaugeOpts{Namespace: "switchyard", Name: "build_info", Help: "1, labelled by what was built."}
	register(r.registry, prometheus.NewGaugeVec(info, []string{"version", "go_version", "platform"})).
		WithLabelValues(cmp.Or(o.Version, "unknown"), runtime.Version(), runtime.GOOS+"/"+runtime.GOARCH).Set(1)

	timestamp(r.registry, "start_time_seconds",
		"Unix time at which the process started. It is constant, while process_start_time_seconds follows corrections of the node's clock.",
		func() time.Time { return r.started })
	for server, count := range o.Connections {
		labels := prometheus.Labels{"server": server}
		r.registry.MustRegister(
			prometheus.NewGaugeFunc(prometheus.GaugeOpts{
				Namespace: "switchyard", Name: "server_connections", Help: "Connections that are open, by server.", ConstLabels: labels,
			}, func() float64 { open, _ := count(); return float64(open) }),
			prometheus.NewCounterFunc(prometheus.CounterOpts{
				Namespace: "switchyard", Name: "server_connections_closed_total", ConstLabels: labels,
				Help: "Connections that were closed because there were too many, by server.",
			}, func() float64 { _, closed := count(); return float64(closed) }),
		)
	}
	if ask := o.LogLinesSuppressed; ask != nil {
		r.registry.MustRegister(prometheus.NewCounterFunc(prometheus.CounterOpts{
			Namespace: "switchyard", Name: "log_lines_suppressed_total", Help: "Lines that were left out of the log because there were too many like them.",
		}, func() float64 { return float64(ask()) }))
	}
	asked := func(name, help string, ask func() int) {
		if ask != nil {
			opts := prometheus.GaugeOpts{Namespace: "switchyard", Name: name, Help: help}
			r.registry.MustRegister(prometheus.NewGaugeFunc(opts, func() float64 { return float64(ask()) }))
		}
	}
	asked("services", "Services in the newest state.", o.Services)
	asked("source_problems", "Problems that the sources of cluster objects have.", o.SourceProblems)
	asked("node_problems", "Nodes without fields that they had, or that the configuration relies on.", o.NodeProblems)
	if ask := o.NodeHealth; ask != nil {
		asked("nodes_not_ready", "Nodes that are not ready, or shut down, where their health counts (nodeHealth).", func() int { return ask().NotReady })
		asked("nodes_coming_last", "Nodes whose endpoints get connections only if there are no others.", func() int { return ask().Last })
		asked("node_health_ignored", "1 while no endpoint comes last because too many Nodes are not ready.", func() int {
			if ask().Ignored {
				return 1
			}
			return 0
		})
	}
	asked("health_check_port_problems", "Health check node ports that cannot be served.", o.HealthCheckProblems)
	if o.PendingSince != nil {
		timestamp(r.registry, "oldest_pending_change_timestamp_seconds",
			"Unix time since when the oldest change waits to be programmed; 0 if none waits. Until the first state is programmed, it is the start of the process.",
			o.PendingSince)
	}
	if o.ConntrackEntries != nil {
		r.registry.MustRegister(conntrackEntries{o.ConntrackEntries})
	}
	if o.Followers != nil {
		r.registry.MustRegister(newFollowers(o.Role, o.Followers))
	}
	if o.LimitedServices != nil {
		r.registry.MustRegister(limited{limitedDesc, o.LimitedServices})
	}
	if o.DegradedServices != nil {
		r.registry.MustRegister(limited{degradedDesc, o.DegradedServices})
	}
	if o.BadAnnotations != nil {
		r.registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "switchyard_bad_annotations", Help: "Services with an annotation whose value means nothing, which is ignored.",
		}, func() float64 { return float64(o.BadAnnotations()) }))
	}
	if o.Traffic != nil {
		r.registry.MustRegister(traffic{o.Traffic})
	}
	if o.Relayed != nil {
		r.registry.MustRegister(relayed{o.Relayed})
	}
	if o.AffinityClients != nil {
		r.registry.MustRegister(affinity{o.AffinityClients})
	}
}

// limited collects the services that are not fully served, by a label.
type limited struct {
	desc *prometheus.Desc
	ask  func() map[string]int
}

var degradedDesc = prometheus.NewDesc("switchyard_degraded_services",
	"Services that are served without a feature that the dataplane lacks, by feature.", []string{"feature"}, nil)

var limitedDesc = prometheus.NewDesc("switchyard_limited_services",
	"Services that are not fully served because they exceed a limit or claim what another owns, by reason.", []string{"reason"}, nil)

// Describe implements [prometheus.Collector].
func (l limited) Describe(to chan<- *prometheus.Desc) { to <- l.desc }

// Collect implements [prometheus.Collector].
func (l limited) Collect(to chan<- prometheus.Metric) {
	for label, n := range l.ask() {
		to <- prometheus.MustNewConstMetric(l.desc, prometheus.GaugeValue, float64(n), label)
	}
}

// register registers c, whose name is not taken, and returns it.
func register[C prometheus.Collector](r prometheus.Registerer, c C) C {
	r.MustRegister(c)
	return c
}
