package metrics

import "github.com/prometheus/client_golang/prometheus"

// SocketHooks is how the socket hooks of mode ebpf are doing.
type SocketHooks struct {
	// State is on, degraded or off.
	State string
	// Frontends are how many the hooks translate, and Memory is how many bytes of the kernel their maps take.
	Frontends int
	Memory    uint64
	// Translated counts the connections that hooks have translated, and Mesh those that they left to a service mesh.
	Translated, Mesh uint64
}

// socketHooks collects how the socket hooks are doing.
type socketHooks struct{ ask func() SocketHooks }

var (
	hooksStates = []string{"on", "degraded", "off"}

	hooksDesc          = prometheus.NewDesc("switchyard_socket_hooks", "1 for the state of the socket hooks, 0 for the others. While they are off, nftables does what they did.", []string{"state"}, nil)
	hooksFrontendsDesc = prometheus.NewDesc("switchyard_socket_hooks_frontends", "Frontends that socket hooks translate.", nil, nil)
	hooksMemoryDesc    = prometheus.NewDesc("switchyard_socket_hooks_memory_bytes", "Memory of the kernel that the maps of socket hooks take, without notes of single sockets.", nil, nil)
	hooksTotalDesc     = prometheus.NewDesc("switchyard_socket_hooks_connections_total",
		"TCP connections to frontends of the socket hooks: translated at their socket, or left to the service mesh of their pod.", []string{"result"}, nil)
)

// Describe implements [prometheus.Collector].
func (socketHooks) Describe(to chan<- *prometheus.Desc) {
	to <- hooksDesc
	to <- hooksFrontendsDesc
	to <- hooksMemoryDesc
	to <- hooksTotalDesc
}

// Collect implements [prometheus.Collector].
func (h socketHooks) Collect(to chan<- prometheus.Metric) {
	now := h.ask()
	for _, state := range hooksStates {
		is := 0.0
		if state == now.State {
			is = 1
		}
		to <- prometheus.MustNewConstMetric(hooksDesc, prometheus.GaugeValue, is, state)
	}
	to <- prometheus.MustNewConstMetric(hooksFrontendsDesc, prometheus.GaugeValue, float64(now.Frontends))
	to <- prometheus.MustNewConstMetric(hooksMemoryDesc, prometheus.GaugeValue, float64(now.Memory))
	to <- prometheus.MustNewConstMetric(hooksTotalDesc, prometheus.CounterValue, float64(now.Translated), "translated")
	to <- prometheus.MustNewConstMetric(hooksTotalDesc, prometheus.CounterValue, float64(now.Mesh), "mesh")
}
