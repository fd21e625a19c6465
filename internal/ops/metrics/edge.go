package metrics

import "github.com/prometheus/client_golang/prometheus"

// Edge is how the edge is doing that hands connections over to other nodes.
type Edge struct {
	// Ports are how many ports of Services it serves, and Left how many it leaves to nftables although other nodes serve them. Draining is how many frontends
	// it serves only for connections that exist.
	Ports, Left, Draining int
	// Packets are what was done with packets, by a word for it.
	Packets map[string]uint64
}

// edges collects how the edge is doing. There are no metrics while there is no edge.
type edges struct{ ask func() *Edge }

var (
	edgePortsDesc = prometheus.NewDesc("switchyard_edge_ports",
		"Ports of Services in one IP family: connections from outside are handed over to other nodes, or left to nftables because something is lacking.", []string{"result"}, nil)
	edgeDrainingDesc = prometheus.NewDesc("switchyard_edge_draining_frontends", "Frontends of the edge that keep their connections and get no new ones.", nil, nil)
	edgePacketsDesc  = prometheus.NewDesc("switchyard_edge_packets_total", "Packets that the edge has looked at, by what it did. A packet may count as several.", []string{"action"}, nil)
)

// Describe implements [prometheus.Collector].
func (edges) Describe(to chan<- *prometheus.Desc) {
	to <- edgePortsDesc
	to <- edgeDrainingDesc
	to <- edgePacketsDesc
}

// Collect implements [prometheus.Collector].
func (e edges) Collect(to chan<- prometheus.Metric) {
	now := e.ask()
	if now == nil {
		return
	}
	to <- prometheus.MustNewConstMetric(edgePortsDesc, prometheus.GaugeValue, float64(now.Ports), "served")
	to <- prometheus.MustNewConstMetric(edgePortsDesc, prometheus.GaugeValue, float64(now.Left), "left")
	to <- prometheus.MustNewConstMetric(edgeDrainingDesc, prometheus.GaugeValue, float64(now.Draining))
	for action, n := range now.Packets {
		to <- prometheus.MustNewConstMetric(edgePacketsDesc, prometheus.CounterValue, float64(n), action)
	}
}
