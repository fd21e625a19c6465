package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-net/switchyard/state"
)

// modeMetrics are the metrics that only some modes have.
type modeMetrics struct {
	registry *prometheus.Registry

	nftFailures                             *prometheus.CounterVec
	restoreFailures, partialRestoreFailures *prometheus.CounterVec
	rulesTotal, rulesLast                   *prometheus.GaugeVec
	winFailures                             map[WinKernelOperation]*prometheus.CounterVec
}

// SetMode replaces the metrics of the dataplane's mode by those of another one, whose counters begin at 0.
func (r *Registry) SetMode(mode string) {
	m := &modeMetrics{registry: prometheus.NewRegistry()}
	d := definer{m.registry, r.families}
	switch mode {
	case ModeIPTables:
		m.restoreFailures = d.counterByFamily("sync_proxy_rules_iptables_restore_failures_total", "Syncs that the kernel did not accept.")
		m.partialRestoreFailures = d.counterByFamily("sync_proxy_rules_iptables_partial_restore_failures_total", "Partial syncs that the kernel did not accept.")
		m.rulesTotal = d.gauge("sync_proxy_rules_iptables_total", "Rules that belong to the proxy.", "table", byFamily)
		m.rulesLast = d.gauge("sync_proxy_rules_iptables_last", "Rules that the last sync wrote.", "table", byFamily)
		d.packets("iptables_ct_state_invalid_dropped_packets_total", "Packets dropped because conntrack does not know their connection.", r.o.IPTablesInvalidDropped)
		d.packets("iptables_localhost_nodeports_accepted_packets_total", "Packets accepted to NodePorts on loopback addresses.", r.o.IPTablesLocalhostAccepted)
	case ModeIPVS:
		m.restoreFailures = d.counterByFamily("sync_proxy_rules_iptables_restore_failures_total", "Syncs that the kernel did not accept.")
	case ModeNFTables, ModeEBPF, ModeUserspace:
		m.nftFailures = d.counterByFamily("sync_proxy_rules_nftables_sync_failures_total", "Syncs that the kernel did not accept.")
		d.counterByFamily("sync_proxy_rules_nftables_cleanup_failures_total", "Always 0: what is stale is deleted in the transaction of the sync itself.")
	case ModeKernelspace:
		labels := []string{byFamily, "lb_type", "error"}
		m.winFailures = map[WinKernelOperation]*prometheus.CounterVec{
			WinKernelCreate: d.counter("sync_proxy_rules_winkernel_lb_create_failures_total", "Load balancers that could not be created.", labels...),
			WinKernelUpdate: d.counter("sync_proxy_rules_winkernel_lb_update_failures_total", "Load balancers that could not be updated.", labels...),
			WinKernelDelete: d.counter("sync_proxy_rules_winkernel_lb_delete_failures_total", "Load balancers that could not be deleted.", labels...),
		}
	}
	if mode == ModeNFTables && r.o.LocalNodePorts != nil {
		m.registry.MustRegister(localNodePorts{r.o.LocalNodePorts})
	}
	if mode == ModeEBPF && r.o.SocketHooks != nil {
		m.registry.MustRegister(socketHooks{r.o.SocketHooks})
	}
	r.mode.Store(m)
}

// syncFailed counts a sync that failed, in the modes that have a counter for it.
func (m *modeMetrics) syncFailed(family string, full bool) {
	if m.nftFailures != nil {
		m.nftFailures.WithLabelValues(family).Inc()
	}
	if m.restoreFailures != nil {
		m.restoreFailures.WithLabelValues(family).Inc()
	}
	if m.partialRestoreFailures != nil && !full {
		m.partialRestoreFailures.WithLabelValues(family).Inc()
	}
}

// localNodePorts are the metrics of NodePorts on ::1.
type localNodePorts struct {
	read func() (listeners int, failures uint64)
}

var (
	localListeners = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listeners", "NodePorts that the process listens on at ::1.",
		[]string{byFamily}, nil)
	localFailures = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", "Failed attempts to listen on a NodePort at ::1.",
		[]string{byFamily}, nil)
)

func (l localNodePorts) Describe(to chan<- *prometheus.Desc) {
	to <- localListeners
	to <- localFailures
}

func (l localNodePorts) Collect(to chan<- prometheus.Metric) {
	listeners, failures := l.read()
	to <- prometheus.MustNewConstMetric(localListeners, prometheus.GaugeValue, float64(listeners), state.IPv6.String())
	to <- prometheus.MustNewConstMetric(localFailures, prometheus.CounterValue, float64(failures), state.IPv6.String())
}
