package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/switchyard-net/switchyard/state"
)

// Traffic is what the dataplane has counted of new connections.
type Traffic struct {
	// Ports are ports of Services, each of them once, and a bounded number.
	Ports []PortTraffic
	// Beyond is what others have counted while they were not among these, and LeftOut how many of those there are.
	Beyond  Counts
	LeftOut int
}

// PortTraffic is the counts of a port of a Service, in all families.
type PortTraffic struct {
	Service state.ServiceName
	// Port is its name, or its number if it has none.
	Port string
	Counts
}

// Counts are new connections, and how many of them were rejected or dropped.
type Counts struct{ Connections, Rejects, Drops uint64 }

// traffic collects what the dataplane has counted.
type traffic struct{ ask func() *Traffic }

var (
	portLabels = []string{"namespace", "service", "port"}

	connectionsDesc = prometheus.NewDesc("switchyard_service_connections_total",
		"New connections to a port of a Service, wherever they went. Without names: to ports beyond the first 1,000.", portLabels, nil)
	rejectsDesc = prometheus.NewDesc("switchyard_service_rejects_total", "New connections that were rejected because no endpoint exists.", portLabels, nil)
	dropsDesc   = prometheus.NewDesc("switchyard_service_drops_total",
		"New connections that were dropped, by the traffic policy or the source ranges.", portLabels, nil)
	leftOutDesc = prometheus.NewDesc("switchyard_service_ports_left_out", "Ports of Services that had connections and have no series of their own.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (traffic) Describe(to chan<- *prometheus.Desc) {
	to <- connectionsDesc
	to <- rejectsDesc
	to <- dropsDesc
	to <- leftOutDesc
}

// Collect implements [prometheus.Collector].
func (t traffic) Collect(to chan<- prometheus.Metric) {
	now := t.ask()
	if now == nil {
		return
	}
	send := func(c Counts, labels ...string) {
		for desc, n := range map[*prometheus.Desc]uint64{connectionsDesc: c.Connections, rejectsDesc: c.Rejects, dropsDesc: c.Drops} {
			to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
		}
	}
	for i := range now.Ports {
		p := &now.Ports[i]
		send(p.Counts, p.Service.Namespace, p.Service.Name, p.Port)
	}
	send(now.Beyond, "", "", "")
	to <- prometheus.MustNewConstMetric(leftOutDesc, prometheus.GaugeValue, float64(now.LeftOut))
}
