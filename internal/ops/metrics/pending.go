package metrics

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// timestamp registers a gauge of a point in time, which is 0 for the zero time.
func timestamp(r prometheus.Registerer, name, help string, ask func() time.Time) {
	opts := prometheus.GaugeOpts{Namespace: "switchyard", Name: name, Help: help}
	r.MustRegister(prometheus.NewGaugeFunc(opts, func() float64 {
		at := ask()
		if at.IsZero() {
			return 0
		}
		return unix(at)
	}))
}

// ConntrackEntries are the entries of the kernel's connection tracking table, and their limit.
type ConntrackEntries struct{ Entries, Limit int }

// conntrackEntries collects the entries of the connection tracking table.
type conntrackEntries struct {
	ask func() (ConntrackEntries, bool)
}

var (
	conntrackEntriesDesc = prometheus.NewDesc("switchyard_conntrack_entries", "Entries of the kernel's connection tracking table.", nil, nil)
	conntrackLimitDesc   = prometheus.NewDesc("switchyard_conntrack_entries_limit",
		"The limit of entries of the kernel's connection tracking table. At the limit, the kernel drops new connections.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (conntrackEntries) Describe(to chan<- *prometheus.Desc) {
	to <- conntrackEntriesDesc
	to <- conntrackLimitDesc
}

// Collect implements [prometheus.Collector].
func (c conntrackEntries) Collect(to chan<- prometheus.Metric) {
	if now, ok := c.ask(); ok {
		to <- prometheus.MustNewConstMetric(conntrackEntriesDesc, prometheus.GaugeValue, float64(now.Entries))
		to <- prometheus.MustNewConstMetric(conntrackLimitDesc, prometheus.GaugeValue, float64(now.Limit))
	}
}

// Followers are the clients that follow the node-local API of a process.
type Followers struct {
	// Dataplanes and Relays are the numbers of clients that watch the state of a node, and the cluster's objects.
	Dataplanes, Relays int
	// OldestUnapplied is when the oldest update was sent that its dataplane has not reported as applied; zero if there is none.
	OldestUnapplied time.Time
	// Sent is the number of bytes written to the connections of clients, including TLS and HTTP/2.
	Sent uint64
}

// followers collects the clients of the API.
type followers struct {
	ask                               func() Followers
	followers, oldestUnapplied, bytes *prometheus.Desc
}

// newFollowers returns a collector for a process with a role.
func newFollowers(role string, ask func() Followers) followers {
	labels := prometheus.Labels{"role": role}
	return followers{
		ask: ask,
		followers: prometheus.NewDesc("switchyard_api_followers",
			"Clients that follow this process: dataplanes watch the state of a node, relays the objects of the cluster.", []string{"kind"}, labels),
		oldestUnapplied: prometheus.NewDesc("switchyard_api_oldest_unapplied_update_timestamp_seconds",
			"Unix time at which the oldest update was sent that its dataplane has not reported as applied; 0 if there is none.", nil, labels),
		bytes: prometheus.NewDesc("switchyard_api_sent_bytes_total", "Bytes sent to clients, including TLS and HTTP/2.", nil, labels),
	}
}

// Describe implements [prometheus.Collector].
func (f followers) Describe(to chan<- *prometheus.Desc) {
	to <- f.followers
	to <- f.oldestUnapplied
	to <- f.bytes
}

// Collect implements [prometheus.Collector].
func (f followers) Collect(to chan<- prometheus.Metric) {
	now := f.ask()
	to <- prometheus.MustNewConstMetric(f.followers, prometheus.GaugeValue, float64(now.Dataplanes), "dataplane")
	to <- prometheus.MustNewConstMetric(f.followers, prometheus.GaugeValue, float64(now.Relays), "relay")
	oldest := 0.0
	if !now.OldestUnapplied.IsZero() {
		oldest = unix(now.OldestUnapplied)
	}
	to <- prometheus.MustNewConstMetric(f.oldestUnapplied, prometheus.GaugeValue, oldest)
	to <- prometheus.MustNewConstMetric(f.bytes, prometheus.CounterValue, float64(now.Sent))
}
