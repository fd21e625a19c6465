package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
)

const byFamily = "ip_family"

// kubeProxy are kube-proxy's metrics. Metrics of a mode are nil in other modes.
type kubeProxy struct {
	sync, fullSync, partialSync       *prometheus.HistogramVec
	programming, conntrack            *prometheus.HistogramVec
	conntrackDeleted                  *prometheus.CounterVec
	lastSync, lastQueued              *prometheus.GaugeVec
	endpointsPending, servicesPending prometheus.Gauge
	endpointChanges, serviceChanges   prometheus.Counter
	noLocalEndpoints                  *prometheus.GaugeVec
	healthz, livez                    *prometheus.CounterVec
}

// syncBuckets are kube-proxy's, 1 ms to 16 s.
var syncBuckets = prometheus.ExponentialBuckets(0.001, 2, 15)

// programmingBuckets are kube-proxy's. The steps are 0.25 s, 1 s, 5 s and 30 s, up to 0.5 s, 60 s, 120 s and 300 s.
func programmingBuckets() []float64 {
	buckets := []float64{0.25, 0.5}
	buckets = append(buckets, prometheus.LinearBuckets(1, 1, 59)...)
	buckets = append(buckets, prometheus.LinearBuckets(60, 5, 12)...)
	return append(buckets, prometheus.LinearBuckets(120, 30, 7)...)
}

// definer registers metrics of kube-proxy. A metric with no label but the family begins at 0 for each family.
type definer struct {
	registry *prometheus.Registry
	families []string
}

func (d definer) histogram(name, help string, buckets []float64) *prometheus.HistogramVec {
	v := register(d.registry, prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Namespace: "kubeproxy", Name: name, Help: help, Buckets: buckets}, []string{byFamily}))
	for _, f := range d.families {
		v.WithLabelValues(f)
	}
	return v
}

func (d definer) counter(name, help string, labels ...string) *prometheus.CounterVec {
	return register(d.registry, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help}, labels))
}

func (d definer) counterByFamily(name, help string) *prometheus.CounterVec {
	v := d.counter(name, help, byFamily)
	for _, f := range d.families {
		v.WithLabelValues(f)
	}
	return v
}

func (d definer) gauge(name, help string, labels ...string) *prometheus.GaugeVec {
	return register(d.registry, prometheus.NewGaugeVec(prometheus.GaugeOpts{Namespace: "kubeproxy", Name: name, Help: help}, labels))
}

// packets shows a counter of the kernel.
func (d definer) packets(name, help string, count func() uint64) {
	if count != nil {
		opts := prometheus.CounterOpts{Namespace: "kubeproxy", Name: name, Help: help}
		d.registry.MustRegister(prometheus.NewCounterFunc(opts, func() float64 { return float64(count()) }))
	}
}

func (k *kubeProxy) register(registry *prometheus.Registry, families []string) {
	d := definer{registry, families}
	*k = kubeProxy{
		sync:             d.histogram("sync_proxy_rules_duration_seconds", "How long a sync of the dataplane took.", syncBuckets),
		fullSync:         d.histogram("sync_full_proxy_rules_duration_seconds", "How long a sync of the whole state took.", syncBuckets),
		partialSync:      d.histogram("sync_partial_proxy_rules_duration_seconds", "How long a sync of what had changed took.", syncBuckets),
		programming:      d.histogram("network_programming_duration_seconds", "Time from a change of endpoints in the cluster until the dataplane showed it.", programmingBuckets()),
		conntrack:        d.histogram("conntrack_reconciler_sync_duration_seconds", "How long it took to find and delete stale conntrack entries.", syncBuckets),
		conntrackDeleted: d.counterByFamily("conntrack_reconciler_deleted_entries_total", "Stale conntrack entries that were deleted, an estimate where the kernel deletes them by a filter."),
		lastSync:         d.gauge("sync_proxy_rules_last_timestamp_seconds", "When the dataplane was last seen to show the state.", byFamily),
		lastQueued:       d.gauge("sync_proxy_rules_last_queued_timestamp_seconds", "When a sync was last asked for.", byFamily),
		endpointsPending: d.gauge("sync_proxy_rules_endpoint_changes_pending", "Changes of EndpointSlices that are not applied yet.").WithLabelValues(),
		servicesPending:  d.gauge("sync_proxy_rules_service_changes_pending", "Changes of Services that are not applied yet.").WithLabelValues(),
		endpointChanges:  d.counter("sync_proxy_rules_endpoint_changes_total", "Changes of EndpointSlices.").WithLabelValues(),
		serviceChanges:   d.counter("sync_proxy_rules_service_changes_total", "Changes of Services.").WithLabelValues(),
		noLocalEndpoints: d.gauge("sync_proxy_rules_no_local_endpoints_total", "Service ports with the traffic policy Local that have endpoints, but none on this node.", "traffic_policy", byFamily),
		healthz:          d.counter("proxy_healthz_total", "Answers of /healthz.", "code"),
		livez:            d.counter("proxy_livez_total", "Answers of /livez.", "code"),
	}
	for _, code := range []string{"200", "503"} {
		k.healthz.WithLabelValues(code)
		k.livez.WithLabelValues(code)
	}
}
