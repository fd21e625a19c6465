//go:build linux

package main

import (
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
)

// The metrics of network programming latency. Both programs have the first, whose least bucket is 250 ms; Switchyard also has one with finer
// buckets.
const (
	programmingMetric = "kubeproxy_network_programming_duration_seconds"
	fineMetric        = "switchyard_network_programming_duration_seconds"
	syncedMetric      = "kubeproxy_sync_proxy_rules_last_timestamp_seconds"
	// oneFamily selects a family of those that count each change.
	oneFamily = `ip_family="IPv4"`
)

// samples are the lines of a page of metrics, by name and labels.
type samples map[string]float64

// parseMetrics reads Prometheus' text format. It leaves out what it cannot read.
func parseMetrics(text string) samples {
	s := samples{}
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		at := strings.LastIndexByte(line, ' ')
		if at < 0 || strings.HasPrefix(line, "#") {
			continue
		}
		if value, err := strconv.ParseFloat(line[at+1:], 64); err == nil {
			s[line[:at]] = value
		}
	}
	return s
}

// values yields the samples of a metric that have a label, in the form label="value"; or all, if it is empty.
func (s samples) values(metric, label string) iter.Seq2[string, float64] {
	return func(yield func(string, float64) bool) {
		for name, value := range s {
			labels, ok := strings.CutPrefix(name, metric)
			if ok && (labels == "" || labels[0] == '{') && strings.Contains(labels, label) && !yield(labels, value) {
				return
			}
		}
	}
}

// histogram has the observations by bucket: how many were at most so many seconds.
type histogram map[float64]float64

// add adds the buckets of a metric.
func (h histogram) add(s samples, metric, label string) {
	for labels, value := range s.values(metric+"_bucket", label) {
		_, text, _ := strings.Cut(labels, `le="`)
		text, _, _ = strings.Cut(text, `"`)
		if bound, err := strconv.ParseFloat(text, 64); err == nil {
			h[bound] += value
		}
	}
}

// since returns the observations that an earlier histogram does not have.
func (h histogram) since(before histogram) histogram {
	d := histogram{}
	for bound, value := range h {
		d[bound] = value - before[bound]
	}
	return d
}

func (h histogram) count() float64 { return h[math.Inf(1)] }

// quantile estimates a quantile in milliseconds, as Prometheus' histogram_quantile does. It is exact to the width of a bucket.
func (h histogram) quantile(q float64) float64 {
	bounds := make([]float64, 0, len(h))
	for b := range h {
		bounds = append(bounds, b)
	}
	slices.Sort(bounds)
	rank := q * h.count()
	lower, below := 0.0, 0.0
	for _, b := range bounds {
		if h[b] >= rank && h[b] > below {
			if math.IsInf(b, 1) {
				return 1000 * lower
			}
			return 1000 * (lower + (b-lower)*(rank-below)/(h[b]-below))
		}
		lower, below = b, h[b]
	}
	return 0
}
