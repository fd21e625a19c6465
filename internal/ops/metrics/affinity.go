package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-net/switchyard/state"
)

// AffinityClients is how many clients of Services with affinity the kernel remembers for nftables in a family, and how many it can.
type AffinityClients struct {
	Family            state.Family
	Remembered, Limit int
}

// affinity collects how many clients are remembered.
type affinity struct{ ask func() []AffinityClients }

var (
	affinityDesc = prometheus.NewDesc("switchyard_nftables_affinity_clients",
		"Clients of Services with affinity that the kernel remembers, once for each port that they use.", []string{byFamily}, nil)
	affinityLimitDesc = prometheus.NewDesc("switchyard_nftables_affinity_clients_limit",
		"How many clients of Services with affinity can be remembered. Further ones get no affinity.", []string{byFamily}, nil)
)

// Describe implements [prometheus.Collector].
func (affinity) Describe(to chan<- *prometheus.Desc) {
	to <- affinityDesc
	to <- affinityLimitDesc
}

// Collect implements [prometheus.Collector].
func (a affinity) Collect(to chan<- prometheus.Metric) {
	for _, c := range a.ask() {
		to <- prometheus.MustNewConstMetric(affinityDesc, prometheus.GaugeValue, float64(c.Remembered), c.Family.String())
		to <- prometheus.MustNewConstMetric(affinityLimitDesc, prometheus.GaugeValue, float64(c.Limit), c.Family.String())
	}
}
