package metrics

import (
	"context"
	"net/url"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// RESTClient are the metrics of client-go's requests to the API server, by the names that all Kubernetes components give them.
// Its fields implement the interfaces of k8s.io/client-go/tools/metrics, which this package does not import:
//
//	c := metrics.NewRESTClient(registry)
//	clientmetrics.Register(clientmetrics.RegisterOpts{
//		RequestLatency:       c.RequestLatency,
//		RateLimiterLatency:   c.RateLimiterLatency,
//		RequestSize:          c.RequestSize,
//		ResponseSize:         c.ResponseSize,
//		RequestResult:        c.RequestResult,
//		RequestRetry:         c.RequestRetry,
//		TransportCreateCalls: c.TransportCreateCalls,
//		TransportCAReloads:   c.TransportCAReloads,
//	})
//
// client-go takes the first registration of a process and ignores all others. Its metrics about exec plugins and about the
// garbage collection of transports are left out: a node's proxy uses a service account.
type RESTClient struct {
	RequestLatency       RESTLatency
	RateLimiterLatency   RESTLatency
	RequestSize          RESTSize
	ResponseSize         RESTSize
	RequestResult        RESTResult
	RequestRetry         RESTRetry
	TransportCreateCalls RESTTransportCreate
	TransportCAReloads   RESTTransportReload
}

// RESTLatency observes how long requests take, or wait, by verb and host.
type RESTLatency struct{ v *prometheus.HistogramVec }

// Observe implements client-go's LatencyMetric.
func (m RESTLatency) Observe(_ context.Context, verb string, u url.URL, latency time.Duration) {
	m.v.WithLabelValues(verb, u.Host).Observe(latency.Seconds())
}

// RESTSize observes bytes, by verb and host.
type RESTSize struct{ v *prometheus.HistogramVec }

// Observe implements client-go's SizeMetric.
func (m RESTSize) Observe(_ context.Context, verb, host string, size float64) {
	m.v.WithLabelValues(verb, host).Observe(size)
}

// RESTResult counts answers, by status code, method and host.
type RESTResult struct{ v *prometheus.CounterVec }

// Increment implements client-go's ResultMetric.
func (m RESTResult) Increment(_ context.Context, code, method, host string) {
	m.v.WithLabelValues(code, method, host).Inc()
}

// RESTRetry counts requests that were sent again, by status code, verb and host.
type RESTRetry struct{ v *prometheus.CounterVec }

// IncrementRetry implements client-go's RetryMetric.
func (m RESTRetry) IncrementRetry(_ context.Context, code, verb, host string) {
	m.v.WithLabelValues(code, verb, host).Inc()
}

// RESTTransportCreate counts transports that were asked for, by whether there was one already.
type RESTTransportCreate struct{ v *prometheus.CounterVec }

// Increment implements client-go's TransportCreateCallsMetric.
func (m RESTTransportCreate) Increment(result string) { m.v.WithLabelValues(result).Inc() }

// RESTTransportReload counts reloads of certificate authorities, by result and reason.
type RESTTransportReload struct{ v *prometheus.CounterVec }

// Increment implements client-go's TransportCAReloadsMetric.
func (m RESTTransportReload) Increment(result, reason string) {
	m.v.WithLabelValues(result, reason).Inc()
}

// NewRESTClient registers the metrics of client-go's requests.
func NewRESTClient(r prometheus.Registerer) RESTClient {
	histogram := func(name, help string, buckets []float64) *prometheus.HistogramVec {
		return register(r, prometheus.NewHistogramVec(
			prometheus.HistogramOpts{Namespace: "rest_client", Name: name, Help: help, Buckets: buckets}, []string{"verb", "host"}))
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return register(r, prometheus.NewCounterVec(prometheus.CounterOpts{Namespace: "rest_client", Name: name, Help: help}, labels))
	}
	seconds := []float64{0.005, 0.025, 0.1, 0.25, 0.5, 1, 2, 4, 8, 15, 30, 60}
	bytes := []float64{64, 256, 512, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20, 16 << 20}
	return RESTClient{
		RequestLatency:       RESTLatency{histogram("request_duration_seconds", "How long requests took.", seconds)},
		RateLimiterLatency:   RESTLatency{histogram("rate_limiter_duration_seconds", "How long requests waited for the rate limiter.", seconds)},
		RequestSize:          RESTSize{histogram("request_size_bytes", "Size of requests.", bytes)},
		ResponseSize:         RESTSize{histogram("response_size_bytes", "Size of answers.", bytes)},
		RequestResult:        RESTResult{counter("requests_total", "Requests by the status code of the answer.", "code", "method", "host")},
		RequestRetry:         RESTRetry{counter("request_retries_total", "Requests that were sent again.", "code", "verb", "host")},
		TransportCreateCalls: RESTTransportCreate{counter("transport_create_calls_total", "Transports that were asked for.", "result")},
		TransportCAReloads:   RESTTransportReload{counter("transport_ca_reload_total", "Reloads of certificate authorities.", "result", "reason")},
	}
}
