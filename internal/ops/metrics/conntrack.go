package metrics

import "github.com/prometheus/client_golang/prometheus"

// conntrackTable collects how full the kernel's connection tracking table is. Without a limit there is nothing to collect.
type conntrackTable struct{ ask func() (entries, limit int) }

var (
	conntrackDesc = prometheus.NewDesc("switchyard_conntrack_entries",
		"Connections that the kernel tracks in this network namespace.", nil, nil)
	conntrackLimitDesc = prometheus.NewDesc("switchyard_conntrack_entries_limit",
		"How many connections the kernel can track. It drops the first packets of further ones.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (conntrackTable) Describe(to chan<- *prometheus.Desc) {
	to <- conntrackDesc
	to <- conntrackLimitDesc
}

// Collect implements [prometheus.Collector].
func (c conntrackTable) Collect(to chan<- prometheus.Metric) {
	if entries, limit := c.ask(); limit > 0 {
		to <- prometheus.MustNewConstMetric(conntrackDesc, prometheus.GaugeValue, float64(entries))
		to <- prometheus.MustNewConstMetric(conntrackLimitDesc, prometheus.GaugeValue, float64(limit))
	}
}
