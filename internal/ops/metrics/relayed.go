package metrics

import "github.com/prometheus/client_golang/prometheus"

// Relayed is what the relay of mode userspace carries of a protocol.
type Relayed struct {
	// Open is how many connections there are, and Most how many there may be.
	Open, Most int
	// Ended is how many had to make room for others.
	Ended uint64
}

// relayed collects what the relay carries.
type relayed struct{ ask func() map[string]Relayed }

var (
	relayedDesc      = prometheus.NewDesc("switchyard_relay_connections", "Connections of TCP, or flows of UDP, that the relay carries.", []string{"protocol"}, nil)
	relayedLimitDesc = prometheus.NewDesc("switchyard_relay_connections_limit", "How many connections of TCP, or flows of UDP, the relay may carry.", []string{"protocol"}, nil)
	relayedEndedDesc = prometheus.NewDesc("switchyard_relay_connections_ended_total",
		"TCP connections, or UDP flows, that the relay has ended to make room. It ends connections of the namespace, Service and client with the most.", []string{"protocol"}, nil)
)

// Describe implements [prometheus.Collector].
func (relayed) Describe(to chan<- *prometheus.Desc) {
	to <- relayedDesc
	to <- relayedLimitDesc
	to <- relayedEndedDesc
}

// Collect implements [prometheus.Collector].
func (r relayed) Collect(to chan<- prometheus.Metric) {
	for protocol, n := range r.ask() {
		to <- prometheus.MustNewConstMetric(relayedDesc, prometheus.GaugeValue, float64(n.Open), protocol)
		to <- prometheus.MustNewConstMetric(relayedLimitDesc, prometheus.GaugeValue, float64(n.Most), protocol)
		to <- prometheus.MustNewConstMetric(relayedEndedDesc, prometheus.CounterValue, float64(n.Ended), protocol)
	}
}
