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

// SetMode replaces the metrics of the dataplane's mode by the metrics of another mode, whose counters
// begin at 0.
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
	if (mode == ModeNFTables || mode == ModeEBPF) && r.o.Edge != nil {
		m.registry.MustRegister(edges{r.o.Edge})
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

// LocalNodePorts is how NodePorts on loopback addresses are doing.
type LocalNodePorts struct {
	// Listeners is on how many NodePorts the process listens on ::1, and Failures how often that failed.
	Listeners int
	Failures  uint64
	// Rejects are the refused connections, empty unless NodePorts are served there.
	Rejects []LocalRejects
}

// LocalRejects is how many packets of a family and protocol were refused.
type LocalRejects struct {
	Family   state.Family
	Protocol state.Protocol
	Packets  uint64
}

// localNodePorts are the metrics of NodePorts on loopback addresses.
type localNodePorts struct{ read func() LocalNodePorts }

var (
	localListeners = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listeners", "NodePorts that the process listens on at ::1.",
		[]string{byFamily}, nil)
	localFailures = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_listener_creation_failures_total", "Failed attempts to listen on a NodePort at ::1.",
		[]string{byFamily}, nil)
	localRejects = prometheus.NewDesc("kubeproxy_nftables_localhost_nodeport_rejected_packets_total",
		"Refused packets to NodePorts on loopback addresses: packets of UDP and SCTP to ::1, and packets to Services without endpoints.",
		[]string{byFamily, "protocol"}, nil)
)

func (l localNodePorts) Describe(to chan<- *prometheus.Desc) {
	to <- localListeners
	to <- localFailures
	to <- localRejects
}

func (l localNodePorts) Collect(to chan<- prometheus.Metric) {
	p := l.read()
	to <- prometheus.MustNewConstMetric(localListeners, prometheus.GaugeValue, float64(p.Listeners), state.IPv6.String())
	to <- prometheus.MustNewConstMetric(localFailures, prometheus.CounterValue, float64(p.Failures), state.IPv6.String())
	for _, r := range p.Rejects {
		to <- prometheus.MustNewConstMetric(localRejects, prometheus.CounterValue, float64(r.Packets), r.Family.String(), r.Protocol.String())
	}
}
